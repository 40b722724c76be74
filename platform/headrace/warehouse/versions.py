"""Which files hold a version of a table: as it is, as it was after a change, its sealed hours or all.

Owns the choice of hours and files, and where the rows of an older version are today. Compactions and moves
put the same rows into other files, so an older version is followed through them; what a change removed is in
the trash for a while. Reads alone; needs no Spark.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.completing import path_now, wait_until_complete
from headrace.warehouse.layout import HOUR_MS, TopicPaths, hour_name
from headrace.warehouse.manifest import DataFile, FileSchema, Manifest, TableState
from headrace.warehouse.seal import Seal, is_stale, seals


class VersionError(Exception):
    """There is no such version of the table, or its rows are no longer kept."""


@dataclass(frozen=True)
class Wanted:
    """What a reader asks for. Times are Unix ms; `sequence` and `at_ms` are two ways to say as of when."""

    from_ms: int | None = None
    until_ms: int | None = None
    is_sealed: bool = True
    sequence: int | None = None
    at_ms: int | None = None

    def has(self, hour_ms: int) -> bool:
        """Whether a row of this hour may be wanted."""
        after_start = self.from_ms is None or hour_ms + HOUR_MS > self.from_ms
        return after_start and (self.until_ms is None or hour_ms < self.until_ms)


@dataclass(frozen=True)
class LocatedFile:
    """A file of the table, and its path today."""

    file: DataFile
    path: str


@dataclass(frozen=True)
class Version:
    """The chosen files. `unsealed` are the hours that were left out because no seal vouches for them."""

    sequence: int
    schema: FileSchema | None
    files: tuple[LocatedFile, ...]
    unsealed: tuple[int, ...] = ()

    @property
    def hours(self) -> list[int]:
        return sorted({located.file.hour_ms for located in self.files})


@dataclass(frozen=True)
class _Point:
    """A moment of the log: its state, and until when a seal counts there."""

    state: TableState
    seals_until_ms: int | None = None


@dataclass
class _Followed:
    """Files of an older version: those that are in the table, and those that a change has removed.

    `deleted`: hours that retention had deleted by the time that is asked for. They have no files here.
    """

    present: dict[str, DataFile]
    trashed: list[tuple[DataFile, str]] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)

    def delete(self, hours: Collection[int]) -> None:
        self.deleted.update(hours)
        self.present = {path: file for path, file in self.present.items() if file.hour_ms not in hours}
        self.trashed = [(file, path) for file, path in self.trashed if file.hour_ms not in hours]

    def remove(self, paths: Iterable[str], trash: str) -> None:
        for path in paths:
            self.trashed.append((self.present.pop(path), f"{trash}/{path.rsplit('/', 1)[-1]}"))


def choose(log: CommitLog, wanted: Wanted) -> Version:
    """Returns the files to read. Raises `VersionError`, and `ManifestError` for a damaged log.

    Of an hour that has changed since its seal, the sealed rows are chosen.
    """
    staged = wait_until_complete(log)
    now = log.state()
    point = _point(log, now, wanted)
    starts, unsealed = _starts(log, point, wanted)
    files: list[LocatedFile] = []
    for sequence in sorted(set(starts.values())):
        hours = {hour_ms for hour_ms, start in starts.items() if start == sequence}
        if sequence == now.sequence:
            followed = _Followed(_files_of(now, hours))
        else:
            followed = _follow(log, sequence, now.sequence, hours, point.state.sequence)
        files += _located(log, followed, staged)
        unsealed += followed.deleted
    files.sort(key=lambda located: (located.file.hour_ms, located.path))
    schema = point.state.schema_id
    return Version(
        point.state.sequence,
        None if schema is None else FileSchema(schema, point.state.schema_datacenter),
        tuple(files),
        tuple(sorted(unsealed)),
    )


def _point(log: CommitLog, now: TableState, wanted: Wanted) -> _Point:
    topic = log.paths.topic
    if wanted.sequence is not None:
        if not 0 <= wanted.sequence <= now.sequence:
            raise VersionError(
                f"{topic}: there is no change {wanted.sequence}; the last one is {now.sequence}"
            )
        is_last = wanted.sequence == now.sequence
        until_ms = None if is_last else log.manifest(wanted.sequence + 1).committed_ms
        return _Point(log.state_at(wanted.sequence), until_ms)
    if wanted.at_ms is None:
        return _Point(now)
    sequence = now.sequence
    while sequence >= 0 and log.manifest(sequence).committed_ms > wanted.at_ms:
        sequence -= 1
    return _Point(log.state_at(sequence), wanted.at_ms)


def _starts(log: CommitLog, point: _Point, wanted: Wanted) -> tuple[dict[int, int], list[int]]:
    """The sequence whose rows are wanted, by hour; and the hours that no seal vouches for."""
    state = point.state
    hours = [hour_ms for hour_ms in state.hours() if wanted.has(hour_ms)]
    if not wanted.is_sealed:
        return dict.fromkeys(hours, state.sequence), []
    sealed = seals(log.hdfs, log.paths, only=set(hours), until_ms=point.seals_until_ms)
    starts: dict[int, int] = {}
    unsealed: list[int] = []
    for hour_ms in hours:
        seal: Seal | None = sealed.get(hour_ms)
        if seal is None or seal.sequence > state.sequence:
            unsealed.append(hour_ms)
        else:
            starts[hour_ms] = seal.sequence if is_stale(state, seal, hour_ms) else state.sequence
    return starts, unsealed


def _files_of(state: TableState, hours: Collection[int]) -> dict[str, DataFile]:
    return {path: file for path, file in state.files.items() if file.hour_ms in hours}


def late_files(log: CommitLog, state: TableState, hours: Collection[int]) -> set[str]:
    """Returns the files of these hours that have rows which came after the hour's seal, of hours with a seal.
    Seals that are not believed vouch for nothing.
    """
    sealed = seals(log.hdfs, log.paths, only=hours, problems={})
    starts = {
        hour_ms: seal.sequence
        for hour_ms, seal in sealed.items()
        if is_stale(state, seal, hour_ms) and 0 <= seal.sequence <= state.sequence
    }
    if not starts:
        return set()
    vouched_for, before = _Followed({}), log.state_at(min(starts.values()))
    # All hours in one pass, each from its own seal on: the oldest may be some thousand changes ago.
    for manifest in (None, *log.manifests(before.sequence + 1)):
        if manifest is not None:
            follow_change(vouched_for, manifest, before, log.paths)
            before = before.after(manifest)
        begun = {hour_ms for hour_ms, start in starts.items() if start == before.sequence}
        vouched_for.present.update(_files_of(before, begun))
    return _files_of(state, starts.keys()).keys() - vouched_for.present.keys()


def _follow(log: CommitLog, start: int, last: int, hours: set[int], wanted: int) -> _Followed:
    """Follows the files that these hours had after change `start` through all later changes.

    What retention has deleted up to change `wanted` is not followed: a seal from before it vouches for rows
    that the hour had no more.
    """
    state = log.state_at(start)
    followed = _Followed(_files_of(state, hours))
    for sequence in range(start + 1, last + 1):
        manifest = log.manifest(sequence)
        if manifest.kind == "retain" and sequence <= wanted:
            removed = (state.files[path].hour_ms for path in manifest.removed if path in state.files)
            followed.delete(hours & set(removed))
        follow_change(followed, manifest, state, log.paths)
        state = state.after(manifest)
    return followed


def follow_change(followed: _Followed, manifest: Manifest, before: TableState, paths: TopicPaths) -> None:
    """Follows files through one change of the table `before`. Pure."""
    trash = paths.trashed(manifest.change_id)
    if manifest.kind == "move":
        for file in manifest.files:
            if followed.present.pop(file.staged, None) is not None:
                followed.present[file.path] = file
        return
    if manifest.kind == "refill":
        gone = {path: followed.present.pop(path) for path in manifest.removed if path in followed.present}
        hours = {file.hour_ms for file in gone.values()}
        followed.present.update((file.path, file) for file in manifest.files if file.hour_ms in hours)
        return
    # As a compaction merges them.
    groups: dict[tuple[int, FileSchema, int], list[str]] = {}
    for path in manifest.removed:
        old = before.files.get(path)
        if old is not None:
            groups.setdefault((old.hour_ms, old.schema, old.log), []).append(path)
    for key, removed in groups.items():
        mine = [path for path in removed if path in followed.present]
        if manifest.kind == "compact" and len(mine) == len(removed):
            for path in mine:
                del followed.present[path]
            new = [file for file in manifest.files if (file.hour_ms, file.schema, file.log) == key]
            followed.present.update((file.path, file) for file in new)
        else:
            followed.remove(mine, trash)


def _located(log: CommitLog, followed: _Followed, staged: Mapping[str, str]) -> list[LocatedFile]:
    files = [LocatedFile(file, path_now(log.hdfs, file, staged)) for file in followed.present.values()]
    for file, trash in followed.trashed:
        # A change that is committed but not complete may have left the file where it was.
        found = next((path for path in (trash, file.path) if log.hdfs.status(path) is not None), None)
        if found is None:
            raise VersionError(
                f"{log.paths.topic}, {hour_name(file.hour_ms)}: a later change removed {file.path}, and the "
                "trash no longer has it; read a later version, or, without as_of, all rows by sealed=False"
            )
        files.append(LocatedFile(file, found))
    return files
