"""The commit log of one topic in HDFS: reads it, appends to it, completes what a crash interrupted.

Owns the order of steps that makes a change happen exactly once:

1. The files of a change are staged in `_staging/<change id>/`, where no reader looks.
2. Its manifest is written there as well, then renamed to `_log/<sequence>.json`. HDFS refuses the rename if
   the name is taken, so only one of two changes gets the sequence. **This is the commit.**
3. Removed files move to the trash, staged files to their final names. The manifest names them, so this step
   can be repeated. (A move's staged files are the removed ones: they are renamed once.)
4. The change is reported to the audit.
5. The staging directory is deleted. As long as it exists, the next run repeats steps 3 to 5.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Final

from headrace.warehouse import crash
from headrace.warehouse.hdfs.client import READ_SIZE_MAX_BYTES, HdfsClient
from headrace.warehouse.hdfs.errors import LOST, HdfsDamagedError, HdfsError, HdfsMissingError
from headrace.warehouse.layout import TopicPaths, padded
from headrace.warehouse.manifest import (
    SUMS,
    DataFile,
    DeadFile,
    Manifest,
    ManifestError,
    TableState,
    digest_of,
)

_log = logging.getLogger(__name__)

STATE_EVERY: Final = 64
"""A state is written after so many manifests, so reading the log reads at most so many."""
INCOMPLETE_MAX: Final = 2 * STATE_EVERY
"""A change that is not complete is among so many of the last ones: each run completes, before it commits its
own, all that were committed before it began. So an orphan makes nobody read the whole log.
"""
MANIFEST_SIZE_MAX_BYTES: Final = 64 << 20
"""Of a change that is committed: some 150,000 files."""
FILE_SIZE_MAX_BYTES: Final = 256 << 20
"""Of a file of the log that is read. A hostile one of this size takes a few GB while it is parsed. A state of
more than some 600,000 files is larger: the manifests are read instead.
"""
ATTEMPTS_MAX: Final = 20
MOVES_AT_ONCE: Final = 8

_CHANGE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_BELOW: Final = re.compile(r"(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f#\\]+)+")
"""A path below a table's directory, without "." and "..", and without the markers of the library `hdfs`."""

Publish = Callable[[Manifest], None]
Rebase = Callable[[TableState], Manifest]


class CommitConflictError(Exception):
    """Another change was committed first, and this one no longer applies. Nothing of it is visible."""


class ChangeTooLargeError(CommitConflictError):
    """The change has more files, or counts of more hours, than a manifest may have."""


@dataclass(frozen=True)
class StagedChange:
    """A staging directory and its committed manifest; None if the change was never committed."""

    change_id: str
    modified_ms: int
    manifest: Manifest | None


class CommitLog:
    """The commit log of one topic."""

    def __init__(self, hdfs: HdfsClient, paths: TopicPaths) -> None:
        self.hdfs = hdfs
        self.paths = paths

    def state(self) -> TableState:
        """Returns what is committed. Raises `ManifestError` if the log has a gap or is unreadable."""
        states, manifests = self._sequences()
        return self._folded(self._last_state(states), manifests)

    def state_at(self, sequence: int) -> TableState:
        """Returns what was committed up to this sequence. Raises `ManifestError`."""
        states, manifests = self._sequences()
        state = self._last_state([each for each in states if each <= sequence])
        return self._folded(state, [each for each in manifests if each <= sequence])

    def manifest(self, sequence: int) -> Manifest:
        """Reads one manifest. Raises `ManifestError`."""
        return self._parsed(sequence, self._bytes(sequence))

    def manifests(self, first: int = 0) -> list[Manifest]:
        """Reads the manifests from sequence `first` on. Raises `ManifestError`, also for one that was changed
        after the next one was written.
        """
        return list(self._chain(sequence for sequence in self._sequences()[1] if sequence >= first))

    def broken_links(self) -> list[str]:
        """Returns which manifests are missing, and which were changed, or put in another's place, after the
        next one was written.
        """
        sequences = self._sequences()[1]
        first = [f"{self.paths.manifest(0)} is missing"] if sequences and sequences[0] else []
        return first or [problem for _, problem in self._linked(sequences) if problem]

    def problem_of_state(self, manifests: Sequence[Manifest]) -> str:
        """Returns what the written state that `state` begins with says otherwise than all manifests, which
        are given; "" if nothing.
        """
        written = self._last_state(self._sequences()[0])
        made = TableState(counted_from=written.counted_from)
        # Others may have committed since these were read.
        for manifest in (*manifests, *self.manifests(len(manifests))):
            if manifest.sequence <= written.sequence:
                made = made.after(manifest)
        # A state of an older headrace, from which this one was made, may not have had the sums.
        unknown = SUMS if written.counted_from else ()
        names = [each.name for each in fields(TableState) if each.name not in unknown]
        other = [name for name in names if getattr(made, name) != getattr(written, name)]
        if not other:
            return ""
        where = self.paths.state(written.sequence)
        return (
            f"{where} is not what the manifests up to it add up to ({', '.join(other)}): remove it, and all "
            "begins with the manifests again"
        )

    def _bytes(self, sequence: int) -> bytes:
        where = self.paths.manifest(sequence)
        try:
            return self._read(where)
        except (HdfsMissingError, HdfsDamagedError) as error:
            lost = f"can't be read, {LOST}; restore it from a backup"
            raise ManifestError(
                f"{where} {lost if isinstance(error, HdfsDamagedError) else 'is missing'}"
            ) from error

    def _read(self, where: str) -> bytes:
        data = self.hdfs.read(where, length=READ_SIZE_MAX_BYTES)
        if len(data) < READ_SIZE_MAX_BYTES:
            return data
        status = self.hdfs.status(where)
        size_bytes = 0 if status is None else status.size_bytes
        if size_bytes > FILE_SIZE_MAX_BYTES:
            raise ManifestError(f"{where} can't be read: it has {size_bytes} bytes")
        rest = range(len(data), size_bytes, READ_SIZE_MAX_BYTES)
        return data + b"".join(
            self.hdfs.read(where, offset=at, length=min(READ_SIZE_MAX_BYTES, size_bytes - at)) for at in rest
        )

    def _parsed(self, sequence: int, data: bytes) -> Manifest:
        where = self.paths.manifest(sequence)
        found = Manifest.from_json(data, where)
        if found.topic != self.paths.topic:
            raise ManifestError(f"{where} is manifest {found.sequence} of topic {found.topic[:80]!r}")
        self._check_paths(found, where)
        return found

    def _check_paths(self, manifest: Manifest, where: str) -> None:
        """What a manifest names is renamed and removed: nothing outside of its table."""
        if not _CHANGE_ID.fullmatch(manifest.change_id):
            raise ManifestError(f"{where}: the change id {manifest.change_id[:80]!r} names no directory")
        files: list[DataFile | DeadFile] = [*manifest.files, *manifest.dead_files]
        named = [path for file in files for path in (file.path, file.staged)]
        for path in (*named, *manifest.removed):
            if not path.startswith(f"{self.paths.base}/") or not _BELOW.fullmatch(path, len(self.paths.base)):
                raise ManifestError(f"{where} names {path[:200]!r}, which is not below {self.paths.base}")

    def _chain(self, sequences: Iterable[int]) -> Iterator[Manifest]:
        """Reads manifests. Raises `ManifestError` for one that was changed after the next one was written."""
        for manifest, problem in self._linked(sequences):
            if problem:
                raise ManifestError(f"{problem}; restore it from a backup")
            yield manifest

    def _linked(self, sequences: Iterable[int]) -> Iterator[tuple[Manifest, str]]:
        """Yields each manifest, and what is wrong with the one before it."""
        before: tuple[int, str] | None = None
        for sequence in sequences:
            where, data = self.paths.manifest(sequence), self._bytes(sequence)
            manifest, problem = self._parsed(sequence, data), ""
            if before is not None and before[0] != sequence - 1:
                problem = f"{self.paths.manifest(sequence - 1)} is missing"
            elif before is not None and manifest.previous not in ("", before[1]):
                changed = self.paths.manifest(sequence - 1)
                problem = (
                    f"{changed} is not what it was when {where} was written: it was changed, or another one "
                    "was put there"
                )
            before = sequence, digest_of(data)
            yield manifest, problem

    def _folded(self, state: TableState, sequences: Iterable[int]) -> TableState:
        for manifest in self._chain(sequence for sequence in sequences if sequence > state.sequence):
            state = state.after(manifest)
        return state

    def commit(self, change_id: str, rebase: Rebase) -> Manifest:
        """Commits the manifest that `rebase` makes of the current state, and returns it.

        Calls `rebase` again each time another change comes first. `rebase` raises `CommitConflictError` if
        its change does not apply to that state. The manifest's sequence must be the state's next.
        """
        for _ in range(ATTEMPTS_MAX):
            manifest = rebase(self.state())
            if manifest.sequence:
                manifest = replace(manifest, previous=digest_of(self._bytes(manifest.sequence - 1)))
            if self._try_commit(change_id, manifest):
                crash.reached("committed")
                return manifest
        raise CommitConflictError(
            f"{self.paths.topic}: other runs committed first {ATTEMPTS_MAX} times in a row; run again"
        )

    def complete(self, manifest: Manifest, publish: Publish | None) -> None:
        """Runs the remaining steps of a committed change. Repeatable, also by two processes at once."""
        if manifest.removed:
            # A file that an earlier change has not moved yet would come to its place after its removal.
            for earlier in self.to_complete():
                if earlier.sequence < manifest.sequence:
                    self.complete(earlier, publish)
        self._remove(manifest)
        self._move(manifest)
        crash.reached("moved")
        if publish is not None:
            publish(manifest)
        crash.reached("published")
        if manifest.sequence % STATE_EVERY == STATE_EVERY - 1:
            self._write_state(manifest.change_id)
        self.hdfs.delete(self.paths.staged(manifest.change_id))

    def discard(self, change_id: str) -> None:
        """Deletes what a change staged that will not be committed. If HDFS fails, it stays as an orphan."""
        with contextlib.suppress(HdfsError):
            self.hdfs.delete(self.paths.staged(change_id))

    def take_back(self, change_id: str) -> None:
        """Discards a change whose commit failed, unless it may be committed. A commit renames the manifest
        that is deleted here, so only one of the two can happen. If HDFS fails, it stays as an orphan.
        """
        with contextlib.suppress(HdfsError):
            if self.hdfs.delete(self._prepared(change_id)):
                self.hdfs.delete(self.paths.staged(change_id))

    def _prepared(self, change_id: str) -> str:
        return f"{self.paths.staged(change_id)}/manifest.json"

    def staged_changes(self) -> list[StagedChange]:
        """Returns every staging directory, those with a manifest first, in order of their sequence.

        A directory without a manifest belongs to a running change or is an orphan.
        """
        staged = [entry for entry in self.hdfs.entries(self.paths.staging) if entry.is_dir]
        if not staged:
            return []
        wanted = {entry.name for entry in staged}
        committed: dict[str, Manifest] = {}
        for sequence in reversed(self._sequences()[1][-INCOMPLETE_MAX:]):
            if wanted <= committed.keys():
                break
            manifest = self.manifest(sequence)
            committed[manifest.change_id] = manifest
        found = [StagedChange(entry.name, entry.modified_ms, committed.get(entry.name)) for entry in staged]
        return sorted(
            found,
            key=lambda change: (change.manifest is None, change.manifest.sequence if change.manifest else 0),
        )

    def to_complete(self) -> list[Manifest]:
        """Returns the manifests of changes that are committed but not complete, in order."""
        return [change.manifest for change in self.staged_changes() if change.manifest is not None]

    def complete_all(self, publish: Publish | None) -> list[Manifest]:
        """Completes every committed change that is not complete, and returns their manifests."""
        manifests = self.to_complete()
        for manifest in manifests:
            self.complete(manifest, publish)
        return manifests

    def _last_state(self, states: list[int]) -> TableState:
        """Returns the last written state that is whole; the empty one, from which all manifests are read,
        if there is none.

        A state only saves reading manifests. So one that was cut off while it was written harms nobody.
        """
        for sequence in reversed(states):
            where = self.paths.state(sequence)
            try:
                return TableState.from_json(self._read(where), where)
            except (ManifestError, HdfsDamagedError) as error:
                _log.warning("%s; the manifests before it are read instead", error)
        return TableState()

    def _sequences(self) -> tuple[list[int], list[int]]:
        """The sequences of the written states, and of the manifests."""
        states: list[int] = []
        manifests: list[int] = []
        for entry in self.hdfs.entries(self.paths.log):
            stem, _, kind = entry.name.partition(".")
            if not stem.isdecimal() or stem != padded(int(stem)):
                continue  # somebody's file
            if kind == "json":
                manifests.append(int(stem))
            elif kind == "state.json":
                states.append(int(stem))
        return sorted(states), sorted(manifests)

    def _try_commit(self, change_id: str, manifest: Manifest) -> bool:
        prepared, target = self._prepared(change_id), self.paths.manifest(manifest.sequence)
        data = manifest.to_json()
        if len(data) > MANIFEST_SIZE_MAX_BYTES:
            files, hours = len(manifest.files), len(manifest.hours())
            raise ChangeTooLargeError(
                f"{self.paths.topic}: {files} files of {hours} hours are too many for one change; "
                "nothing was changed. Load less at once (--until)"
            )
        self.hdfs.write(prepared, data, overwrite=True)
        self.hdfs.makedirs(self.paths.log)
        self._check_staged(change_id, manifest)
        crash.reached("prepared")
        if self.hdfs.rename(prepared, target):
            return True
        # Another change took the name, or this one did, and the response to its first try was lost.
        return self.manifest(manifest.sequence).change_id == change_id

    def _check_staged(self, change_id: str, manifest: Manifest) -> None:
        """Raises `CommitConflictError` if a retention took the change for that of a dead run: it deletes the
        whole directory, so one file tells. The manifest beside it, just written, makes the directory young.
        """
        below = f"{self.paths.staged(change_id)}/"
        files: list[DataFile | DeadFile] = [*manifest.files, *manifest.dead_files]
        staged = next((file.staged for file in files if file.staged.startswith(below)), None)
        if staged is not None and self.hdfs.status(staged) is None:
            raise CommitConflictError(
                f"{self.paths.topic}: {staged}, which this change staged, is gone: a retention took it for a "
                "dead run's, as of a day ago. Nothing was changed: compare this host's clock with the "
                "NameNode's, and run again"
            )

    def _move(self, manifest: Manifest) -> None:
        files: list[DataFile | DeadFile] = [*manifest.files, *manifest.dead_files]
        if not files:
            return

        def move(file: DataFile | DeadFile) -> None:
            for _ in range(ATTEMPTS_MAX):
                if self.hdfs.rename(file.staged, file.path) or self.hdfs.status(file.path) is not None:
                    return
                if self.hdfs.status(file.staged) is None:
                    break
                # A retention has just found the file's folder empty, and deleted it.
                self.hdfs.makedirs(file.path.rsplit("/", 1)[0])
            self._check_removed_later(file.path, manifest)

        with ThreadPoolExecutor(MOVES_AT_ONCE, thread_name_prefix="move") as pool:
            list(pool.map(self.hdfs.makedirs, sorted({file.path.rsplit("/", 1)[0] for file in files})))
            move(files[0])
            crash.reached("moved-one")
            list(pool.map(move, files[1:]))

    def _check_removed_later(self, path: str, manifest: Manifest) -> None:
        state = self.state()
        if path in state.files or path in state.dead_files:
            raise HdfsError(
                f"{path} of manifest {padded(manifest.sequence)} is neither staged nor in its place; "
                "restore it, or run `headrace warehouse verify` to see what else is missing"
            )

    def _remove(self, manifest: Manifest) -> None:
        moved = {file.staged for file in manifest.files}
        removed = [path for path in manifest.removed if path not in moved]
        if not removed:
            return
        trash = self.paths.trashed(manifest.change_id)
        self.hdfs.makedirs(trash)
        for path in removed:
            self.hdfs.rename(path, f"{trash}/{path.rsplit('/', 1)[-1]}")

    def _write_state(self, change_id: str) -> None:
        """Writes the state beside the change and renames it: a run that is killed leaves no half of one."""
        state = self.state()
        staged, target = f"{self.paths.staged(change_id)}/state.json", self.paths.state(state.sequence)
        self.hdfs.write(staged, state.to_json(), overwrite=True)
        if self.hdfs.rename(staged, target):
            return
        # An earlier try of this change, or another run, has written this state; an older headrace, which
        # wrote it in place, may have been killed half way.
        try:
            TableState.from_json(self._read(target), target)
        except ManifestError:
            self.hdfs.delete(target)
            self.hdfs.rename(staged, target)
