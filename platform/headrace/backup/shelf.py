"""A folder of backups: which are whole, which is half, and which one runs.

    <shelf>/2026-11-23T021500Z/           a whole backup
    <shelf>/2026-11-23T031500Z.partial/   one that runs, or was interrupted
    <shelf>/2026-11-20T021500Z.removing/  one that is being removed
    <shelf>/.lock                         held by the backup that runs

Owns these names. A backup gets its own name last, once its manifest is durable.
"""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace.backup import manifest
from headrace.backup.errors import BackupError, RefusedError
from headrace.backup.manifest import Manifest
from headrace.backup.writer import Earlier, read_journal
from headrace.log.files import sync_directory

PARTIAL: Final = ".partial"
REMOVING: Final = ".removing"
LOCK: Final = ".lock"
_NAME: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{6}Z")


class Shelf:
    """One folder of backups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def whole(self) -> list[Path]:
        """Returns the backups that have their own name, the oldest first."""
        return self._named("")

    def halves(self) -> list[Path]:
        """Returns those that were interrupted, or run now."""
        return self._named(PARTIAL)

    def _named(self, suffix: str) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(
            path
            for path in self.folder.iterdir()
            if path.name.endswith(suffix)
            and _NAME.fullmatch(path.name.removesuffix(suffix))
            and path.is_dir()
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other backups away. Raises `RefusedError`, `OSError`."""
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RefusedError(
                    f"another backup into {self.folder} runs; wait until it has ended"
                ) from None
            yield

    def check(self) -> None:
        """Raises `RefusedError` for a backup itself, and for a file. The folder need not exist yet."""
        if (self.folder / manifest.MANIFEST).exists():
            raise RefusedError(f"{self.folder} is a backup itself; give the folder that holds the backups")
        if self.folder.exists() and not self.folder.is_dir():
            raise RefusedError(f"{self.folder} is a file; give a folder that holds backups, or will")

    def earlier(self) -> list[Earlier]:
        """Returns the backups whose files a new one may take over: halves, then the last whole one."""
        found = []
        for folder in [*reversed(self.halves()), *reversed(self.whole())]:
            try:
                files = dict(manifest.load(folder).by_path)
                is_whole = not folder.name.endswith(PARTIAL)
            except (BackupError, OSError):
                files, is_whole = read_journal(folder), False
            found.append(Earlier(folder, files))
            if is_whole:
                break
        return found

    def begin(self, began_ms: int) -> Path:
        """Makes the folder of a new backup."""
        while True:
            name = f"{datetime.fromtimestamp(began_ms / 1000, UTC):%Y-%m-%dT%H%M%SZ}"
            folder = self.folder / (name + PARTIAL)
            if not folder.exists() and not (self.folder / name).exists():
                folder.mkdir(mode=0o700)
                return folder
            began_ms += 1000

    def end(self, folder: Path, made: Manifest) -> Path:
        """Writes the manifest and gives the backup its name. Returns its path. Raises `OSError`."""
        manifest.save(folder, made)
        whole = folder.with_name(folder.name.removesuffix(PARTIAL))
        (folder / "journal.jsonl").unlink(missing_ok=True)
        sync_directory(folder)
        folder.rename(whole)
        sync_directory(self.folder)
        return whole

    def remove_halves(self) -> None:
        """Removes what interrupted backups left. Raises `OSError`."""
        for folder in self.halves():
            self._remove(folder)
        for folder in self.folder.glob(f"*{REMOVING}"):
            shutil.rmtree(folder)

    def keep(self, count: int, newest: Path) -> list[str]:
        """Removes the oldest whole backups beyond `count`; returns their names. `newest`, which was just
        taken, stays: by a clock that was ahead once, others may have later names. Raises `OSError`.
        """
        others = [folder for folder in self.whole() if folder != newest]
        old = others[: max(0, len(others) - (count - 1))]
        for folder in old:
            self._remove(folder)
        return [folder.name for folder in old]

    def _remove(self, folder: Path) -> None:
        # A half that is left of it is not taken for a backup.
        gone = folder.with_name(folder.name.removesuffix(PARTIAL) + REMOVING)
        if gone.exists():
            shutil.rmtree(gone)
        folder.rename(gone)
        sync_directory(self.folder)
        shutil.rmtree(gone)
