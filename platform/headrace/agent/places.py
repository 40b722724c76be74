"""Where an agent's own things lie below its home, and what it tells others of itself there.

Owns `<home>/agent/`: the token, the desired units, the lock that keeps a second agent away, and `agent.json`,
by which the commands of the same machine find the agent. Imports little: who only asks starts quickly.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import IO, Final, NamedTuple

from headrace.agent.errors import AgentStateError

LOCK_PAUSES_S: Final = (0.05, 0.1, 0.2)


class Places(NamedTuple):
    """The files of the agent of one home."""

    home: Path

    @property
    def directory(self) -> Path:
        return self.home / "agent"

    @property
    def token(self) -> Path:
        return self.directory / "token"

    @property
    def units(self) -> Path:
        return self.directory / "units"

    @property
    def loads(self) -> Path:
        return self.home / "loads"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    @property
    def whereabouts(self) -> Path:
        return self.directory / "agent.json"

    @property
    def log(self) -> Path:
        return self.home / "logs" / "agent.log"

    def make(self) -> None:
        """Raises `AgentStateError`."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AgentStateError(f"{self.directory} cannot be made: {error.strerror}") from error


class Whereabouts(NamedTuple):
    """Where the agent of a home listens. `certificate`: of its TLS, None without. `build`: of its code.

    `is_daemon`: it was started by a command that needed one, not by somebody who cares for it.
    """

    url: str
    certificate: str | None
    pid: int
    build: str
    is_daemon: bool

    def write(self, path: Path) -> None:
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(self._asdict(), indent=1))
        new.replace(path)

    @staticmethod
    def read(path: Path) -> Whereabouts | None:
        """None when no agent has left any."""
        try:
            return Whereabouts(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def lock(places: Places) -> IO[str]:
    """Keeps every other agent of this home away while the file is open. Raises `AgentStateError`."""
    file = places.lock.open("a+")
    try:
        _lock_patiently(file)
    except OSError as error:
        file.seek(0)
        holder = file.read(20).strip()
        file.close()
        raise AgentStateError(
            f"another agent{f' (process {holder})' if holder else ''} keeps the units of {places.home}; "
            "end it first, or use another home (HEADRACE_HOME)"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _lock_patiently(file: IO[str]) -> None:
    # Whoever asks whether there is an agent holds the lock for a moment.
    for pause_s in LOCK_PAUSES_S:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            time.sleep(pause_s)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(places: Places) -> bool:
    """Whether an agent of this home lives."""
    try:
        with places.lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def build() -> str:
    """A short name for the agent's code as it lies on disk: an agent of another build is an older one."""
    sums = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for path in sorted((*folder.glob("site/*.py"), *folder.glob("agent/*.py"))):
        sums.update(path.read_bytes())
    return sums.hexdigest()[:12]
