"""ApiVersions: what this broker speaks (KIP-35, KIP-511)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from headrace.broker.bodies import Tree
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

Range = tuple[int, int, int]


NAMES_FROM: Final = 3  # versions in which a client names its software
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def respond(request: Request, spoken: Iterable[Range]) -> Tree:
    """Returns the response's tree; `spoken`: (api key, lowest, highest version)."""
    if request.version >= NAMES_FROM and not all(
        _SOFTWARE.fullmatch(text)
        for text in (request.body.client_software_name, request.body.client_software_version)
    ):
        return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": []}
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in spoken],
    }
