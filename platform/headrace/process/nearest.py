"""Did you mean …: which known name comes nearest to one that is not there. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

NEARNESS_MIN: Final = 0.6
COMPARED_MAX: Final = 10_000
"""Names that one is compared with; each takes some microseconds."""
NAME_MAX_CHARS: Final = 300
"""Nobody mistypes a longer one, and the comparison takes the product of both lengths."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most like this one, if one is like it at all."""
    if len(name) > NAME_MAX_CHARS:
        return None
    by_lower = {each.lower(): each for each in sorted(known)[:COMPARED_MAX]}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=NEARNESS_MIN)
    return by_lower[found[0]] if found else None


def question(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean 'retention.ms'?", or "" if no known name is like this one."""
    found = nearest(name, known)
    return "" if found is None else f"; did you mean {found!r}?"
