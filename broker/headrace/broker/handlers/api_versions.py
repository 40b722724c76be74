"""ApiVersions: what this broker speaks (KIP-35, KIP-511)."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.bodies import Tree
from headrace.wire.errors import ErrorCode

Range = tuple[int, int, int]


def respond(spoken: Iterable[Range]) -> Tree:
    """Returns the response's tree; `spoken`: (api key, lowest, highest version)."""
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in spoken],
    }
