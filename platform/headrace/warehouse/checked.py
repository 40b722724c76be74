"""Whether values that were read from JSON have the types that their dataclass declares. Pure.

Python checks none of them: another program's document, or an enemy's, would fail much later, and elsewhere.
"""

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Literal, get_args, get_origin

TEXT_MAX_CHARS: Final = 100_000
INT_MAX: Final = 2**63 - 1


def check(value: object, kind: Any, where: str) -> None:
    """Raises `ValueError` unless `value` is a `kind`: a dataclass, int, str, None, a literal, or a tuple,
    dict or union of these. Numbers are of 64 bits. `where` names it in the message.
    """
    if is_dataclass(kind):
        if type(value) is not kind:
            raise ValueError(f"{where} is {_shown(value)}")
        for each in fields(kind):
            check(getattr(value, each.name), each.type, f"{where}.{each.name}")
        return
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if not any(_is(value, each) for each in arguments):
            raise ValueError(f"{where} is {_shown(value)}")
    elif origin is tuple and isinstance(value, tuple):
        for number, item in enumerate(value):
            check(item, arguments[0], f"{where}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            check(key, arguments[0], f"a key of {where}")
            check(item, arguments[1], f"{where}[{_shown(key)}]")
    elif not _is(value, kind):
        raise ValueError(f"{where} is {_shown(value)}")


def _is(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is int:
        return type(value) is int and -INT_MAX <= value <= INT_MAX
    if kind is bool:
        return type(value) is bool
    if kind is str:
        return type(value) is str and len(value) <= TEXT_MAX_CHARS
    return kind in (None, NoneType) and value is None


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value[:80])
    return (
        f"{type(value).__name__} {str(value)[:40]}"
        if isinstance(value, int | float)
        else type(value).__name__
    )
