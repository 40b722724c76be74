"""The error by which handlers refuse a request, or a part of it."""

from __future__ import annotations

from typing import Final

from headrace.broker.bodies import Tree
from headrace.wire.errors import ErrorCode

MESSAGE_MAX: Final = 4_000  # characters: older versions of the protocol have 15 bits for a text's length


class Refused(Exception):
    """The request, or its part for one partition or topic, gets the error `code`; `message` says why, and
    what to do instead.
    """

    def __init__(self, code: ErrorCode, message: str = "", *, record_index: int | None = None) -> None:
        """`record_index`: the record of a produced batch that is the cause (KIP-467)."""
        if len(message) > MESSAGE_MAX:
            message = f"{message[:MESSAGE_MAX]}…"
        super().__init__(message or code.name)
        self.code = code
        self.message = message or None
        self.record_index = record_index

    def kept(self) -> Refused:
        """Returns this error to be kept as a value: without its traceback, whose frames hold the request, and
        often the place where the error is kept. Such a circle lives until the garbage collector comes by.
        """
        self.__traceback__ = self.__context__ = None
        return self

    @property
    def fields(self) -> Tree:
        """The error's fields of a response's tree."""
        return {"error_code": self.code, "error_message": self.message}
