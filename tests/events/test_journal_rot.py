"""A bit that rots in a journal: what it says is refused, and not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client import BatchIdentity
from headrace.events.handovers import HandoverCounts
from headrace.events.journal import Journal
from headrace.events.journal_replay import JournalError, replay

BUCKET_MS = 600_000
NUMBERS = range(8, 24)  # the report's number, and how many bytes are used
WHO: dict[str, str | int] = {"publisher": "p", "bucket_ms": BUCKET_MS}


@pytest.fixture
def journal(tmp_path: Path) -> bytes:
    """Every kind of record."""
    made, counts = Journal(tmp_path / "a.journal", WHO, 5), HandoverCounts(BUCKET_MS)
    first = BatchIdentity("t", 1, 7, 0, 0, 3, 0, 0)
    counts.hand_over("t", 0, 0.0, 3)
    counts.batch_closed(first, 0.0)
    made.begin_report(3)
    made.rewrite(counts)
    for topic, time_ms in (("u", BUCKET_MS), ("t", 1)):
        for _ in range(4):
            made.hand_over(topic, time_ms, time_ms - time_ms % BUCKET_MS, 1)
    made.hand_over("u", 5, 0, -1)
    second = first._replace(base_sequence=3, record_count=4)
    made.batch_closed(second)
    made.batch_renumbered(second, second._replace(producer_epoch=1, base_sequence=0))
    made.finished([1])
    data = made.path.read_bytes()[: made._used]
    made.delete()
    return data


def test_no_bit_of_a_record_or_a_number_can_rot_unseen(journal: bytes) -> None:
    path = Path("a.journal")
    good = replay(path, journal)
    assert [(each.topic, each.handed_over_count) for each in good.counts.states()] == [
        ("t", 7),
        ("u", 4),
        ("u", -1),
    ]
    begin = journal.index(b"}") + 1  # behind the description
    believed = []
    for at in (*NUMBERS, *range(begin, len(journal))):
        for bit in range(8):
            rotten = bytearray(journal)
            rotten[at] ^= 1 << bit
            try:
                found = replay(path, bytes(rotten))
            except JournalError:
                continue
            if (found.report_number, found.counts.states()) != (good.report_number, good.counts.states()):
                believed.append((at, bit))
    assert believed == []
