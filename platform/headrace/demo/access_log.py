"""Parses an access log in Combined Log Format into page views.

Owns the format (httpd.apache.org/docs/2.4/logs.html): a line is an event, at the time of its request. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

LINE_MAX_BYTES: Final = 64 << 10
HOUR_MS: Final = 3_600_000

_QUOTED = rb'"((?:[^"\\]|\\.)*)'
# The last quote may be missing: a truncated log ends within a line, whose request is still complete.
_LINE: Final = re.compile(
    rb"(?P<host>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+)\] "
    + _QUOTED.replace(b"(", b"(?P<request>", 1)
    + rb'" (?P<status>\d{3}) (?P<bytes>\d+|-)'
    + rb"(?: "
    + _QUOTED.replace(b"(", b"(?P<referrer>", 1)
    + rb'"(?: '
    + _QUOTED.replace(b"(", b"(?P<agent>", 1)
    + rb'"?)?)?\s*'
)
_TIME_FORMAT: Final = "%d/%b/%Y:%H:%M:%S %z"
_ANY_TIME: Final = re.compile(rb"\[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]")
# Written out, because strptime's %b follows the locale.
_MONTHS: Final = {
    name: f"{number:02d}"
    for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), start=1)
}


class LoggedView(NamedTuple):
    """One request: its time (Unix ms), and the fields of a `page-view` event except its header."""

    time_ms: int
    fields: dict[str, Any]


def parse_line(line: bytes) -> LoggedView | None:
    """Returns the page view in a line, or None if it is not in Combined (or Common) Log Format."""
    if len(line) > LINE_MAX_BYTES or (match := _LINE.fullmatch(line.rstrip(b"\r\n"))) is None:
        return None
    time_ms = parse_time(match["time"])
    if time_ms is None:
        return None
    method, path, protocol = _split_request(_text(match["request"]))
    size = match["bytes"]
    fields = {
        "remote_host": _text(match["host"]),
        "member_id": _known(match["user"]),
        "method": method,
        "path": path,
        "protocol": protocol,
        "status": int(match["status"]),
        "bytes": None if size == b"-" else int(size),
        "referrer": _known(match["referrer"]),
        "user_agent": _known(match["agent"]),
    }
    return LoggedView(time_ms, fields)


def parse_time(text: bytes) -> int | None:
    """Returns the Unix time in ms of `17/May/2015:10:05:03 +0000`; None if it is not a time."""
    parts = text.split(b"/", 2)
    if len(parts) != 3 or (month := _MONTHS.get(parts[1])) is None:
        return None
    numbers = f"{parts[0].decode(errors='replace')}/{month}/{parts[2].decode(errors='replace')}"
    try:
        moment = datetime.strptime(numbers, _TIME_FORMAT.replace("%b", "%m"))
    except ValueError:
        return None
    return int(moment.timestamp()) * 1000


def count_by_hour(lines: Iterable[bytes]) -> Counter[int]:
    """Counts lines by hour (Unix ms), and those without a time under -1.

    Finds the time without `parse_line`, as an independent check of it.
    """
    hours: Counter[int] = Counter()
    for line in lines:
        match = _ANY_TIME.search(line)
        time_ms = parse_time(match[1]) if match else None
        hours[-1 if time_ms is None else time_ms - time_ms % HOUR_MS] += 1
    return hours


def _split_request(request: str) -> tuple[str, str, str | None]:
    """Splits into method, path and protocol. What is not HTTP (port scans, TLS) becomes the path."""
    words = request.split(" ")
    if len(words) >= 3 and words[-1].startswith("HTTP/"):
        return words[0], " ".join(words[1:-1]), words[-1]
    if len(words) == 2:
        return words[0], words[1], None
    return "-", request, None


def _known(text: bytes | None) -> str | None:
    return None if text in (None, b"-", b"") else _text(text or b"")


def _text(data: bytes) -> str:
    # httpd escapes quotes as \" and other bytes as \xhh. Raw bytes of other servers become \xhh here.
    return data.replace(b'\\"', b'"').decode(errors="backslashreplace")
