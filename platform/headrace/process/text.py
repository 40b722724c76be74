"""Text that strangers chose, where people and programs read it: names of topics and groups, records, hosts.

Owns what counts as a control character, and what may be the host of an address.
"""

from __future__ import annotations

import json
import re
import socket
from typing import Final

HOST_LENGTH_MAX: Final = 253

# Control characters, of which ESC begins a terminal's commands; characters that end a line or turn the
# direction of text; characters that are not seen at all; halves of characters, which cannot be encoded.
_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
# A name, or an address of IPv4 or IPv6.
_HOST: Final = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9.:_-]*[A-Za-z0-9:])?")


def counted(count: int, one: str, many: str = "") -> str:
    """`1 copy`, `1,200 copies`. `many`: by default, `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def escaped(text: str) -> str:
    r"""Returns the text on one line: each control character as `\n`, `\x1b` or `\u2028`."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def escaped_lines(text: str) -> str:
    """Like `escaped`, for text of several lines: tabs and line ends stay."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in "\t\n" else repr(found[0])[1:-1], text)


def escaped_json(document: str) -> str:
    """Returns the JSON document with the same values, and each control character in it as `\\u001b`.

    The line ends between its parts stay; inside of a string, JSON has no raw ones.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], document)


def has_control(text: str) -> bool:
    """Whether `escaped` would change the text."""
    return _CONTROL.search(text) is not None


def is_host(text: str) -> bool:
    """Whether the text can be the host of an address. No such text means anything else to a program."""
    return len(text) <= HOST_LENGTH_MAX and _HOST.fullmatch(text) is not None


def is_wildcard(host: str) -> bool:
    """Whether the host stands for every address of a machine (0.0.0.0, ::): one listens there, and nobody can
    connect there from elsewhere."""
    family, read = (socket.AF_INET6, host.strip("[]")) if ":" in host else (socket.AF_INET, host)
    try:
        packed = socket.inet_pton(family, read) if family == socket.AF_INET6 else socket.inet_aton(read)
    except (OSError, ValueError):
        return False  # a name
    return not any(packed)
