"""The gaps of a log, which an administrator accepted with `headrace log set-aside`: ranges of addresses that
were lost, between two segments or at the log's end.

Kept in a file of the partition's folder, replaced atomically. Any other hole between segments is damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.log.errors import damaged
from headrace.log.files import replace_file
from headrace.log.names import GAPS, SEGMENT_SUFFIX, address_of

GAPS_MAX: Final = 1_000
"""Of those that lie before the log's start, which nothing asks for any more: the last ones are kept."""


class Gap(NamedTuple):
    """The lost range [start, end), why, and when it was accepted (wall clock in ms)."""

    start: int
    end: int
    cause: str
    accepted_ms: int


def load(directory: Path) -> tuple[Gap, ...]:
    """Returns the gaps in order. Raises `LogDamagedError` if the file is damaged, `OSError`."""
    path = directory / GAPS
    try:
        values: list[dict[str, Any]] = json.loads(path.read_bytes())["gaps"]
        return tuple(
            sorted(
                Gap(int(each["from"]), int(each["to"]), str(each["cause"]), int(each["accepted_ms"]))
                for each in values
            )
        )
    except FileNotFoundError:
        return ()
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise damaged(path, 0, f"the list of accepted gaps cannot be read ({error})") from None


def save(directory: Path, gaps: Iterable[Gap]) -> None:
    """Replaces the file. Of those before the log's first segment the last `GAPS_MAX` stay; without any of the
    others the log would be damaged there. Raises `OSError`.
    """
    bases = [address_of(path.name, SEGMENT_SUFFIX) for path in directory.glob(f"*{SEGMENT_SUFFIX}")]
    start = min((base for base in bases if base is not None), default=0)
    every = sorted(set(gaps))
    passed = [gap for gap in every if gap.end <= start]
    kept = [*passed[-GAPS_MAX:], *(gap for gap in every if gap.end > start)]
    values = [
        {"from": gap.start, "to": gap.end, "cause": gap.cause, "accepted_ms": gap.accepted_ms} for gap in kept
    ]
    replace_file(directory / GAPS, json.dumps({"gaps": values}, indent=1).encode())


def allows(gaps: Iterable[Gap], end_address: int, next_address: int) -> bool:
    """Whether a segment that ends at `end_address` may be followed by one that begins at `next_address`."""
    return end_address == next_address or any(
        gap.start == end_address and gap.end == next_address for gap in gaps
    )
