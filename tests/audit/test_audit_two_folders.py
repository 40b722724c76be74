"""Two processes that fold into one store: what one of them reads behind the other brings nothing back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fix_audit_reader import LOG_OF_RECORDS, RecordsReader
from fix_audit_world import (
    BEAT_MS,
    DC,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    counted,
    everything_reported,
    heartbeat,
    received,
)
from headrace.audit.findings import Status
from headrace.audit.fold_loop import FoldLoop
from headrace.audit.report.report import report
from headrace.audit.store.place import StorePlace
from headrace.audit.store.store import AuditStore, StoreSharedError
from headrace.audit.topic.reader import Polled
from headrace.audit.topic.records import DATACENTER_TIER, ReceivedRecord
from headrace.audit.topic.recounts import RecountRecord

BATCHES = [Batch(0, 7, 0, index * 5, 5, HOUR_A) for index in range(3)]
LOG, CUT = PartitionBytes(), PartitionBytes()
for each_batch in BATCHES:
    LOG.append(each_batch.encode())
for each_batch in BATCHES[:2]:
    CUT.append(each_batch.encode())


def records() -> list[ReceivedRecord]:
    """A log is counted, and goes back by one batch; the rest is counted again."""
    beat = replace(heartbeat(DATACENTER_TIER, {0: CUT}), beat=2)
    recount = RecountRecord(DATACENTER_TIER, DC, TOPIC, 0, 0, 0, LOG.end, "the log went back")
    again = (recount, *counted(DATACENTER_TIER, {0: CUT}), beat)
    late = [received(each, time_ms=BEAT_MS + 1 + at) for at, each in enumerate(again)]
    return [*everything_reported(BATCHES, {0: LOG}), *late]


RECORDS = records()
OLD_COUNTS = len(RECORDS) - 3
"""How many records come before the recount."""


def statuses(store: AuditStore) -> list[Status]:
    return [each.status for each in report(store, now_ms=NOW_MS).verdicts]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"sqlite:///{tmp_path}/audit.db"


def test_counts_that_a_recount_took_back_do_not_come_again_from_a_process_that_is_behind(url: str) -> None:
    behind = AuditStore(url)
    ahead = AuditStore(url)
    ahead.fold(RECORDS, {LOG_OF_RECORDS: len(RECORDS)})
    assert statuses(ahead) == [Status.LOST]
    with pytest.raises(StoreSharedError, match=r"_audit-0 is folded up to address 9, .* left it at None"):
        behind.fold(RECORDS[:OLD_COUNTS], {LOG_OF_RECORDS: OLD_COUNTS})
    assert statuses(ahead) == [Status.LOST]
    ahead.fold([], {LOG_OF_RECORDS: len(RECORDS) + 1})  # this one goes on
    for each in (behind, ahead):
        each.close()


class RacedReader(RecordsReader):
    """Another process, which is ahead, folds all records before this one's second poll ends."""

    def __init__(self, at: int, loop: FoldLoop, url: str) -> None:
        super().__init__(RECORDS, at, loop.stop)
        self._url = url

    def poll(self, timeout_s: float) -> Polled:
        if self.at == 1:
            other = AuditStore(self._url)
            other.fold(RECORDS[1:], {LOG_OF_RECORDS: len(RECORDS)})
            other.close()
        return super().poll(timeout_s)


def test_a_loop_goes_on_behind_what_another_process_stored_and_says_so(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.audit.fold_loop.RETRY_PAUSE_S", 0.0)
    starts: list[int] = []

    def make_reader(positions: dict[tuple[str, int], int]) -> Any:
        starts.append(positions.get(LOG_OF_RECORDS, 0))
        return RacedReader(starts[-1], loop, url)

    loop = FoldLoop(StorePlace(url), make_reader)
    loop.run()
    assert starts == [0, len(RECORDS)]
    assert "another process folds into the audit store" in caplog.text
    store = AuditStore(url, must_exist=True)
    assert statuses(store) == [Status.LOST]
    store.close()
