"""The commit log on an HDFS in memory that fails at any call or loses responses, with two runs at once."""

import contextlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_memory_hdfs import MemoryHdfs
from fix_parquet import parquet_of
from headrace.warehouse import commitlog, crash
from headrace.warehouse import seal as seal_module
from headrace.warehouse.change import TopicTable
from headrace.warehouse.commitlog import CommitConflictError, CommitLog
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsUnreachableError
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import (
    DataFile,
    HourCount,
    LoadedRange,
    Manifest,
    ManifestError,
    TableState,
    digest_of,
)
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.retain import retain_topic
from headrace.warehouse.seal import NotSealedError, Seal

PATHS = TopicPaths("/data", "t")


class Died(BaseException):
    """Stands for SIGKILL."""


def run_load(hdfs: HdfsClient, change_id: str, published: list[int], *, addresses: int = 10) -> Manifest:
    """A load as `loading` does it, without Spark: two files of one hour."""
    log = CommitLog(hdfs, PATHS)
    log.complete_all(lambda manifest: published.append(manifest.sequence))
    state = log.state()
    start = state.ends.get(0, 0)
    crash.reached("planned")
    staged = [f"{PATHS.staged(change_id)}/{number}" for number in range(2)]
    for number, path in enumerate(staged):
        hdfs.write(path, parquet_of(addresses // 2, f"{change_id}/{number}"))
    crash.reached("staged")

    def rebase(now: TableState) -> Manifest:
        if now.ends != state.ends:
            raise CommitConflictError("another load came first")
        files = tuple(
            DataFile(
                PATHS.data_file(0, now.next_sequence, number),
                path,
                0,
                addresses // 2,
                len(parquet_of(addresses // 2, f"{change_id}/0")),
                7,
            )
            for number, path in enumerate(staged)
        )
        loaded = LoadedRange(0, start, start + addresses, (HourCount(0, addresses, addresses),))
        return Manifest(now.next_sequence, "load", "t", change_id, 0, "w", (loaded,), files=files)

    manifest = log.commit(change_id, rebase)
    log.complete(manifest, lambda manifest: published.append(manifest.sequence))
    return manifest


def check(hdfs: MemoryHdfs, published: list[int]) -> TableState:
    """Everything committed is in its place once, nothing else is visible, and all of it was published."""
    log = CommitLog(hdfs, PATHS)
    state = log.state()
    visible = {name: data for name, data in hdfs.files.items() if name.startswith(f"{PATHS.hourly}/")}
    assert set(visible) == set(state.files)
    assert len(set(visible.values())) == len(visible)
    assert sum(each.rows for each in state.files.values()) == state.ends.get(0, 0)
    assert set(published) == set(range(state.next_sequence))
    assert all(change.manifest is None for change in log.staged_changes())
    return state


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*crash.STEPS, None]), min_size=1, max_size=8))
def test_runs_killed_at_any_step_lose_and_duplicate_nothing(steps: list[str | None]) -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    for number, step in enumerate(steps):
        with pytest.MonkeyPatch.context() as patch:

            def reached(at: str, step: str | None = step) -> None:
                if at == step:
                    raise Died

            patch.setattr(crash, "reached", reached)
            try:
                run_load(hdfs, f"c{number}", published)
            except Died:
                assert step is not None
    run_load(hdfs, "last", published)
    check(hdfs, published)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 60), st.booleans())
def test_hdfs_failing_at_any_call_loses_and_duplicates_nothing(at: int, is_lost_response: bool) -> None:
    """A call fails before it takes effect, or afterwards: its response is lost."""
    hdfs, published = MemoryHdfs(), list[int]()
    run_load(hdfs, "first", published)
    calls = 0

    def fail(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise HdfsUnreachableError("unreachable")

    setattr(hdfs, "after" if is_lost_response else "before", fail)
    with contextlib.suppress(HdfsUnreachableError):
        run_load(hdfs, "second", published)
    hdfs.before = hdfs.after = lambda _: None
    run_load(hdfs, "third", published)
    check(hdfs, published)


def test_only_one_of_two_loads_at_the_same_time_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    overtaken = iter([True])

    def reached(step: str) -> None:
        if step == "prepared" and next(overtaken, False):
            run_load(hdfs, "fast", published)

    monkeypatch.setattr(crash, "reached", reached)
    with pytest.raises(CommitConflictError):
        run_load(hdfs, "slow", published)
    state = check(hdfs, published)
    assert state.next_sequence == 1


def test_two_runs_may_complete_the_same_change(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    others = iter([True])

    def reached(step: str) -> None:
        if step == "moved-one" and next(others, False):
            run_load(hdfs, "other", published)

    monkeypatch.setattr(crash, "reached", reached)
    run_load(hdfs, "one", published)
    assert check(hdfs, published).next_sequence == 2


def test_files_that_are_removed_before_they_have_moved_do_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load commits after a retention has begun, and dies before its files are in their places."""
    hdfs, published = MemoryHdfs(), list[int]()
    run_load(hdfs, "first", published)
    complete_all = CommitLog.complete_all

    def then_a_load_dies(self: CommitLog, publish: commitlog.Publish | None) -> list[Manifest]:
        completed = complete_all(self, publish)
        monkeypatch.setattr(CommitLog, "complete_all", complete_all)
        with monkeypatch.context() as patch:

            def reached(step: str) -> None:
                if step == "committed":
                    raise Died

            patch.setattr(crash, "reached", reached)
            with pytest.raises(Died):
                run_load(hdfs, "second", published)
        return completed

    monkeypatch.setattr(CommitLog, "complete_all", then_a_load_dies)
    warehouse = WarehouseOptions("hdfs://x", "http://x", "x:1", "http://x", audit=False)
    table = TopicTable("t", warehouse, hdfs, lambda manifest: published.append(manifest.sequence))
    assert retain_topic(table, keep_ms=HOUR_MS).rows == 20
    run_load(hdfs, "third", published)
    visible = {name for name in hdfs.files if name.startswith(f"{PATHS.hourly}/")}
    assert visible == set(CommitLog(hdfs, PATHS).state().files), "a removed file came back"
    assert set(published) == {0, 1, 2, 3}


def test_a_folder_that_a_retention_finds_empty_is_made_again_for_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    rename, folder = MemoryHdfs.rename, PATHS.hour_dir(0)
    emptied = iter([True])

    def as_hdfs_does(self: MemoryHdfs, source: str, target: str) -> bool:
        if target.startswith(folder) and next(emptied, False):
            assert self.delete_empty(folder)
        return target.rpartition("/")[0] in self.dirs and rename(self, source, target)

    monkeypatch.setattr(MemoryHdfs, "rename", as_hdfs_does)
    run_load(hdfs, "one", published)
    check(hdfs, published)


def test_the_response_to_a_commit_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    rename = MemoryHdfs.rename
    lost = iter([True])

    def response_lost(self: MemoryHdfs, source: str, target: str) -> bool:
        done = rename(self, source, target)
        # The client repeats the call, and finds the name taken by its own first try.
        return rename(self, source, target) if target.endswith(".json") and next(lost, False) else done

    monkeypatch.setattr(MemoryHdfs, "rename", response_lost)
    assert run_load(hdfs, "c", published).sequence == 0
    check(hdfs, published)


def test_a_written_state_replaces_the_manifests_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "STATE_EVERY", 4)
    hdfs, published = MemoryHdfs(), list[int]()
    for number in range(10):
        run_load(hdfs, f"c{number}", published)
    assert {name for name in hdfs.files if name.endswith("state.json")} == {PATHS.state(3), PATHS.state(7)}
    state = check(hdfs, published)
    read: list[str] = []

    def noted_read(path: str, **part: int) -> bytes:
        read.append(path)
        return MemoryHdfs.read(hdfs, path, **part)

    monkeypatch.setattr(hdfs, "read", noted_read)
    assert CommitLog(hdfs, PATHS).state() == state
    assert read == [PATHS.state(7), PATHS.manifest(8), PATHS.manifest(9)]


def test_what_a_dead_run_left_does_not_make_the_next_ones_read_the_whole_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commitlog, "INCOMPLETE_MAX", 8)
    hdfs, published = MemoryHdfs(), list[int]()
    for number in range(40):
        run_load(hdfs, f"c{number}", published)
    hdfs.write(f"{PATHS.staged('orphan')}/0", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(crash, "reached", lambda step: _die_at(step, "committed"))
        with pytest.raises(Died):
            run_load(hdfs, "last", published)
    read, reads = MemoryHdfs.read, list[str]()

    def noted(self: MemoryHdfs, path: str, **part: int) -> bytes:
        reads.append(path)
        return read(self, path, **part)

    monkeypatch.setattr(MemoryHdfs, "read", noted)
    staged = CommitLog(hdfs, PATHS).staged_changes()
    found = [(each.change_id, each.manifest and each.manifest.sequence) for each in staged]
    assert found == [("last", 40), ("orphan", None)]
    assert len(reads) == 8, reads


def _die_at(step: str, at: str) -> None:
    if step == at:
        raise Died


def test_a_run_killed_in_the_middle_of_any_write_leaves_nothing_that_stops_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HDFS shows a file from its first byte on: a loader killed while it writes leaves an empty one."""
    monkeypatch.setattr(commitlog, "STATE_EVERY", 1)
    whole_write = MemoryHdfs.write
    for fatal in range(20):
        hdfs, published = MemoryHdfs(), list[int]()
        run_load(hdfs, "a", published)
        writes = iter(range(20))

        def cut_off(
            self: MemoryHdfs, path: str, data: bytes, *, overwrite: bool = False, at: int = fatal
        ) -> None:
            dies = next(writes) == at  # noqa: B023
            whole_write(self, path, b"" if dies else data, overwrite=overwrite)
            if dies:
                raise Died

        with monkeypatch.context() as patch:
            patch.setattr(MemoryHdfs, "write", cut_off)
            try:
                run_load(hdfs, "b", published)
            except Died:
                is_last = False
            else:
                is_last = True
        run_load(hdfs, "c", published)
        check(hdfs, published)
        if is_last:
            assert fatal == 4, "two data files, the manifest and the state were each cut off once"
            return
    raise AssertionError("a load never ended")


def test_a_state_that_was_cut_off_is_passed_over_and_then_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "STATE_EVERY", 4)
    hdfs, published = MemoryHdfs(), list[int]()
    for number in range(7):
        run_load(hdfs, f"c{number}", published)
    # What a loader of an older headrace left, killed while it wrote the state in its place.
    hdfs.files[PATHS.state(7)] = b'{"format": 1, "sequ'
    run_load(hdfs, "c7", published)
    assert TableState.from_json(hdfs.files[PATHS.state(7)], "state").sequence == 7
    hdfs.files[PATHS.state(7)] = hdfs.files[PATHS.state(3)] = b""
    assert check(hdfs, published).sequence == 7
    run_load(hdfs, "c8", published)


def test_a_missing_manifest_is_an_error() -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    for number in range(3):
        run_load(hdfs, f"c{number}", published)
    del hdfs.files[PATHS.manifest(1)]
    with pytest.raises(ManifestError, match=r"/0*1\.json is missing"):
        CommitLog(hdfs, PATHS).state()
    assert CommitLog(hdfs, PATHS).broken_links() == [f"{PATHS.manifest(1)} is missing"]


def edited(hdfs: MemoryHdfs, sequence: int) -> bytes:
    """A manifest with another row count: `to_address` moved over records, for example."""
    return hdfs.files[PATHS.manifest(sequence)].replace(b'"to_address": ', b'"to_address": 1')


@pytest.mark.parametrize("changed", ["edited", "swapped"])
def test_a_manifest_that_was_changed_later_is_named(changed: str) -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    for number in range(4):
        run_load(hdfs, f"c{number}", published)
    assert CommitLog(hdfs, PATHS).broken_links() == []
    other = edited(hdfs, 2) if changed == "edited" else hdfs.files[PATHS.manifest(1)]
    hdfs.files[PATHS.manifest(2)] = other
    log = CommitLog(hdfs, PATHS)
    [*_, problem] = log.broken_links()
    assert problem.startswith(f"{PATHS.manifest(2)} is not what it was when {PATHS.manifest(3)} was written")
    with pytest.raises(ManifestError, match="restore it from a backup"):
        log.state()
    with pytest.raises(ManifestError):
        run_load(hdfs, "c4", published)


def test_manifests_of_an_older_headrace_have_no_chain() -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    for number in range(3):
        run_load(hdfs, f"c{number}", published)
    for sequence in range(3):
        data = json.loads(hdfs.files[PATHS.manifest(sequence)])
        data.pop("previous", None)
        hdfs.files[PATHS.manifest(sequence)] = json.dumps(data).encode()
    assert check(hdfs, published).sequence == 2
    run_load(hdfs, "c3", published)
    assert json.loads(hdfs.files[PATHS.manifest(3)])["previous"] == digest_of(hdfs.files[PATHS.manifest(2)])


# --- seals ---


def seal(hdfs: MemoryHdfs) -> Seal:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal_module, "HdfsClient", lambda *_, **__: contextlib.nullcontext(hdfs))
        return seal_module.seal_hour("http://x", "t", 0, {}, clock_ms=lambda: 1)


@pytest.mark.parametrize("change", ["delete", "cut", "add", "none"])
def test_an_hour_is_sealed_only_while_its_folder_holds_just_the_files_of_the_log(change: str) -> None:
    hdfs, published = MemoryHdfs(), list[int]()
    run_load(hdfs, "c0", published)
    first, *_ = sorted(CommitLog(hdfs, PATHS).state().files)
    stray = f"{PATHS.hour_dir(0)}/copy-of-a-file.parquet"
    problem = {
        "delete": f"{first} is missing (5 rows)",
        "cut": f"{first} has 1 bytes, its manifest has {len(parquet_of(5, 'c0/0'))}",
        "add": f"{stray} is in no manifest",
    }.get(change)
    if change == "delete":
        del hdfs.files[first]
    elif change == "cut":
        hdfs.files[first] = b"c"
    elif change == "add":
        hdfs.files[stray] = b"c0/0"
    if problem is None:
        assert seal(hdfs).rows == 10
        return
    with pytest.raises(NotSealedError, match=re.escape(problem)):
        seal(hdfs)
    assert not [path for path in hdfs.files if path.startswith(PATHS.sealed)]
