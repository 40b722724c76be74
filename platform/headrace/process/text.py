"""Text that strangers chose, where people and programs read lines: names of topics and groups, hosts.

Owns what counts as a control character, and what may be the host of an address.
"""

from __future__ import annotations

import re
from typing import Final

HOST_LENGTH_MAX: Final = 253

# Control characters, of which ESC begins a terminal's commands; characters that end a line or turn the
# direction of text; halves of characters, which cannot be encoded.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# A name, or an address of IPv4 or IPv6.
_HOST: Final = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9.:_-]*[A-Za-z0-9:])?")


def escaped(text: str) -> str:
    r"""Returns the text on one line: each control character as `\n`, `\x1b` or `\u2028`."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def has_control(text: str) -> bool:
    """Whether `escaped` would change the text."""
    return _CONTROL.search(text) is not None


def is_host(text: str) -> bool:
    """Whether the text can be the host of an address. No such text means anything else to a program."""
    return len(text) <= HOST_LENGTH_MAX and _HOST.fullmatch(text) is not None
