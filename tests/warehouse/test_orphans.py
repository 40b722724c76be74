"""What retention takes for the files of dead runs, and the runs that live, on an HDFS in memory."""

from dataclasses import replace

import pytest

from fix_memory_hdfs import MemoryHdfs
from headrace.warehouse import retain as retain_module
from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.commitlog import CommitConflictError, CommitLog, StagedChange
from headrace.warehouse.hdfs.client import FileStatus
from headrace.warehouse.hdfs.errors import HdfsFullError, HdfsPermissionError, HdfsUnreachableError
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import DataFile, LoadedRange, Manifest, TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.retain import retain_topic

PATHS = TopicPaths("/data", "t")
WAREHOUSE = WarehouseOptions("hdfs://x", "http://x", "x:1", "http://x")
NOW_MS = 100 * HOUR_MS


def test_a_run_whose_files_a_retention_took_for_those_of_a_dead_one_commits_nothing() -> None:
    """A host that was suspended for a day, or whose clock is another one than the NameNode's: the change was
    committed without its files, and no load behind it could complete it.
    """
    hdfs = MemoryHdfs()
    table = TopicTable("t", WAREHOUSE, hdfs)
    change = Change(table, "load")
    staged = f"{change.staging}/0"
    hdfs.write(staged, b"x")
    assert retain_topic(table).orphans == (change.change_id,)

    def rebase(now: TableState) -> Manifest:
        file = DataFile(PATHS.data_file(0, now.next_sequence, 0), staged, 0, 1, 1, 7)
        return replace(change.manifest(now), ranges=(LoadedRange(0, 0, 10),), files=(file,))

    with pytest.raises(CommitConflictError, match=r"_staging/.*/0, which this change staged, is gone"):
        change.commit(rebase)
    assert table.log.state() == TableState()
    assert table.log.staged_changes() == []
    hdfs.write(staged, b"x")
    assert change.commit(rebase).sequence == 0


def test_a_run_that_goes_on_and_commits_while_a_retention_takes_it_for_dead_keeps_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that was suspended for a day: its load was committed, and its rows were deleted."""
    hdfs = MemoryHdfs()
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: NOW_MS)
    begun = Change(table, "load")
    hdfs.write(f"{begun.staging}/0", b"x")
    look = retain_module.orphans

    def goes_on_after_the_look(staged: list[StagedChange], now_ms: int) -> list[str]:
        found = look(staged, now_ms)
        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "complete", lambda *_: None)
            load(table, begun)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(retain_module, "orphans", goes_on_after_the_look)
        assert retain_topic(table).orphans == ()
    table.log.complete_all(None)
    assert list(table.log.state().files) == [PATHS.data_file(0, 0, 0)]
    assert PATHS.data_file(0, 0, 0) in hdfs.files


def test_what_a_killed_retention_took_of_a_run_that_committed_comes_back() -> None:
    hdfs = MemoryHdfs()
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: NOW_MS)
    begun = Change(table, "load")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLog, "complete", lambda *_: None)
        load(table, begun)
    assert hdfs.rename(begun.staging, PATHS.staged(f"{retain_module.ASIDE}{begun.change_id}"))
    assert retain_topic(table).orphans == ()
    table.log.complete_all(None)
    assert table.log.state().files.keys() <= hdfs.files.keys()
    assert table.log.staged_changes() == []


def test_a_retention_makes_room_where_a_quota_allows_no_more_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked for the NameNode's time by a directory, which was refused, and deleted nothing."""
    hdfs = MemoryHdfs()
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: NOW_MS)
    load(table)
    for age_h in (10, 30):
        hdfs.write(f"{PATHS.trashed(f'compact-{age_h}')}/0.parquet", b"x")
    entries = MemoryHdfs.entries

    def no_more_names(*_: object) -> int:
        raise HdfsFullError("the quota is exhausted")

    def as_hdfs_says(self: MemoryHdfs, path: str) -> list[FileStatus]:
        found = [(each, each.name.partition("compact-")[2]) for each in entries(self, path)]
        # The last change was three hours ago.
        return [each._replace(modified_ms=NOW_MS - int(age or 3) * HOUR_MS) for each, age in found]

    monkeypatch.setattr(MemoryHdfs, "now_ms", no_more_names)
    monkeypatch.setattr(MemoryHdfs, "entries", as_hdfs_says)
    assert retain_topic(table).trash == ("compact-30",)


def test_a_retention_leaves_a_load_alone_that_takes_more_than_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks write below the directory, which stays as old as the load: each try was deleted."""
    hdfs = MemoryHdfs()
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: NOW_MS)
    for change_id in ("long", "dead"):
        hdfs.write(f"{PATHS.staged(change_id)}/hours-attempts/a/_hour=1/0.parquet", b"x")
    entries = MemoryHdfs.entries

    def as_hdfs_says(self: MemoryHdfs, path: str) -> list[FileStatus]:
        age_h = 1 if path.startswith(PATHS.staged("long")) else 30
        return [each._replace(modified_ms=NOW_MS - age_h * HOUR_MS) for each in entries(self, path)]

    monkeypatch.setattr(MemoryHdfs, "entries", as_hdfs_says)
    assert retain_topic(table).orphans == ("dead",)


def test_a_retention_of_a_full_hdfs_makes_room_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wrote its manifest first, which failed: the trash and the files of dead runs stayed."""
    hdfs = MemoryHdfs()
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: NOW_MS)
    load(table)
    trashed, dead = f"{PATHS.trashed('compact-1')}/0.parquet", f"{PATHS.staged('load-2')}/0.parquet"
    hdfs.write(trashed, b"x")
    hdfs.write(dead, b"x")

    def full_while_they_are_there(change: str) -> None:
        if change == "write" and {trashed, dead} & hdfs.files.keys():
            raise HdfsFullError("no DataNode has room for another block")

    hdfs.before = full_while_they_are_there
    done = retain_topic(table, keep_ms=HOUR_MS)
    assert (done.rows, done.trash, done.orphans) == (1, ("compact-1",), ("load-2",))
    assert table.log.state().files == {}


def test_hours_expire_by_the_earlier_of_two_clocks(caplog: pytest.LogCaptureFixture) -> None:
    """A host whose clock was a year ahead deleted the whole table, and emptied the trash in the same run."""
    hdfs = MemoryHdfs(time_ms=HOUR_MS * 3 // 2)
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: NOW_MS)
    load(table)
    trashed = f"{PATHS.trashed('compact-1')}/0.parquet"
    hdfs.write(trashed, b"x")
    done = retain_topic(table, keep_ms=HOUR_MS)
    assert (done.hours, done.rows, done.trash, done.orphans) == ((), 0, (), ())
    assert trashed in hdfs.files and table.log.staged_changes() == []
    assert "this host's clock is 98.5 h ahead of the NameNode's" in caplog.text
    hdfs.time_ms = 2 * HOUR_MS
    assert retain_topic(table, keep_ms=HOUR_MS).hours == (0,)


def test_a_clock_that_is_behind_deletes_nothing_too_early() -> None:
    hdfs = MemoryHdfs(time_ms=NOW_MS)
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: HOUR_MS * 3 // 2)
    load(table)
    assert retain_topic(table, keep_ms=HOUR_MS).hours == ()


def test_a_commit_that_is_refused_leaves_no_files() -> None:
    """Somebody's `_log` belongs to another user: each try of a load, every ten minutes, left a copy of all
    that was to be loaded, for a day.
    """
    hdfs = MemoryHdfs()
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: NOW_MS)

    def refuse(change: str) -> None:
        if change == "rename":
            raise HdfsPermissionError("Permission denied: user=loader, access=WRITE")

    hdfs.before = refuse
    with pytest.raises(HdfsPermissionError):
        load(table)
    assert hdfs.files == {} and table.log.staged_changes() == []
    hdfs.before = lambda _: None
    load(table)
    assert table.log.state().sequence == 0


def test_a_commit_whose_response_was_lost_keeps_its_files() -> None:
    hdfs = MemoryHdfs()
    table = TopicTable("t", WAREHOUSE, hdfs, clock_ms=lambda: NOW_MS)

    def lose(_: str) -> None:
        raise HdfsUnreachableError("no response")

    hdfs.after = lose
    with pytest.raises(HdfsUnreachableError):
        load(table)
    hdfs.after = lambda _: None
    assert [each.sequence for each in table.log.complete_all(None)] == [0]
    assert table.log.state().files.keys() <= hdfs.files.keys()


def load(table: TopicTable, begun: Change | None = None) -> None:
    """Commits a row of the hour 0."""
    change = begun or Change(table, "load")
    table.hdfs.write(f"{change.staging}/0", b"x", overwrite=True)

    def rebase(now: TableState) -> Manifest:
        file = DataFile(PATHS.data_file(0, now.next_sequence, 0), f"{change.staging}/0", 0, 1, 1, 7)
        return replace(change.manifest(now), ranges=(LoadedRange(0, 0, 10),), files=(file,))

    change.commit(rebase)
