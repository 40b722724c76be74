"""Puts something in the place of a name for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_NOTHING: Final = object()


@contextmanager
def put(owner: Any, name: str, instead: Any) -> Iterator[None]:
    """`owner`: a module or a class; without this name it has none afterwards, either. Raises
    `AttributeError` if neither it nor its methods know the name: what is patched was renamed since.
    """
    if not hasattr(owner, name) and not any(
        name in each.__code__.co_names for each in vars(owner).values() if hasattr(each, "__code__")
    ):
        raise AttributeError(f"{owner.__name__} has no {name}")
    real = vars(owner).get(name, _NOTHING)
    setattr(owner, name, instead)
    try:
        yield
    finally:
        if real is _NOTHING:
            delattr(owner, name)
        else:
            setattr(owner, name, real)
