"""The commit log of one topic on HDFS: read it, add to it, finish what a crash left.

Owns the order of steps that makes a change happen exactly once:

1. a change's files are staged in `_staging/<change id>/`, where no reader looks;
2. its manifest is written there too, then renamed to `_log/<sequence>.json`. HDFS refuses the rename if
the name is taken:
   of two changes only one gets the sequence. **This is the commit.**
3. removed files go to the trash, staged files move to their final names (named by the manifest, so it can
be repeated); 4. the change is told to the audit;
5. the staging directory goes. As long as it is there, steps 3 to 5 are to be done, by whoever comes next.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from headrace.process.clock import now_ms
from headrace.warehouse import crash
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsError, HdfsMissingError
from headrace.warehouse.layout import TopicPaths, padded
from headrace.warehouse.manifest import DataFile, DeadFile, Manifest, ManifestError, TableState

STATE_EVERY: Final = 64
"""So many manifests are read at most beyond a written state."""
ATTEMPTS_MAX: Final = 20
MOVES_AT_ONCE: Final = 8

Publish = Callable[[Manifest], None]
Rebase = Callable[[TableState], Manifest]


class CommitConflictError(Exception):
    """Another change was committed first, and this one doesn't hold any more.

    Nothing of it is visible; repeat the run.
    """


@dataclass(frozen=True)
class Unfinished:
    """A staging directory, and the committed manifest it belongs to (None: its change was never
    committed).
    """

    change_id: str
    modified_ms: int
    manifest: Manifest | None


class CommitLog:
    """One topic's commit log."""

    def __init__(
        self,
        hdfs: HdfsClient,
        paths: TopicPaths,
        *,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.hdfs = hdfs
        self.paths = paths
        self._clock_ms = clock_ms

    def state(self) -> TableState:
        """What is committed. Raises `ManifestError` where the log has holes or can't be read."""
        states, manifests = self._numbers()
        state = TableState()
        for sequence in reversed(states):
            where = self.paths.state(sequence)
            state = TableState.from_json(self.hdfs.read(where), where)
            break
        for sequence in manifests:
            if sequence > state.sequence:
                state = state.after(self.manifest(sequence))
        return state

    def manifest(self, sequence: int) -> Manifest:
        """One manifest. Raises `ManifestError`."""
        where = self.paths.manifest(sequence)
        try:
            return Manifest.from_json(self.hdfs.read(where), where)
        except HdfsMissingError as error:
            raise ManifestError(f"{where} is missing") from error

    def manifests(self, first: int = 0) -> list[Manifest]:
        """The manifests from sequence `first` on that are still kept."""
        return [self.manifest(sequence) for sequence in self._numbers()[1] if sequence >= first]

    def commit(self, change_id: str, rebase: Rebase) -> Manifest:
        """Commit the change that `rebase` makes of the present state; return its manifest.

        `rebase` is asked again whenever another change came first; it raises `CommitConflictError` if its
        own doesn't hold on top of that. Its manifest's sequence must be the state's next.
        """
        for _ in range(ATTEMPTS_MAX):
            manifest = rebase(self.state())
            if self._try_commit(change_id, manifest):
                crash.reached("committed")
                return manifest
        raise CommitConflictError(
            f"{self.paths.topic}: others committed {ATTEMPTS_MAX} times in a row; repeat the run"
        )

    def finish(self, manifest: Manifest, publish: Publish | None) -> None:
        """Do what is left of a committed change.

        May be repeated, also by another process at the same time.
        """
        self._remove(manifest)
        self._move(manifest)
        crash.reached("moved")
        if publish is not None:
            publish(manifest)
        crash.reached("published")
        if manifest.sequence % STATE_EVERY == STATE_EVERY - 1:
            self._write_state()
        self.hdfs.delete(self.paths.staged(manifest.change_id))

    def discard(self, change_id: str) -> None:
        """Take back what a change that will not be committed has staged.

        If HDFS doesn't let us, it is an orphan.
        """
        with contextlib.suppress(HdfsError):
            self.hdfs.delete(self.paths.staged(change_id))

    def unfinished(self) -> list[Unfinished]:
        """Every staging directory.

        Those with a manifest are to be finished; the others are alive or orphans.
        """
        staged = [entry for entry in self.hdfs.entries(self.paths.staging) if entry.is_dir]
        if not staged:
            return []
        wanted = {entry.name for entry in staged}
        committed: dict[str, Manifest] = {}
        for sequence in reversed(self._numbers()[1]):
            if wanted <= committed.keys():
                break
            manifest = self.manifest(sequence)
            committed[manifest.change_id] = manifest
        found = [Unfinished(entry.name, entry.modified_ms, committed.get(entry.name)) for entry in staged]
        return sorted(
            found, key=lambda each: (each.manifest is None, each.manifest.sequence if each.manifest else 0)
        )

    def finish_all(self, publish: Publish | None) -> list[Manifest]:
        """Finish every committed change that isn't; return them."""
        left = [each.manifest for each in self.unfinished() if each.manifest is not None]
        for manifest in left:
            self.finish(manifest, publish)
        return left

    def _numbers(self) -> tuple[list[int], list[int]]:
        states: list[int] = []
        manifests: list[int] = []
        for entry in self.hdfs.entries(self.paths.log):
            stem, _, kind = entry.name.partition(".")
            if stem.isdigit() and kind == "json":
                manifests.append(int(stem))
            elif stem.isdigit() and kind == "state.json":
                states.append(int(stem))
        return sorted(states), sorted(manifests)

    def _try_commit(self, change_id: str, manifest: Manifest) -> bool:
        prepared = f"{self.paths.staged(change_id)}/manifest.json"
        target = self.paths.manifest(manifest.sequence)
        self.hdfs.write(prepared, manifest.to_json(), overwrite=True)
        self.hdfs.makedirs(self.paths.log)
        crash.reached("prepared")
        if self.hdfs.rename(prepared, target):
            return True
        # Taken by another change; or by this one, when the answer to the first try was lost.
        return self.manifest(manifest.sequence).change_id == change_id

    def _move(self, manifest: Manifest) -> None:
        files: list[DataFile | DeadFile] = [*manifest.files, *manifest.dead_files]
        if not files:
            return

        def move(each: DataFile | DeadFile) -> None:
            if not self.hdfs.rename(each.staged, each.path) and self.hdfs.status(each.path) is None:
                self._check_gone_later(each.path, manifest)

        with ThreadPoolExecutor(MOVES_AT_ONCE, thread_name_prefix="move") as pool:
            list(pool.map(self.hdfs.makedirs, sorted({each.path.rsplit("/", 1)[0] for each in files})))
            move(files[0])
            crash.reached("moved-one")
            list(pool.map(move, files[1:]))

    def _check_gone_later(self, path: str, manifest: Manifest) -> None:
        state = self.state()
        if path in state.files or path in state.dead_files:
            raise HdfsError(
                f"{path} of manifest {padded(manifest.sequence)} is neither staged nor in its place; "
                "restore it, or run `headrace warehouse verify` to see what else is missing"
            )

    def _remove(self, manifest: Manifest) -> None:
        if not manifest.removed:
            return
        trash = self.paths.trashed(manifest.change_id)
        self.hdfs.makedirs(trash)
        for path in manifest.removed:
            self.hdfs.rename(path, f"{trash}/{path.rsplit('/', 1)[-1]}")

    def _write_state(self) -> None:
        state = self.state()
        self.hdfs.write(self.paths.state(state.sequence), state.to_json(), overwrite=True)
