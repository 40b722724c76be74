"""The last lines of a unit's log. Owns reading them within a bound, whatever the file holds."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import Final

LOG_TAIL_LINES: Final = 15
LOG_TAIL_BYTES: Final = 16 << 10
LOG_LINES_MAX: Final = 10_000
LOG_MAX_BYTES: Final = 20 << 20
_LINE_BYTES: Final = 200


def collapsed(text: str) -> str:
    """The text with each run of equal lines as one line, and how often it came."""
    lines = []
    for line, same in groupby(text.splitlines()):
        count = len(list(same))
        lines.append(line if count == 1 else f"{line}  ({count} times)")
    return "\n".join(lines)


def log_tail(path: Path, line_count: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, empty if there is none; reads at most `LOG_MAX_BYTES` of it."""
    length = min(max(LOG_TAIL_BYTES, line_count * _LINE_BYTES), LOG_MAX_BYTES)
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - length))
            text = file.read(length).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-line_count:])
