"""The gaps of copies that somebody has accepted, as the text of a copied topic's setting.

Owns the words of the setting `headrace.mirror.accepted.gaps`: who accepts (`headrace mirror accept-gap`), the
mirror that asks where it may go on, and the broker that lets it, all read the same. Pure.

    0:1048576-4194304,3:0-65536        partition : first address that is missing - where the copy goes on
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

SETTING: Final = "headrace.mirror.accepted.gaps"
GAPS_MAX: Final = 1_000  # of one topic, over its life
_GAP: Final = re.compile(r"(\d{1,9}):(\d{1,19})-(\d{1,19})", re.ASCII)


class AcceptedGap(NamedTuple):
    """Addresses [from, to) that a copy's partition (the copy's number, not the source's) will never hold."""

    partition: int
    from_address: int
    to_address: int

    @property
    def size_bytes(self) -> int:
        return self.to_address - self.from_address


def parse(text: str) -> tuple[AcceptedGap, ...]:
    """Raises `ValueError` with what is expected."""
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


def skipped(gaps: Iterable[AcceptedGap], partition: int, end_address: int) -> tuple[AcceptedGap, ...]:
    """Those that a copy's partition that ends at `end_address` has left behind, in order.

    A gap that grew before it was passed was accepted again: the larger one counts.
    """
    passed: dict[int, AcceptedGap] = {}
    for gap in sorted(gaps):
        if gap.partition == partition and gap.to_address <= end_address:
            passed[gap.from_address] = gap
    return tuple(passed.values())
