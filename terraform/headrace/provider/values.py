"""Values as Terraform sends them: what counts as known, and numbers.

Pure. A value is None, bool, int, Decimal, str, list, dict, or `Unknown` if it is known only after the apply.
Numbers that are not whole are Decimals, and so are huge ones: Terraform computes with 512 bits, and 0.99 must
return to it unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from msgpack import ExtType
from tf.types import Unknown

Values = dict[str, Any]

WHOLE_DIGITS_MAX: Final = 1_000
"""Beyond that a number stays a Decimal: Python writes no int of more than 4,300 digits."""


def number(value: Any) -> Any:
    """Returns a number of MessagePack or JSON as an int if it is whole, else as a Decimal."""
    if isinstance(value, str):
        value = Decimal(value)
    elif isinstance(value, float):
        value = Decimal(repr(value))
    is_whole = isinstance(value, Decimal) and value == value.to_integral_value()
    return int(value) if is_whole and value.adjusted() < WHOLE_DIGITS_MAX else value


def to_json(value: Any) -> Any:
    """Returns a value in the types that JSON has, for agents."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {key: to_json(element) for key, element in value.items()}
    return [to_json(element) for element in value] if isinstance(value, list | tuple) else value


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a map without the elements that are null: `cond ? value : null` means that there is none."""
    return {name: value for name, value in values.items() if value is not None}


def to_wire(value: Any) -> Any:
    """Returns a value as Terraform's protocol carries it."""
    if isinstance(value, Decimal) or (isinstance(value, int) and not -(2**63) <= value < 2**64):
        return str(value)  # MessagePack has no such number
    if isinstance(value, float):
        return to_wire(number(value))
    if isinstance(value, Mapping):
        return {key: to_wire(element) for key, element in value.items()}
    return [to_wire(element) for element in value] if isinstance(value, list | tuple) else value


def is_known(value: object) -> bool:
    """Whether the value and all its elements are known before the apply."""
    # Terraform may know a part of an unknown value, such as a string's prefix: that is an extension type.
    if value is Unknown or isinstance(value, ExtType):
        return False
    if isinstance(value, Mapping):
        return all(map(is_known, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_known, value))
    return True


def is_same(one: object, other: object) -> bool:
    """Whether two values are both known and equal."""
    return is_known(one) and is_known(other) and one == other
