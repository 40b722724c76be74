"""The negative control: each switch turns one of the audit's checks off, and the drill must then fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

from headrace.audit.store.cover import Candidate


@contextmanager
def without_marks() -> Iterator[None]:
    """Auditors believe that a log still holds what they counted."""
    with patch("headrace.audit.counting.standing._problem_with", lambda *_: ""):
        yield


@contextmanager
def without_cover() -> Iterator[None]:
    """All tallies count, also those that overlap."""

    def all_of_them(candidates: Any) -> list[Candidate]:
        return list(candidates)

    with patch("headrace.audit.store.fold.choose", all_of_them):
        yield


@contextmanager
def without_digest() -> Iterator[None]:
    """Tiers are compared by number alone, not by content."""
    with patch("headrace.audit.verdicts.hop_content.altered", lambda *_: iter(())):
        yield


SWITCHES: Final[dict[str | None, Callable[[], AbstractContextManager[None]]]] = {
    None: nullcontext,
    "marks": without_marks,
    "cover": without_cover,
    "digest": without_digest,
}
