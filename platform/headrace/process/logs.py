"""The lines of a log: each event begins one line, whatever names and messages it holds.

Without this, the name of a topic could end the line, and write a second one that looks like the broker's own.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from headrace.process.text import escaped

INDENT: Final = "    "


class LineFormatter(logging.Formatter):
    """Escapes control characters; indents the lines of a traceback, which may quote anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(INDENT + escaped(line) for line in text.split("\n"))
