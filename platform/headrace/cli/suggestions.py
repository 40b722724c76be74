"""Did you mean …: which known name comes nearest to one that is not there. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

NEARNESS_MIN: Final = 0.6
COMPARED_MAX: Final = 10_000
"""Names that one is compared with; each takes some microseconds."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most like this one, if one is like it at all."""
    by_lower = {each.lower(): each for each in sorted(known)[:COMPARED_MAX]}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=NEARNESS_MIN)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], listing: str) -> str:
    """Returns the end of a message about an unknown name; `listing` is the command that lists them all."""
    found = nearest(name, known)
    question = "" if found is None else f"did you mean {found!r}? "
    return f"; {question}`{listing}` lists what there is"
