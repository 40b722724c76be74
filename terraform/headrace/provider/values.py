"""Values as Terraform hands them over, and what is said about them.

Owns: what counts as known, the paths that lead Terraform to a line of HCL, and `Trouble`, the one form in
which anything wrong is told. Pure.

A value is None, bool, int, Decimal, str, list, dict, or `Unknown` for what is known after apply only. Numbers
that are not whole are Decimals: Terraform counts in 512 bits, and 0.99 must come back to it as it went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from msgpack import ExtType
from tf.types import Unknown

Values = dict[str, Any]
# The attribute that is wrong, or nothing. No deeper: Terraform finds no line for an element in a literal.
Path = tuple[str, ...]

LIST_SHOWN_MAX: Final = 5


class Trouble(NamedTuple):
    """One thing to tell. `path` leads to the attribute, empty for the resource as a whole."""

    summary: str
    detail: str = ""
    path: Path = ()
    is_warning: bool = False


INTERRUPTED: Final = Trouble("Interrupted before it was begun", "Apply again.")


class ResourceError(Exception):
    """The request fails. `state` is what there is of the resource nevertheless, which Terraform keeps."""

    def __init__(self, *troubles: Trouble, state: Values | None = None) -> None:
        super().__init__("; ".join(each.summary for each in troubles))
        self.troubles = troubles
        self.state = state


def number(value: Any) -> Any:
    """A number as it is handled here: of MessagePack's and JSON's forms."""
    if isinstance(value, str):
        value = Decimal(value)
    elif isinstance(value, float):
        value = Decimal(repr(value))
    return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value


def plain(value: Any) -> Any:
    """A value for JSON, as agents take it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def wire(value: Any) -> Any:
    """A value as Terraform takes it."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return wire(number(value))
    if isinstance(value, Mapping):
        return {key: wire(each) for key, each in value.items()}
    return [wire(each) for each in value] if isinstance(value, list | tuple) else value


def is_known(value: object) -> bool:
    """Whether nothing in it is known after apply only."""
    # Terraform may know something of what it does not know, such as a text's begin: an extension of its own.
    if value is Unknown or isinstance(value, ExtType):
        return False
    if isinstance(value, Mapping):
        return all(map(is_known, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_known, value))
    return True


def is_same(one: object, other: object) -> bool:
    """Whether two values are the same for sure."""
    return is_known(one) and is_known(other) and one == other


def listed(words: Iterable[object]) -> str:
    """`a, b, c and 4 more`."""
    said = [str(word) for word in words]
    more = len(said) - LIST_SHOWN_MAX
    return ", ".join(said) if more <= 0 else f"{', '.join(said[:LIST_SHOWN_MAX])} and {more} more"


def bytes_of(count: int) -> str:
    """`1,234 bytes`, or `5.2 MB (5,234,567 bytes)`."""
    plain = f"{count:,} bytes"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 10 * size or (count >= size and unit != "kB"):
            return f"{count / size:.1f} {unit} ({plain})"
    return plain
