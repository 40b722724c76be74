"""The names of the files in a partition's folder, and which of them a start may remove.

A file is named by the address of its first byte in 20 digits, so that names sort like addresses.
"""

from __future__ import annotations

import re
from typing import Final

SEGMENT_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"  # beside a sealed segment: see `log.index`
CUT_SUFFIX: Final = ".cut"  # what a recovery cut off: see `log.cutting`
ASIDE_SUFFIX: Final = ".aside"  # what `headrace log set-aside` moved
NEW_SUFFIX: Final = ".new"  # a segment that a `set-aside` in progress has made: it will be renamed
TEMPORARY_SUFFIX: Final = ".tmp"
DIGITS: Final = 20

CHECKPOINT: Final = "checkpoint"
PREVIOUS_CHECKPOINT: Final = "checkpoint.previous"
FLUSHED: Final = "flushed"
IDENTITY: Final = "partition.json"
GAPS: Final = "gaps.json"
SET_ASIDE_PLAN: Final = "set-aside.json"

_SINGLE: Final = frozenset({CHECKPOINT, PREVIOUS_CHECKPOINT, FLUSHED, IDENTITY, GAPS, SET_ASIDE_PLAN})
# `.1` and so on: a second file for the same address.
_NUMBERED: Final = re.compile(rf"[0-9]{{{DIGITS}}}(\.log(\.new)?|\.index|(\.cut|\.aside)(\.[0-9]+)?)")


def file_name(address: int, suffix: str) -> str:
    return f"{address:0{DIGITS}d}{suffix}"


def address_of(name: str, suffix: str) -> int | None:
    """Returns the address in the name of a file of this kind; `None` for any other file."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != DIGITS or not (stem.isascii() and stem.isdecimal()):
        return None
    return int(stem)


def is_ours(name: str) -> bool:
    return name in _SINGLE or _NUMBERED.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Whether a crash left this file half written: a whole one would have another name."""
    whole = name.removesuffix(TEMPORARY_SUFFIX)
    return whole != name and is_ours(whole)
