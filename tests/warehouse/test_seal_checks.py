"""Seals that were changed after they were written are refused by readers, and named by `verify`."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fix_memory_hdfs import MemoryHdfs
from fix_parquet import parquet_of
from headrace.warehouse import seal as seal_module
from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs.errors import HdfsDamagedError
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.manifest import (
    DataFile,
    HourCount,
    LoadedRange,
    Manifest,
    ManifestError,
    TableState,
)
from headrace.warehouse.seal import NotSealedError, Seal, due_hours, seal_in, seals
from headrace.warehouse.seal_checks import problems_of_seals

PATHS = TopicPaths("/data", "t")
HOUR = 10 * HOUR_MS
GOLDEN = Path(__file__).parents[1] / "golden"

Edit = Callable[[dict[str, Any]], None]


def load(hdfs: MemoryHdfs, rows: int = 79, hour_ms: int = HOUR) -> DataFile:
    """A load of one file of one hour."""
    log = CommitLog(hdfs, PATHS)
    sequence, data = log.state().next_sequence, parquet_of(rows, f"file {rows}")
    change_id = f"c{sequence}"
    staged = f"{PATHS.staged(change_id)}/0"
    hdfs.write(staged, data)
    path, checksum = PATHS.data_file(hour_ms, sequence, 0), checksum_of(data)
    file = DataFile(path, staged, hour_ms, rows, len(data), 7, checksum=checksum)

    def rebase(now: TableState) -> Manifest:
        end = now.ends.get(0, 0)
        loaded = LoadedRange(0, end, end + 1_000, (HourCount(hour_ms, rows, rows),))
        return Manifest(sequence, "load", "t", change_id, 0, "w", (loaded,), files=(file,))

    log.complete(log.commit(change_id, rebase), None)
    return file


def compact(hdfs: MemoryHdfs) -> None:
    """All files of the hour become one."""
    log = CommitLog(hdfs, PATHS)
    state = log.state()
    old = state.hours()[HOUR]
    rows = sum(file.rows for file in old)
    staged = f"{PATHS.staged('compact')}/0"
    data = parquet_of(rows)
    hdfs.write(staged, data)
    path = PATHS.data_file(HOUR, state.next_sequence, 0)
    file = DataFile(path, staged, HOUR, rows, len(data), 7, checksum=checksum_of(data))
    removed = tuple(each.path for each in old)
    made = Manifest(state.next_sequence, "compact", "t", "compact", 0, "w", files=(file,), removed=removed)
    log.complete(log.commit("compact", lambda _now: made), None)


def sealed(hdfs: MemoryHdfs, rows: int) -> Seal:
    proof = {"counts": {"east": {"warehouse": rows - 9}, "west": {"warehouse": 9}}, "judged_ms": 2 * HOUR}
    return seal_in(CommitLog(hdfs, PATHS), {HOUR: proof}, lambda: 1)[HOUR]


def problems(hdfs: MemoryHdfs) -> list[str]:
    log = CommitLog(hdfs, PATHS)
    return problems_of_seals(hdfs, PATHS, log.manifests(), log.state())


def edited(hdfs: MemoryHdfs, edit: Edit, *, resealed: bool = False, version: int = 1) -> str:
    """Changes a seal as an editor would; `resealed`: also makes its digest again. Returns its path."""
    path = PATHS.seal(HOUR, version)
    data = json.loads(hdfs.files[path])
    edit(data)
    if resealed:
        known = Seal(**{name: value for name, value in data.items() if name not in ("format", "hour")})
        data["digest"] = known.own_digest()
    hdfs.files[path] = json.dumps(data, indent=1).encode()
    return path


def other_counts(data: dict[str, Any]) -> None:
    data["proof"]["counts"]["east"]["warehouse"] -= 3


def other_rows(data: dict[str, Any]) -> None:
    data["rows"] -= 3


def other_files(data: dict[str, Any]) -> None:
    data["files"] = data["files"][1:]


def other_author(data: dict[str, Any]) -> None:
    data["proof"]["accepted"] = []


EDITS = pytest.mark.parametrize("edit", [other_counts, other_rows, other_files, other_author])


@EDITS
def test_a_seal_that_was_edited_is_refused_by_readers_and_named(edit: Edit) -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    load(hdfs, 40)
    sealed(hdfs, 119)
    assert problems(hdfs) == []
    path = edited(hdfs, edit)
    (problem,) = problems(hdfs)
    assert problem.startswith(f"{path} is not the seal that was written") and "sealed again" in problem
    with pytest.raises(ManifestError, match=re.escape(path)):
        seals(hdfs, PATHS)


@pytest.mark.parametrize("edit", [other_counts, other_rows, other_files])
def test_one_whose_digest_was_made_again_is_compared_with_the_commit_log(edit: Edit) -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    load(hdfs, 40)
    sealed(hdfs, 119)
    path = edited(hdfs, edit, resealed=True)
    (problem,) = problems(hdfs)
    assert problem.startswith(f"{path}: it")


def test_a_seal_of_an_older_headrace_has_no_digest_and_is_compared_with_the_commit_log() -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    sealed(hdfs, 79)
    path = edited(hdfs, lambda data: data.pop("digest"))
    assert problems(hdfs) == [] and seals(hdfs, PATHS)[HOUR].rows == 79
    edited(hdfs, other_rows)
    assert problems(hdfs)[0].startswith(f"{path}: it says 76 rows in 1 files")


def test_a_seal_in_the_place_of_another_one_is_named() -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    sealed(hdfs, 79)
    path = PATHS.seal(HOUR + HOUR_MS, 1)
    hdfs.files[path] = hdfs.files[PATHS.seal(HOUR, 1)]
    (problem,) = problems(hdfs)
    assert problem.startswith(f"{path} is a seal of 't', 1970-01-01T10, version 1")


def test_seals_stay_sound_while_later_changes_come() -> None:
    """Late rows, other hours, a compaction before and after: each seal is compared with its own moment."""
    hdfs = MemoryHdfs()
    load(hdfs)
    load(hdfs, 40)
    compact(hdfs)
    sealed(hdfs, 119)
    load(hdfs, 5, HOUR + HOUR_MS)
    load(hdfs, 11)
    assert problems(hdfs) == []
    second = sealed(hdfs, 130)
    assert (second.version, second.rows) == (2, 130)
    assert problems(hdfs) == []
    path = edited(hdfs, other_rows, version=2)
    assert [each.split()[0] for each in problems(hdfs)] == [path]


def test_bytes_that_are_no_seal_are_named() -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    sealed(hdfs, 79)
    sound = json.loads(hdfs.files[PATHS.seal(HOUR, 1)])
    del sound["digest"]
    changes: list[dict[str, Any]] = [
        {"rows": "x"},
        {"hour_ms": 1 << 70},
        {"proof": []},
        {"proof": {"counted_from": 7}},
        {"proof": {"counts": {"east": {"warehouse": float("inf")}}}},
        {"proof": {"counts": {"east": []}}},
        {"files": [7]},
    ]
    wrong = [b"", b"[]", b'{"format": 1}', b"[" * 100_000]
    for number, change in enumerate(changes, len(wrong)):
        wrong.append(json.dumps({**sound, "version": number + 2, **change}).encode())
    for number, data in enumerate(wrong):
        hdfs.files[PATHS.seal(HOUR, number + 2)] = data
    paths = [each.split(" ")[0].rstrip(":") for each in problems(hdfs)]
    assert paths == [PATHS.seal(HOUR, number + 2) for number in range(len(wrong))]


def test_a_file_that_has_other_bytes_of_the_same_size_is_not_sealed() -> None:
    hdfs = MemoryHdfs()
    file = load(hdfs)
    hdfs.files[file.path] = hdfs.files[file.path].replace(b"file 79", b"file 97")
    with pytest.raises(NotSealedError, match=f"{file.path} has 79 rows, and other bytes than when it was"):
        sealed(hdfs, 79)


def test_a_stored_seal_with_its_digest_is_read() -> None:
    stored = (GOLDEN / "seal-2.json").read_bytes()
    seal = Seal.from_json(stored, "seal-2.json")
    assert (seal.rows, seal.digest) == (6_223, seal.own_digest()) and seal.to_json() == stored
    older = Seal.from_json((GOLDEN / "seal.json").read_bytes(), "seal.json")
    assert replace(seal, digest="") == older


def test_an_hour_with_a_problem_keeps_no_other_hour_from_its_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, hours = MemoryHdfs(), [HOUR + number * HOUR_MS for number in range(4)]
    files = [load(hdfs, 10 + number, hour_ms) for number, hour_ms in enumerate(hours)]
    log = CommitLog(hdfs, PATHS)
    # The first one's seal was edited, the third one's file has other bytes.
    seal_in(log, {hours[0]: {}})
    path = edited(hdfs, other_rows)
    hdfs.files[files[2].path] = parquet_of(12, "other 12")
    load(hdfs, 5, hours[0])
    with pytest.raises(NotSealedError) as caught:
        seal_in(log, {hour_ms: {} for hour_ms in hours})
    assert [hour_ms for hour_ms in hours if hour_ms in caught.value.sealed] == [hours[1], hours[3]]
    assert caught.value.problems.keys() == {hours[0], hours[2]}
    assert str(caught.value).startswith(f"{path} is not the seal that was written")
    assert str(caught.value).endswith("; and 1 more hour")
    monkeypatch.setattr(seal_module, "HdfsClient", lambda *_, **__: contextlib.nullcontext(hdfs))
    assert due_hours("http://x", "t", now_ms=hours[3] + 2 * HOUR_MS) == [hours[0], hours[2]]


def test_files_of_others_beside_seals_and_manifests_are_passed_over() -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    for name in ("notes.v1.json", "1970-01-01-10.v².json", "1970-01-01-25.v001.json"):
        hdfs.write(f"{PATHS.sealed}/{name}", b"?")
    for name in ("0.json", "².json", "7.state.json", "notes.json"):
        hdfs.write(f"{PATHS.log}/{name}", b"?")
    assert sealed(hdfs, 79).rows == 79
    assert seals(hdfs, PATHS).keys() == {HOUR}
    assert problems(hdfs) == []


def test_a_load_that_commits_while_an_hour_is_sealed_is_no_problem_of_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its file is in the commit log, and not yet in its folder."""
    hdfs = MemoryHdfs()
    load(hdfs)
    state, others = CommitLog.state, iter([True])

    def while_a_load_commits(self: CommitLog) -> TableState:
        if next(others, False):
            with monkeypatch.context() as patch:
                patch.setattr(CommitLog, "_move", lambda *_: _die("rename"))
                with pytest.raises(Died):
                    load(hdfs, 5)
        return state(self)

    waited = []

    def wait(log: CommitLog) -> None:
        waited.append(log)
        log.complete_all(None)  # as the load does meanwhile

    monkeypatch.setattr(CommitLog, "state", while_a_load_commits)
    monkeypatch.setattr(seal_module, "wait_until_complete", wait)
    assert seal_in(CommitLog(hdfs, PATHS), {HOUR: {}})[HOUR].rows == 84
    assert len(waited) == 2


def test_a_compaction_that_takes_a_file_while_it_is_checked_keeps_no_hour_from_its_seal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task failed, with all hours of its day: "check the path" of a file that nobody had lost."""
    hdfs, read, others = MemoryHdfs(), MemoryHdfs.read, iter([True])
    file = load(hdfs)
    load(hdfs, 40)
    load(hdfs, 5, HOUR + HOUR_MS)

    def while_a_compaction_runs(self: MemoryHdfs, path: str, **part: Any) -> bytes:
        if path == file.path and next(others, False):
            compact(hdfs)
        return read(self, path, **part)

    monkeypatch.setattr(MemoryHdfs, "read", while_a_compaction_runs)
    made = seal_in(CommitLog(hdfs, PATHS), {HOUR: {}, HOUR + HOUR_MS: {}})
    assert {hour_ms: seal.rows for hour_ms, seal in made.items()} == {HOUR: 119, HOUR + HOUR_MS: 5}
    assert problems(hdfs) == []


def test_a_seal_and_a_state_of_which_hdfs_lost_a_block_hold_up_no_other_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each load, seal and verification of the table ended there."""
    hdfs, read = MemoryHdfs(), MemoryHdfs.read
    load(hdfs)
    sealed(hdfs, 79)
    load(hdfs, 40, HOUR + HOUR_MS)
    state = PATHS.state(0)
    hdfs.write(state, CommitLog(hdfs, PATHS).state_at(0).to_json())
    lost = {state, PATHS.seal(HOUR, 1)}

    def from_disk(self: MemoryHdfs, path: str, **part: Any) -> bytes:
        if path in lost:
            raise HdfsDamagedError(f"read {path}")
        return read(self, path, **part)

    monkeypatch.setattr(MemoryHdfs, "read", from_disk)
    monkeypatch.setattr(seal_module, "HdfsClient", lambda *_, **__: contextlib.nullcontext(hdfs))
    assert due_hours("http://x", "t", now_ms=5 * HOUR) == [HOUR, HOUR + HOUR_MS]
    with pytest.raises(NotSealedError, match="Remove it, and the hour is sealed again") as caught:
        seal_in(CommitLog(hdfs, PATHS), {HOUR: {}, HOUR + HOUR_MS: {}})
    assert caught.value.sealed.keys() == {HOUR + HOUR_MS}
    [problem] = problems(hdfs)
    assert problem.startswith(f"{PATHS.seal(HOUR, 1)} can't be read, no DataNode has a sound replica")
    lost.add(PATHS.manifest(1))
    with pytest.raises(ManifestError, match=r"1\.json can't be read, .* restore it from a backup"):
        CommitLog(hdfs, PATHS).state()


def test_of_two_runs_that_seal_an_hour_in_the_same_millisecond_each_knows_what_is_stored() -> None:
    hdfs = MemoryHdfs()
    load(hdfs)
    log = CommitLog(hdfs, PATHS)
    others = iter([True])

    def before(call: str) -> None:
        if call == "rename" and next(others, False):
            hdfs.before = _die  # the other run, right after it has written its seal
            with pytest.raises(Died):
                seal_in(log, {HOUR: {"of": "the other"}}, lambda: 1)
            hdfs.before = lambda _: None

    hdfs.before = before
    made = seal_in(log, {HOUR: {"of": "one"}}, lambda: 1)[HOUR]
    assert made == seals(hdfs, PATHS)[HOUR]


class Died(BaseException):
    """Stands for SIGKILL."""


def _die(call: str) -> None:
    if call == "rename":
        raise Died
