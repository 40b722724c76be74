"""Problems and errors, and how numbers and lists appear in them.

Owns `Problem`, the form of everything that Terraform shows as an error or a warning. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from headrace.provider.values import Values, is_known

# The attribute that is wrong, or empty. No deeper: Terraform finds no line for an element of a literal.
Path = tuple[str, ...]

LIST_SHOWN_MAX: Final = 5
NUMBER_SHOWN_MAX: Final = 24
SECONDS_MAX: Final = 10_000_000


class Problem(NamedTuple):
    """One error or warning. `path` leads to the attribute; it is empty for the resource as a whole."""

    summary: str
    detail: str = ""
    path: Path = ()
    is_warning: bool = False


INTERRUPTED: Final = Problem("Interrupted before the change began", "Apply again.")


class ResourceError(Exception):
    """A failed request. Terraform keeps `state`: the part of the resource that exists anyway."""

    def __init__(self, *problems: Problem, state: Values | None = None) -> None:
        super().__init__("; ".join(problem.summary for problem in problems))
        self.problems = problems
        self.state = state


def number_problem(
    values: Values, attribute: str, expected: str, *, least: int, most: int, whole: bool = True
) -> list[Problem]:
    """Returns the problem of a number that is known and outside of its bounds; Terraform's have no bounds."""
    number = values.get(attribute)
    if number is None or not is_known(number):
        return []
    if least <= number <= most and (not whole or int(number) == number):
        return []
    digits = str(number)
    shown = (
        digits if len(digits) <= NUMBER_SHOWN_MAX else f"{digits[:NUMBER_SHOWN_MAX]}… ({len(digits)} digits)"
    )
    text = f"{attribute} is {shown}; expected {expected}{f', at most {most:,}' if number > most else ''}."
    return [Problem(f"Invalid {attribute}", text, (attribute,))]


def seconds_problem(values: Values, attribute: str) -> list[Problem]:
    """Returns the problem of a time in seconds."""
    return number_problem(values, attribute, "seconds, 0 or more", least=0, most=SECONDS_MAX, whole=False)


def join_some(items: Iterable[object]) -> str:
    """Returns `a, b, c, d, e and 4 more`."""
    words = [str(item) for item in items]
    more = len(words) - LIST_SHOWN_MAX
    return ", ".join(words) if more <= 0 else f"{', '.join(words[:LIST_SHOWN_MAX])} and {more} more"


def plural(count: int, noun: str) -> str:
    """Returns `1 file` or `1,234 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: int) -> str:
    """Returns `1,234 bytes`, or `5.2 MB (5,234,567 bytes)`."""
    exact = f"{count:,} bytes"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 10 * size or (count >= size and unit != "kB"):
            return f"{count / size:.1f} {unit} ({exact})"
    return exact
