"""The move of an older headrace's files to today's directories, killed and failing at any step."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_memory_hdfs import MemoryHdfs
from fix_parquet import parquet_of
from headrace.warehouse import crash, move
from headrace.warehouse.change import TopicTable
from headrace.warehouse.commitlog import CommitConflictError, CommitLog
from headrace.warehouse.hdfs.errors import HdfsUnreachableError
from headrace.warehouse.layout import HOUR_MS, TopicPaths, parse_hour
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest, TableState
from headrace.warehouse.move import misplaced, move_topic
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.retain import retain_topic
from headrace.warehouse.seal import hours_to_seal, seal_hours

PATHS = TopicPaths("/data", "t")
WAREHOUSE = WarehouseOptions("hdfs://x", "http://x", "x:1", "http://x", audit=False)
START_MS = parse_hour("2026-11-20T22")
HOURS = [START_MS + index * HOUR_MS for index in range(4)]


class Died(BaseException):
    """Stands for SIGKILL."""


def older_load(hdfs: MemoryHdfs, number: int, *, is_older: bool = True) -> None:
    """A load of one file in each hour, as an older headrace did it."""
    log = CommitLog(hdfs, PATHS)
    change_id = f"load-{number}"

    def rebase(now: TableState) -> Manifest:
        files = []
        for index, hour_ms in enumerate(HOURS):
            path = PATHS.data_file(hour_ms, now.next_sequence, index)
            if is_older:
                path = path.replace(PATHS.hour_dir(hour_ms), PATHS.older_hour_dir(hour_ms))
            size_bytes = len(parquet_of(5, f"{number}/{index}"))
            files.append(DataFile(path, f"{PATHS.staged(change_id)}/{index}", hour_ms, 5, size_bytes, 7))
        loaded = LoadedRange(0, number * 20, number * 20 + 20, (HourCount(HOURS[0], 20, 20),))
        return Manifest(now.next_sequence, "load", "t", change_id, 0, "w", (loaded,), files=tuple(files))

    for index in range(len(HOURS)):
        hdfs.write(f"{PATHS.staged(change_id)}/{index}", parquet_of(5, f"{number}/{index}"))
    log.complete(log.commit(change_id, rebase), None)


def table_of(hdfs: MemoryHdfs) -> TopicTable:
    return TopicTable("t", WAREHOUSE, hdfs)


def visible(hdfs: MemoryHdfs) -> dict[str, bytes]:
    return {path: data for path, data in hdfs.files.items() if path.startswith(f"{PATHS.hourly}/")}


def older_table() -> MemoryHdfs:
    hdfs = MemoryHdfs()
    for number in range(3):
        older_load(hdfs, number)
    return hdfs


def check_moved(hdfs: MemoryHdfs, before: TableState, contents: list[bytes]) -> None:
    """Every file is where it belongs, none is lost, and the hours have not changed."""
    log = CommitLog(hdfs, PATHS)
    state = log.state()
    assert set(visible(hdfs)) == set(state.files)
    assert sorted(visible(hdfs).values()) == sorted(contents)
    assert misplaced(state, PATHS) == []
    assert (state.changed, state.ends) == (before.changed, before.ends)
    assert [file.rows for file in state.files.values()] == [file.rows for file in before.files.values()]
    assert log.to_complete() == []


def test_files_move_to_todays_directories() -> None:
    hdfs = older_table()
    before = CommitLog(hdfs, PATHS).state()
    assert f"{PATHS.hourly}/2026/11/20/22/{0:020d}-00000.parquet" in visible(hdfs)
    contents = list(visible(hdfs).values())
    result = move_topic(table_of(hdfs))
    assert (result.sequences, result.hours, result.files) == ((3,), tuple(HOURS), 12)
    assert visible(hdfs)[f"{PATHS.hourly}/dt=2026-11-20/hour=22/{0:020d}-00000.parquet"] == parquet_of(
        5, "0/0"
    )
    check_moved(hdfs, before, contents)
    # The days' directories are left alone, those of months and years are gone.
    assert [entry.name for entry in hdfs.entries(PATHS.hourly)] == ["dt=2026-11-20", "dt=2026-11-21"]
    assert move_topic(table_of(hdfs)).sequences == ()
    manifest = CommitLog(hdfs, PATHS).manifest(3)
    assert Manifest.from_json(manifest.to_json(), "x") == manifest
    # A headrace that does not know moves must not read on: it would count each file twice.
    assert json.loads(manifest.to_json())["format"] == 2


def test_a_seal_stays_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs = older_table()
    monkeypatch.setattr("headrace.warehouse.seal.HdfsClient", lambda *_, **__: contextlib.nullcontext(hdfs))
    seals = seal_hours("http://x", "t", {HOURS[0]: {"complete": True}}, clock_ms=lambda: 1)
    move_topic(table_of(hdfs))
    assert hours_to_seal(CommitLog(hdfs, PATHS).state(), seals, HOURS[1], 0) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(crash.STEPS[2:]), max_size=6))
def test_moves_killed_at_any_step_lose_nothing(steps: list[str]) -> None:
    hdfs = older_table()
    before, contents = CommitLog(hdfs, PATHS).state(), list(visible(hdfs).values())
    for step in [*steps, None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(move, "FILES_AT_ONCE", 5)

            def reached(at: str, step: str | None = step) -> None:
                if at == step:
                    raise Died

            patch.setattr(crash, "reached", reached)
            with contextlib.suppress(Died):
                move_topic(table_of(hdfs))
    check_moved(hdfs, before, contents)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.booleans())
def test_hdfs_failing_at_any_call_loses_nothing(at: int, is_lost_response: bool) -> None:
    hdfs = older_table()
    before, contents = CommitLog(hdfs, PATHS).state(), list(visible(hdfs).values())
    calls = 0

    def fail(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise HdfsUnreachableError("unreachable")

    setattr(hdfs, "after" if is_lost_response else "before", fail)
    with contextlib.suppress(HdfsUnreachableError):
        move_topic(table_of(hdfs))
    hdfs.before = hdfs.after = lambda _: None
    # The next load completes a move that was interrupted after its commit, as it does any other change.
    CommitLog(hdfs, PATHS).complete_all(None)
    state = CommitLog(hdfs, PATHS).state()
    assert set(visible(hdfs)) == set(state.files)
    move_topic(table_of(hdfs))
    check_moved(hdfs, before, contents)


def test_a_load_at_the_same_time_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs = older_table()
    others = iter([True])

    def reached(step: str) -> None:
        if step == "prepared" and next(others, False):
            older_load(hdfs, 3, is_older=False)

    monkeypatch.setattr(crash, "reached", reached)
    assert move_topic(table_of(hdfs)).sequences == (4,)
    state = CommitLog(hdfs, PATHS).state()
    assert set(visible(hdfs)) == set(state.files)
    assert len(state.files) == 16


def test_files_that_another_change_removed_meanwhile_are_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs = older_table()
    others = iter([True])

    def reached(step: str) -> None:
        if step == "prepared" and next(others, False):
            retain_topic(replace(table_of(hdfs), clock_ms=lambda: HOURS[1]), keep_ms=0)

    monkeypatch.setattr(crash, "reached", reached)
    with pytest.raises(CommitConflictError, match="removed files that this one was moving"):
        move_topic(table_of(hdfs))
    result = move_topic(table_of(hdfs))
    assert (result.hours, result.files) == (tuple(HOURS[1:]), 9)
    assert set(visible(hdfs)) == set(CommitLog(hdfs, PATHS).state().files)
