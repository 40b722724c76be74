"""Which hours a compaction takes, where many are closed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from fix_memory_hdfs import MemoryHdfs
from fix_parquet import parquet_of
from headrace.warehouse import compact
from headrace.warehouse.change import TopicTable
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.seal import seal_in

OPTIONS = WarehouseOptions("hdfs://x", "http://x", "x:1", "http://x", audit=False)
PATHS = TopicPaths("/data", "t")
HOURS = [(10 + number) * HOUR_MS for number in range(4)]


def load(log: CommitLog, hours: Iterable[int]) -> None:
    """A load of one file of ten rows of each hour."""
    hours, sequence, data = list(hours), log.state().next_sequence, parquet_of(10)
    files = []
    for number, hour_ms in enumerate(hours):
        staged = f"{PATHS.staged(f'c{sequence}')}/{number}"
        log.hdfs.write(staged, data)
        path = PATHS.data_file(hour_ms, sequence, number)
        files.append(DataFile(path, staged, hour_ms, 10, len(data), 7))
    counts = tuple(HourCount(hour_ms, 10, 10) for hour_ms in hours)
    end = log.state().ends.get(0, 0)
    loaded = LoadedRange(0, end, end + 1_000, counts)
    made = Manifest(sequence, "load", "t", f"c{sequence}", 0, "w", (loaded,), files=tuple(files))
    log.complete(log.commit(made.change_id, lambda _: made), None)


def test_hours_that_cannot_be_compacted_keep_no_later_ones_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late rows stay apart from those that a seal vouches for. Where 64 hours had a file of each, not sealed
    again, no later hour was ever compacted: its small files stayed for good.
    """
    table = TopicTable("t", OPTIONS, MemoryHdfs())
    load(table.log, HOURS)
    proof = {"counts": {"east": {"warehouse": 10}}, "judged_ms": 20 * HOUR_MS}
    seal_in(table.log, dict.fromkeys(HOURS[:2], proof))
    load(table.log, HOURS)
    taken: list[set[int]] = []

    def compacted(_spark: Any, _table: TopicTable, found: compact.Chosen) -> compact.CompactResult:
        taken.append({hour_ms for hour_ms, _, _ in found})
        return compact.CompactResult("t")

    monkeypatch.setattr(compact, "_compacted", compacted)
    monkeypatch.setattr(compact, "HOURS_AT_ONCE", 1)
    spark: Any = None
    compact.compact_topic(spark, table)
    assert taken == [{HOURS[2]}, set()]
    monkeypatch.setattr(compact, "HOURS_AT_ONCE", 3)
    compact.compact_topic(spark, table)
    assert taken[2:] == [{HOURS[2], HOURS[3]}, set()]
