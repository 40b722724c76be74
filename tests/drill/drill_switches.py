"""The negative control: each switch turns one of the audit's checks off, and the drill must then fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

from headrace.audit.findings import Finding, Status
from headrace.audit.store.cover import Candidate
from headrace.audit.verdicts.corruption import judge_corrupt


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


@contextmanager
def without_replicas() -> Iterator[None]:
    """What auditors say of replicas with other bytes than were counted is not judged."""

    def unaltered(*arguments: Any) -> Iterator[Finding]:
        return (each for each in judge_corrupt(*arguments) if each.status is not Status.ALTERED)

    with (
        patch("headrace.audit.verdicts.hop_producer.judge_corrupt", unaltered),
        patch("headrace.audit.verdicts.hop_mirror.judge_corrupt", unaltered),
    ):
        yield


@contextmanager
def without_seals() -> Iterator[None]:
    """Seals are not compared with their digests and the commit log."""
    with patch("headrace.warehouse.verify.problems_of_seals", lambda *_: []):
        yield


SWITCHES: Final[dict[str | None, Callable[[], AbstractContextManager[None]]]] = {
    None: nullcontext,
    "marks": without_marks,
    "cover": without_cover,
    "digest": without_digest,
    "replicas": without_replicas,
    "seals": without_seals,
}
