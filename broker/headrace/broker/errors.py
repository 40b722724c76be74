"""How a handler says no."""

from __future__ import annotations

from headrace.wire.errors import ErrorCode


class Refused(Exception):
    """The request, or its part for one partition or topic, is answered with `code`; `message` names the way
    out.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message or None
