"""The drill's own files: the truth of each run, written before the harm. One run at a time, cleaned up.

<state>/drills/lock                 held while a drill runs
<state>/drills/<run>/truth.json     kept, of the last `RUNS_KEPT` runs
<state>/drills/<run>/state          its publishers' journals; removed with the run
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.audit.topic.drills import DrillPlant
from headrace.drill.errors import DrillError

RUNS_KEPT: Final = 30
TRUTH: Final = "truth.json"
STATE: Final = "state"
_MODE: Final = 0o700


@contextmanager
def drills_folder(state_dir: Path) -> Iterator[Path]:
    """Yields the folder of all runs, which this process has to itself; removes what killed drills left.

    Raises `DrillError`.
    """
    folder = state_dir / "drills"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=_MODE)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DrillError(f"the truth cannot be written to {folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DrillError(f"another drill runs here (it holds {folder / 'lock'})") from None
        clean(folder)
        try:
            yield folder
        finally:
            clean(folder)
    finally:
        os.close(lock)


def clean(folder: Path) -> None:
    """Removes the state of all publishers of drills, and the oldest runs."""
    runs = sorted((each for each in folder.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    for run in runs:
        shutil.rmtree(run / STATE, ignore_errors=True)
    for run in runs[:-RUNS_KEPT]:
        shutil.rmtree(run, ignore_errors=True)


class Truth:
    """The truth of one run, on disk before anything is harmed. Thread-safe."""

    def __init__(self, folder: Path, run: str, began_ms: int) -> None:
        self.run = run
        self.began_ms = began_ms
        self.path = folder / run / TRUTH
        self.state_dir = folder / run / STATE
        self.state_dir.mkdir(parents=True, mode=_MODE)
        self._plants: dict[str, DrillPlant] = {}
        self._lock = threading.Lock()

    @property
    def plants(self) -> list[DrillPlant]:
        """All that was written so far."""
        with self._lock:
            return list(self._plants.values())

    def tell(self, plant: DrillPlant) -> None:
        """Writes a plant down, or more about it; it is on disk when this returns. Raises `OSError`."""
        with self._lock:
            self._plants[plant.service] = plant
            self._write()

    def tell_outcomes(self, plants: list[DrillPlant]) -> None:
        """Writes down what became of all plants. Raises `OSError`."""
        with self._lock:
            self._plants = {plant.service: plant for plant in plants}
            self._write()

    def _write(self) -> None:
        plants = [plant.to_json() for plant in self._plants.values()]
        data = {"run": self.run, "began_ms": self.began_ms, "pid": os.getpid(), "plants": plants}
        staged = self.path.with_suffix(".new")
        with staged.open("w") as file:
            json.dump(data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self.path)
