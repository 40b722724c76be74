"""A broker's disk and clock under command: the preloaded C library, and what a power cut would leave.

`Disk` owns the library's control file and its notes. The notes say how long each file was when it last
became durable; `cut_unsynced` cuts a dead broker's segments back to that, or to somewhere in what was not
durable, so that the last batch is torn.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).with_name("preload.c")
BUILD_WAIT_MAX_S: Final = 60.0
SEGMENT_SUFFIX: Final = ".log"
_FLAGS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
_NUMBERS: Final = struct.Struct("=4q")


class LibraryMissingError(Exception):
    """The preloaded library cannot be built here; the message says what to install."""


def ensure_library(folder: Path) -> Path:
    """Returns the compiled library; compiles it if its source has changed. Raises `LibraryMissingError`."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = folder / f"headrace-faults-{digest}.so"
    if library.is_file():
        return library
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise LibraryMissingError(
            "the faults of disk and clock need a C compiler; on Debian: apt-get install gcc"
        )
    folder.mkdir(parents=True, exist_ok=True)
    fresh = library.with_suffix(".new")
    command = [compiler, *_FLAGS, "-o", str(fresh), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_WAIT_MAX_S, check=False)
    if done.returncode:
        raise LibraryMissingError(f"{SOURCE.name} does not compile: {done.stderr[-2000:]}")
    fresh.replace(library)
    return library


class Orders(NamedTuple):
    """What the library reads: see `preload.c`."""

    fsync_errno: int = 0
    write_errno: int = 0
    ahead_ns: int = 0
    fsync_delay_us: int = 0


class Disk:
    """The disk and the clock of one broker."""

    def __init__(self, library: Path, data_dir: Path, folder: Path, usual: Orders) -> None:
        """`usual`: what holds while no fault does, such as the time that an fsync takes."""
        self.data_dir = data_dir.resolve()
        self._library = library
        self._control = folder / "control"
        self._notes = folder / "notes"
        self._read_bytes = 0
        self._durable: dict[str, int] = {}
        self._usual = usual
        self.loses_bytes = 0
        """A disk that lies: what it loses of each file although an fsync has covered it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._control.write_bytes(_NUMBERS.pack(*usual))
        self._notes.touch()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "HEADRACE_FAULTS_CONTROL": str(self._control),
            "HEADRACE_FAULTS_NOTES": str(self._notes),
            "HEADRACE_FAULTS_DATA": str(self.data_dir),
        }

    def order(self, **changes: int) -> None:
        """From now on calls of the running broker fail so: fields of `Orders`. None: as usual."""
        orders = self._usual._replace(**changes)
        with self._control.open("r+b") as file:
            file.write(_NUMBERS.pack(*orders))

    def durable(self) -> dict[str, int]:
        """Returns the length of each file that an fsync has covered, by path."""
        with self._notes.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode().splitlines():
            what, size, path = line.split(" ", 2)
            before = self._durable.get(path, 0)
            self._durable[path] = min(before, int(size)) if what == "T" else max(before, int(size))
        return self._durable

    def cut_unsynced(self, choose: random.Random) -> int:
        """Cuts the segments of a broker that does not run; returns how many bytes that no fsync covered went.

        Half of the files lose all of them, the others a part, as when some pages reached the disk.
        """
        durable = self.durable()
        lost_bytes = 0
        for path in sorted(self.data_dir.glob(f"*/*{SEGMENT_SUFFIX}")):
            size = path.stat().st_size
            kept = max(0, min(size, durable.get(str(path), 0)) - self.loses_bytes)
            if not self.loses_bytes and kept < size and choose.random() < 0.5:
                kept = choose.randrange(kept, size)
            lost_bytes += size - kept
            with path.open("r+b") as file:
                file.truncate(kept)
            durable[str(path)] = kept  # what has survived is on the disk
        return lost_bytes
