"""Events that are in a table more than once, by guid: found, removed once, and not brought again."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drill.drill_tables import FolderHdfs
from headrace.audit.topic.doubled import DoubledRun
from headrace.warehouse import crash, doubles, unsound
from headrace.warehouse.change import TopicTable
from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.commitlog import CommitConflictError, CommitLog
from headrace.warehouse.decode import ADDRESS_FIELDS
from headrace.warehouse.doubles import dedupe_topic_hour, find_doubles, records_of, removed_offsets
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.report import dedupe_record, load_report
from headrace.warehouse.seal import NotSealedError, hours_to_seal, seal_in, seals
from headrace.warehouse.seal_checks import problems_of_seals
from headrace.warehouse.verify import verify_topic

HOUR = 1_431_860_400_000
Guid = str | bytes | int | list[bytes] | None
Events = list[tuple[int, int, Guid]]
"""(partition, offset, guid) of each row of a file."""


def parquet(rows: Events) -> bytes:
    guids = pa.array([{"guid": guid, "server": "s"} for _, _, guid in rows])
    columns = [guids, pa.array(range(len(rows)))]
    columns += [
        pa.array([partition for partition, _, _ in rows], pa.int32()),
        pa.array([offset for _, offset, _ in rows], pa.int64()),
        pa.array([HOUR * 1_000] * len(rows), pa.timestamp("us", "UTC")),
        pa.array([1] * len(rows), pa.int32()),
    ]
    schema = pa.schema([pa.field("header", guids.type), pa.field("number", pa.int64()), *ADDRESS_FIELDS])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), sink)
    return sink.getvalue()


def table_of(folder: Path, *loads: Events) -> TopicTable:
    """A table with one load for each list of rows, all in one hour."""
    warehouse = WarehouseOptions("hdfs://x", "http://x", "x:1", "http://x", audit=False)
    table = TopicTable("orders", warehouse, FolderHdfs(folder))
    ends: dict[int, int] = {}
    for sequence, rows in enumerate(loads):
        data = parquet(rows)
        path, staged = (
            table.paths.data_file(HOUR, sequence, 0),
            f"{table.paths.staged(f'load-{sequence}')}/0.parquet",
        )
        table.hdfs.write(staged, data)
        ranges = tuple(_range(rows, partition, ends) for partition in sorted({p for p, _, _ in rows}))
        file = DataFile(path, staged, HOUR, len(rows), len(data), 1, checksum=checksum_of(data))
        manifest = Manifest(
            sequence, "load", "orders", f"load-{sequence}", 1, warehouse.name, ranges, files=(file,)
        )
        table.log.commit(manifest.change_id, lambda _now, made=manifest: made)  # type: ignore[misc]
        table.log.complete(manifest, None)
    return table


def _range(rows: Events, partition: int, ends: dict[int, int]) -> LoadedRange:
    """What a load consumed of a partition: from the end of the one before to the last row."""
    offsets = [offset for p, offset, _ in rows if p == partition]
    start, end = ends.get(partition, offsets[0]), offsets[-1] + 1
    ends[partition] = end
    return LoadedRange(partition, start, end, (HourCount(HOUR, len(offsets), len(offsets)),))


def rows_of(table: TopicTable) -> Events:
    found: Events = []
    for file in table.log.state().files.values():
        for row in pq.read_table(io.BytesIO(table.hdfs.read(file.path))).to_pylist():
            found.append((row["_partition"], row["_offset"], row["header"]["guid"]))
    return sorted(found, key=lambda row: row[:2])


FIRST: Events = [(0, offset, f"a{offset}") for offset in range(10, 20)]
AGAIN: Events = [
    (1, 100, "a12"),
    (1, 101, "a13"),
    (1, 110, "a19"),
    (1, 111, "b"),
    (1, 112, "b"),
    (1, 113, None),
]


def test_rows_with_the_guid_of_another_row_are_found_in_all_files_of_the_hour(tmp_path: Path) -> None:
    table = table_of(tmp_path, FIRST, AGAIN, [(1, 200, None)])
    found = find_doubles(table, table.log.state(), HOUR)
    assert (found.events, found.extra, found.problem) == (4, 4, "")
    assert set(found.runs) == {
        DoubledRun(0, 12, 13, False),
        DoubledRun(0, 19, 19, False),
        DoubledRun(1, 111, 111, False),
        DoubledRun(1, 100, 101, True),
        DoubledRun(1, 110, 110, True),
        DoubledRun(1, 112, 112, True),
    }
    (record,) = records_of(found, "hdfs://x/data")
    assert (record.topic, record.hour_ms, record.removed, set(record.runs)) == (
        "orders",
        HOUR,
        0,
        set(found.runs),
    )
    assert find_doubles(table, table.log.state(), HOUR + HOUR_MS).events == 0


def test_a_dedupe_leaves_each_event_once_and_all_counts_agree(tmp_path: Path) -> None:
    table = table_of(tmp_path, FIRST, AGAIN)
    done = dedupe_topic_hour(table, HOUR)
    assert (done.removed, done.problem) == (4, "")
    assert rows_of(table) == [*FIRST, (1, 111, "b"), (1, 113, None)]
    assert verify_topic(table).problems == ()
    state = table.log.state()
    assert (state.written, state.deleted, state.counted) == ({HOUR: 12}, 4, {HOUR: 16})
    assert state.ends == {0: 20, 1: 114}, "the next load goes on where the last one ended"
    manifest = table.log.manifest(done.sequence or 0)
    assert load_report(manifest) is None
    record = dedupe_record(manifest)
    assert record is not None
    assert (record.hour_ms, record.removed) == (HOUR, 4)
    removed = removed_offsets(table.log.manifests())
    assert {partition: offsets.tolist() for partition, offsets in removed.items()} == {
        1: [100, 101, 110, 112]
    }
    assert dedupe_topic_hour(table, HOUR).sequence is None


def test_an_hour_from_which_a_whole_file_went_is_sealed_again(tmp_path: Path) -> None:
    table = table_of(tmp_path, FIRST, [(1, 100, "a12"), (1, 101, "a13")])
    proof = {"counts": {"east": {"warehouse": 12}}}
    assert seal_in(table.log, {HOUR: proof})[HOUR].rows == 12
    done = dedupe_topic_hour(table, HOUR)
    assert done.removed == 2 and rows_of(table) == FIRST
    assert hours_to_seal(table.log.state(), seals(table.hdfs, table.paths), HOUR + 2 * HOUR_MS, 0) == [HOUR]
    again = seal_in(table.log, {HOUR: proof})[HOUR]
    assert (again.version, again.rows, again.previous_rows) == (2, 10, 12)
    manifests, state = table.log.manifests(), table.log.state()
    assert problems_of_seals(table.hdfs, table.paths, manifests, state) == []


def test_a_file_with_other_bytes_is_not_written_again(tmp_path: Path) -> None:
    """Its changed values would get a checksum that fits, and the hour would be sealed with them."""
    table = table_of(tmp_path, FIRST, AGAIN)
    file = max(table.log.state().files.values(), key=lambda file: file.path)
    changed = parquet([*AGAIN[:3], (1, 111, "c"), (1, 112, "c"), AGAIN[5]])
    assert len(changed) == file.size_bytes
    table.hdfs.write(file.path, changed, overwrite=True)
    done = dedupe_topic_hour(table, HOUR)
    assert f"{file.path} has other bytes than when it was written, so the hour stays" in done.problem
    assert (done.sequence, done.removed) == (None, 0)
    with pytest.raises(NotSealedError, match="other bytes than when it was written"):
        seal_in(table.log, {HOUR: {"counts": {"east": {"warehouse": 16}}}})


def test_a_file_that_changes_after_it_was_checked_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dedupe reads it once more: rot, or a change, between the two would get a checksum that fits."""
    table = table_of(tmp_path, FIRST, AGAIN)
    file = max(table.log.state().files.values(), key=lambda file: file.path)
    check, changed = unsound.refusal_of, parquet([*AGAIN[:3], (1, 111, "c"), (1, 112, "c"), AGAIN[5]])

    def checked(table: TopicTable, checked: DataFile) -> str:
        found = check(table, checked)
        if checked == file:
            table.hdfs.write(file.path, changed, overwrite=True)
        return found

    monkeypatch.setattr(doubles, "refusal_of", checked)
    done = dedupe_topic_hour(table, HOUR)
    assert f"{file.path} has other bytes than when it was written, so the hour stays" in done.problem
    assert (done.sequence, done.removed) == (None, 0)
    assert file.path in table.log.state().files and not table.log.staged_changes()
    with pytest.raises(NotSealedError, match="other bytes than when it was written"):
        seal_in(table.log, {HOUR: {"counts": {"east": {"warehouse": 16}}}})


@pytest.mark.parametrize("nothing", [None, "", str(UUID(int=0)), b"", bytes(16), [b"a"]])
def test_events_without_guids_are_left_alone(tmp_path: Path, nothing: Guid) -> None:
    """Clients fill a field that they know nothing of with their language's empty value: a dedupe would have
    removed all events of the hour but one.
    """
    table = table_of(tmp_path, [(0, offset, nothing) for offset in range(5)])
    assert find_doubles(table, table.log.state(), HOUR).events == 0
    assert dedupe_topic_hour(table, HOUR).sequence is None


def test_guids_that_are_no_texts_are_compared(tmp_path: Path) -> None:
    """A schema may have them as 16 bytes. Each verification of such a table failed: its files were called
    unreadable.
    """
    one, other = UUID(int=2**127 + 1).bytes, UUID(int=2**127 + 2).bytes
    table = table_of(tmp_path, [(0, 10, one), (0, 11, other)], [(0, 12, one), (0, 13, None)])
    assert verify_topic(table).problems == ()
    assert find_doubles(table, table.log.state(), HOUR).extra == 1
    assert dedupe_topic_hour(table, HOUR).removed == 1
    numbers = table_of(tmp_path / "numbers", [(0, 10, 7), (0, 11, 8)], [(0, 12, 7)])
    assert find_doubles(numbers, numbers.log.state(), HOUR).extra == 1


def test_any_rows_are_there_once_by_guid_afterwards(tmp_path: Path) -> None:
    rng = random.Random(7)
    for number in range(12):
        offsets = rng.sample(range(1_000), 60)
        rows: Events = [(rng.randrange(2), at, rng.choice([None, f"g{rng.randrange(40)}"])) for at in offsets]
        rows.sort(key=lambda row: row[:2])
        table = table_of(tmp_path / str(number), rows[:20], rows[20:45], rows[45:])
        dedupe_topic_hour(table, HOUR)
        left = rows_of(table)
        guids = [guid for *_, guid in left if guid]
        assert sorted(set(guids)) == sorted(guids) == sorted({guid for *_, guid in rows if guid})
        assert [row for row in left if row[2] is None] == sorted(
            (row for row in rows if row[2] is None), key=lambda row: row[:2]
        )
        firsts = {guid: min(r[:2] for r in rows if r[2] == guid) for guid in guids}
        assert {row[2]: row[:2] for row in left if row[2]} == firsts


class Died(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("step", ["prepared", "committed", "moved-one", "moved", "published"])
def test_a_dedupe_that_is_killed_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    table = table_of(tmp_path, FIRST, AGAIN)
    told: list[Manifest] = []
    table = replace(table, publish=told.append)

    def reached(now: str) -> None:
        if now == step:
            raise Died(now)

    with monkeypatch.context() as patched:
        patched.setattr(crash, "reached", reached)
        with pytest.raises(Died):
            dedupe_topic_hour(table, HOUR)
    dedupe_topic_hour(table, HOUR)
    assert rows_of(table) == [*FIRST, (1, 111, "b"), (1, 113, None)]
    assert verify_topic(table).problems == ()
    assert told and all(dedupe_record(manifest) is not None for manifest in told)
    assert len({manifest.sequence for manifest in told}) == 1


def test_a_dedupe_that_comes_second_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path, FIRST, AGAIN)
    commit, calls = CommitLog.commit, [0]

    def overtaken(self: CommitLog, change_id: str, rebase: Callable[..., Manifest]) -> Manifest:
        calls[0] += 1
        if calls[0] == 1:
            dedupe_topic_hour(table, HOUR)
        return commit(self, change_id, rebase)

    monkeypatch.setattr(CommitLog, "commit", overtaken)
    with pytest.raises(CommitConflictError, match="nothing is removed"):
        dedupe_topic_hour(table, HOUR)
    assert rows_of(table) == [*FIRST, (1, 111, "b"), (1, 113, None)]
    assert np.array_equal(removed_offsets(table.log.manifests())[1], [100, 101, 110, 112])
