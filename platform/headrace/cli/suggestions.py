"""What a message about an unknown name ends with: the nearest known one, and the command that lists all."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.process.nearest import nearest


def did_you_mean(name: str, known: Iterable[str], listing: str) -> str:
    """Returns the end of a message about an unknown name; `listing` is the command that lists them all."""
    found = nearest(name, known)
    question = "" if found is None else f"did you mean {found!r}? "
    return f"; {question}`{listing}` lists what there is"
