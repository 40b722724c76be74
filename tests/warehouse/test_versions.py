"""Which files hold a version of a table: by seals, by change, by time, through compactions and moves."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fix_memory_hdfs import MemoryHdfs
from fix_parquet import content_of, parquet_of
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.layout import HOUR_MS, TopicPaths, parse_hour
from headrace.warehouse.manifest import DataFile, HourCount, Kind, LoadedRange, Manifest, TableState
from headrace.warehouse.seal import seal_hours
from headrace.warehouse.versions import Version, VersionError, Wanted, choose, late_files

PATHS = TopicPaths("/data", "t")
HOUR = parse_hour("2026-11-20T18")
NEXT = HOUR + HOUR_MS


@dataclass
class Scene:
    """A table in memory. Change N is committed at N seconds; a file's bytes name the rows that it holds."""

    hdfs: MemoryHdfs = field(default_factory=MemoryHdfs)

    @property
    def log(self) -> CommitLog:
        return CommitLog(self.hdfs, PATHS)

    def load(self, *hours: int, log: int = 0) -> None:
        """Loads a file into each hour; it holds the rows `<sequence>`, of this log of a topic made again."""
        sequence = self.log.state().next_sequence
        self._commit("load", [(hour, [str(sequence)]) for hour in hours], [], [log] * len(hours))

    def merge(self, hour: int, paths: Sequence[str]) -> None:
        rows = sorted(row for path in paths for row in self.rows(path))
        self._commit("compact", [(hour, rows)], [*paths], [0])

    def compact(self, hour: int) -> None:
        files = self.log.state().hours()[hour]
        logs = sorted({file.log for file in files})
        rows = [
            sorted(row for file in files if file.log == log for row in self.rows(file.path)) for log in logs
        ]
        self._commit("compact", [(hour, each) for each in rows], [file.path for file in files], logs)

    def retain(self, hour: int) -> None:
        self._commit("retain", [], [file.path for file in self.log.state().hours()[hour]])

    def seal(self, hour: int, at_s: float) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "headrace.warehouse.seal.HdfsClient", lambda *_, **__: contextlib.nullcontext(self.hdfs)
            )
            seal_hours("http://x", "t", {hour: {}}, clock_ms=lambda: round(at_s * 1000))

    def rows(self, path: str) -> list[str]:
        return content_of(self.hdfs.files[path]).split()

    def read(self, **wanted: Any) -> dict[int, list[str]]:
        """The rows of a version, by hour."""
        found: dict[int, list[str]] = {}
        for located in self.choose(**wanted).files:
            found.setdefault(located.file.hour_ms, []).extend(self.rows(located.path))
        return {hour: sorted(rows) for hour, rows in found.items()}

    def choose(self, **wanted: Any) -> Version:
        return choose(self.log, Wanted(**wanted))

    def _commit(
        self, kind: Kind, files: list[tuple[int, list[str]]], removed: list[str], logs: Sequence[int] = ()
    ) -> None:
        change_id = f"{kind}-{self.log.state().next_sequence}"
        for number, (_, rows) in enumerate(files):
            self.hdfs.write(f"{PATHS.staged(change_id)}/{number}", parquet_of(len(rows), " ".join(rows)))
        self.hdfs.makedirs(PATHS.staged(change_id))

        def rebase(now: TableState) -> Manifest:
            new = tuple(
                DataFile(
                    PATHS.data_file(hour, now.next_sequence, number),
                    f"{PATHS.staged(change_id)}/{number}",
                    hour,
                    len(rows),
                    len(parquet_of(len(rows), " ".join(rows))),
                    7,
                    log=logs[number],
                )
                for number, (hour, rows) in enumerate(files)
            )
            end = now.ends.get(0, 0)
            hours = tuple(HourCount(hour, len(rows), len(rows)) for hour, rows in files)
            ranges = (LoadedRange(0, end, end + 10, hours),) if kind == "load" else ()
            time_ms = now.next_sequence * 1000
            base = Manifest(now.next_sequence, kind, "t", change_id, time_ms, "w", ranges, schema_id=7)
            return replace(base, files=new, removed=tuple(removed))

        self.log.complete(self.log.commit(change_id, rebase), None)


@pytest.fixture
def scene() -> Scene:
    """Loads 0 and 1 of two hours; the first is sealed at 1.5 s, then comes the late load 2."""
    scene = Scene()
    scene.load(HOUR, NEXT)
    scene.load(HOUR, NEXT)
    scene.seal(HOUR, at_s=1.5)
    scene.load(HOUR, NEXT)
    return scene


def test_sealed_hours_are_read_as_they_were_sealed(scene: Scene) -> None:
    assert scene.read() == {HOUR: ["0", "1"]}
    assert scene.choose().unsealed == (NEXT,)
    scene.seal(HOUR, at_s=2.5)
    assert scene.read() == {HOUR: ["0", "1", "2"]}


def test_all_that_is_loaded(scene: Scene) -> None:
    assert scene.read(is_sealed=False) == {HOUR: ["0", "1", "2"], NEXT: ["0", "1", "2"]}


def test_as_of_a_change(scene: Scene) -> None:
    assert scene.read(is_sealed=False, sequence=0) == {HOUR: ["0"], NEXT: ["0"]}
    assert scene.choose(is_sealed=False, sequence=1).sequence == 1
    # The seal is from before change 2: as of change 1 the hour was sealed, as of change 0 it was not.
    assert scene.read(sequence=1) == {HOUR: ["0", "1"]}
    assert scene.read(sequence=0) == {}
    scene.seal(HOUR, at_s=2.5)
    scene.load(NEXT)
    # A later seal changes nothing as of an earlier change.
    assert scene.read(sequence=1) == {HOUR: ["0", "1"]}
    assert scene.read(sequence=2) == {HOUR: ["0", "1", "2"]}
    with pytest.raises(VersionError, match="there is no change 9; the last one is 3"):
        scene.choose(sequence=9)


def test_as_of_a_time(scene: Scene) -> None:
    assert scene.read(is_sealed=False, at_ms=-1) == {}
    assert scene.read(is_sealed=False, at_ms=1_999) == {HOUR: ["0", "1"], NEXT: ["0", "1"]}
    assert scene.read(at_ms=1_499) == {}
    assert scene.read(at_ms=1_500) == {HOUR: ["0", "1"]}
    assert scene.read(is_sealed=False, at_ms=10**12) == scene.read(is_sealed=False)


def test_hours_outside_of_the_range_are_left_out(scene: Scene) -> None:
    assert list(scene.read(is_sealed=False, from_ms=NEXT)) == [NEXT]
    assert list(scene.read(is_sealed=False, from_ms=NEXT - 1)) == [HOUR, NEXT]
    assert list(scene.read(is_sealed=False, until_ms=NEXT)) == [HOUR]
    assert list(scene.read(is_sealed=False, until_ms=NEXT + 1)) == [HOUR, NEXT]


def test_a_compaction_of_the_same_rows_takes_their_place(scene: Scene) -> None:
    scene.compact(NEXT)
    del_trash(scene)
    assert scene.read(is_sealed=False, sequence=2) == {HOUR: ["0", "1", "2"], NEXT: ["0", "1", "2"]}


def test_a_compaction_with_later_rows_is_passed_over_by_way_of_the_trash(scene: Scene) -> None:
    scene.compact(HOUR)
    assert scene.read(is_sealed=False, sequence=1) == {HOUR: ["0", "1"], NEXT: ["0", "1"]}
    assert scene.read() == {HOUR: ["0", "1"]}
    del_trash(scene)
    with pytest.raises(
        VersionError, match=r"t, 2026-11-20T18: a later change removed .*trash no longer has it"
    ):
        scene.read()
    # The other hour, and the whole of this one, are there all the same.
    assert scene.read(is_sealed=False, sequence=1, from_ms=NEXT) == {NEXT: ["0", "1"]}
    assert scene.read(is_sealed=False)[HOUR] == ["0", "1", "2"]


def test_files_of_rows_that_came_after_the_seal_are_told_from_the_others(scene: Scene) -> None:
    """A compaction merges each by themselves, so each has to be known after that."""
    log = scene.log
    late = late_files(log, log.state(), {HOUR, NEXT})
    assert [scene.rows(path) for path in late] == [["2"]], "an hour without a seal has none"
    scene.seal(NEXT, at_s=2.5)
    scene.load(HOUR, NEXT)
    late = late_files(log, log.state(), {HOUR, NEXT})
    assert sorted(scene.rows(path)[0] for path in late) == ["2", "3", "3"]
    sealed = [path for path in log.state().files if path not in late and "hour=18" in path]
    scene.merge(HOUR, sealed)
    scene.merge(HOUR, [path for path in late if "hour=18" in path])
    del_trash(scene)
    assert scene.read() == {HOUR: ["0", "1"], NEXT: ["0", "1", "2"]}
    late = late_files(log, log.state(), {HOUR, NEXT})
    assert sorted(scene.rows(path) for path in late) == [["2", "3"], ["3"]]
    scene.seal(HOUR, at_s=9)
    assert {scene.rows(path)[0] for path in late_files(log, log.state(), {HOUR, NEXT})} == {"3"}


def test_a_compaction_beside_rows_of_another_log_takes_the_place_of_the_sealed_ones(scene: Scene) -> None:
    """It merges the files of each log by themselves."""
    scene.load(HOUR, log=3)
    scene.load(HOUR, log=3)
    scene.seal(NEXT, at_s=2.5)
    scene.load(NEXT, log=3)
    for hour in (HOUR, NEXT):
        scene.compact(hour)
    del_trash(scene)
    assert scene.read(from_ms=NEXT) == {NEXT: ["0", "1", "2"]}
    assert scene.read(is_sealed=False, sequence=2) == {HOUR: ["0", "1", "2"], NEXT: ["0", "1", "2"]}


def test_an_hour_that_retention_removed(scene: Scene) -> None:
    scene.retain(HOUR)
    assert scene.read() == {}
    assert scene.read(sequence=2) == {HOUR: ["0", "1"]}
    del_trash(scene)
    with pytest.raises(VersionError, match="trash no longer has it"):
        scene.read(sequence=2)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_late_rows_of_an_hour_that_retention_removed_keep_nobody_from_the_others(
    scene: Scene, is_mixed: bool
) -> None:
    """Its seal vouches for rows that nobody may read any more: the hour waits for another one."""
    scene.seal(NEXT, at_s=2.5)
    if is_mixed:
        scene.compact(HOUR)  # the sealed rows with later ones
    else:
        scene.compact(NEXT)
    scene.retain(HOUR)
    scene.load(HOUR)
    assert scene.read() == {NEXT: ["0", "1", "2"]}
    assert scene.choose().unsealed == (HOUR,)
    del_trash(scene)
    assert scene.read() == scene.read(sequence=5) == {NEXT: ["0", "1", "2"]}
    with pytest.raises(VersionError, match="trash no longer has it"):
        scene.read(sequence=2)
    scene.seal(HOUR, at_s=9)
    assert scene.read() == {HOUR: ["5"], NEXT: ["0", "1", "2"]}


def del_trash(scene: Scene) -> None:
    for path in [path for path in scene.hdfs.files if path.startswith(f"{PATHS.trash}/")]:
        del scene.hdfs.files[path]
