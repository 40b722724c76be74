"""The accepted gaps of a mirrored topic, as the text of its setting `headrace.mirror.accepted.gaps`. Pure.

The command `headrace mirror accept-gap` writes the setting; the mirror and the broker read it to resume a
copy after a gap.

    0:1048576-4194304,3:0-65536        partition : first missing address - address at which the copy resumes
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

SETTING: Final = "headrace.mirror.accepted.gaps"
GAPS_MAX: Final = 1_000  # of one topic, over its lifetime
_GAP: Final = re.compile(r"(\d{1,9}):(\d{1,19})-(\d{1,19})", re.ASCII)


class AcceptedGap(NamedTuple):
    """Addresses [from, to) that a partition of the copy will never hold; `partition` is its number there."""

    partition: int
    from_address: int
    to_address: int

    @property
    def size_bytes(self) -> int:
        return self.to_address - self.from_address


def parse(text: str) -> tuple[AcceptedGap, ...]:
    """Reads the setting. Raises `ValueError` with the expected form."""
    gaps = []
    for word in text.split(",") if text else []:
        matched = _GAP.fullmatch(word)
        gap = AcceptedGap(*map(int, matched.groups())) if matched else None
        if gap is None or gap.size_bytes <= 0:
            raise ValueError(f"{word!r} is not PARTITION:FROM-TO with FROM before TO")
        gaps.append(gap)
    if len(gaps) > GAPS_MAX:
        raise ValueError(f"{len(gaps)} gaps; a topic may have {GAPS_MAX}")
    return tuple(gaps)


def to_text(gaps: Iterable[AcceptedGap]) -> str:
    return ",".join(f"{gap.partition}:{gap.from_address}-{gap.to_address}" for gap in gaps)


def passed(gaps: Iterable[AcceptedGap], partition: int, end_address: int) -> tuple[AcceptedGap, ...]:
    """Returns the gaps before the end of a copy's partition, in order.

    A gap that grew before the copy passed it was accepted twice: only the larger one is returned.
    """
    found: dict[int, AcceptedGap] = {}
    for gap in sorted(gaps):
        if gap.partition == partition and gap.to_address <= end_address:
            found[gap.from_address] = gap
    return tuple(found.values())
