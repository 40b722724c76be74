"""What a registry's client makes of answers: anything may listen at the address that it was given.

Functions of an answer's content raise `LookupError`, `TypeError` or `ValueError` for what no registry says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from headrace.registry.errors import RegistryError

T = TypeVar("T")


def content_of(response: httpx.Response) -> Any:
    """Returns a successful answer's content. Raises `RegistryError`."""
    try:
        content = response.json()
    except (ValueError, RecursionError):
        content = None
    if response.is_success and content is not None:
        return content
    if isinstance(content, dict) and isinstance(content.get("error_code"), int):
        raise RegistryError(content["error_code"], str(content.get("message", "")))
    raise RegistryError(
        response.status_code, f"unexpected response from {response.url}: {response.text[:200]!r}"
    )


def list_of(kind: type[T]) -> Callable[[Any], list[T]]:
    """Returns what reads a list of such items."""

    def read(content: Any) -> list[T]:
        if not isinstance(content, list) or not all(isinstance(each, kind) for each in content):
            raise TypeError
        return content

    return read


def level_in(content: Any) -> str:
    """Returns the compatibility level."""
    return str(content["compatibilityLevel"])


def problems_in(content: Any) -> list[str]:
    """Returns the incompatibilities."""
    if content["is_compatible"]:
        return []
    return [str(message) for message in content.get("messages") or ["incompatible"]]
