"""The agent's own files in its home, and the record by which other processes of the machine find it.

Owns `<home>/agent/`: the token, the desired units, the lock that keeps a second agent away, and `agent.json`.
Imports little, so that commands which only look for an agent start quickly.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import IO, Final, NamedTuple

from headrace.agent.errors import AgentStateError
from headrace.agent.folders import write_durably

RESTORING: Final = "restoring"
"""In a home: what `headrace restore` has not finished."""
LOCK_PAUSES_S: Final = (0.05, 0.1, 0.2)


class AgentHome(NamedTuple):
    """The paths of the agent's files in its home."""

    home: Path

    @property
    def directory(self) -> Path:
        return self.home / "agent"

    @property
    def token(self) -> Path:
        return self.directory / "token"

    @property
    def read_token(self) -> Path:
        return self.directory / "token-read"

    @property
    def permitted(self) -> Path:
        return self.directory / "permitted-paths"

    @property
    def actions(self) -> Path:
        return self.home / "logs" / "actions.log"

    @property
    def reserve(self) -> Path:
        return self.directory / "reserve"

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
    def record(self) -> Path:
        return self.directory / "agent.json"

    @property
    def log(self) -> Path:
        return self.home / "logs" / "agent.log"

    def make(self) -> None:
        """Creates the folders. Raises `AgentStateError`."""
        check_restored(self.home)
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise AgentStateError(f"{self.directory} cannot be created: {error.strerror}") from error


def check_restored(home: Path) -> None:
    """Raises `AgentStateError` if a restore into this home was interrupted."""
    if (home / RESTORING).exists():
        raise AgentStateError(
            f"{home} is half restored: repeat the `headrace restore` that was interrupted, or remove the home"
        )


class AgentRecord(NamedTuple):
    """Where the agent of a home listens. `certificate`: of its TLS, None without. `build`: of its code.

    `is_daemon`: a command that needed an agent started it in the background.
    """

    url: str
    certificate: str | None
    pid: int
    build: str
    is_daemon: bool

    def write(self, path: Path) -> None:
        write_durably(path, json.dumps(self._asdict(), indent=1), is_durable=False)

    @staticmethod
    def read(path: Path) -> AgentRecord | None:
        """Reads a record; None if there is none."""
        try:
            return AgentRecord(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def lock(paths: AgentHome) -> IO[str]:
    """Keeps every other agent of this home away while the file is open. Raises `AgentStateError`.

    The record of an agent that was killed goes: its process id may be another program's by now, which must
    not pass for the agent that starts.
    """
    file = paths.lock.open("a+")
    try:
        _lock_patiently(file)
    except OSError as error:
        file.seek(0)
        holder = file.read(20).strip()
        file.close()
        raise AgentStateError(
            f"another agent{f' (process {holder})' if holder else ''} keeps the units of {paths.home}; "
            "end it first, or use another home (HEADRACE_HOME)"
        ) from error
    paths.record.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # on a full disk: the number is only for people
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file


def _lock_patiently(file: IO[str]) -> None:
    # `is_locked` of another process holds the lock for a moment.
    for pause_s in LOCK_PAUSES_S:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            time.sleep(pause_s)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(paths: AgentHome) -> bool:
    """Whether an agent of this home runs. Raises `AgentStateError` if that is not known, as of the home of
    another user."""
    try:
        with paths.lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise AgentStateError(
            f"whether an agent keeps {paths.home} is not known: {paths.lock}: {error.strerror}; run this as "
            "the user whose home it is, or name another one (HEADRACE_HOME)"
        ) from error
    return False


def build() -> str:
    """A digest of the agent's code on disk, by which an agent that runs other code is recognised."""
    sums = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for path in sorted((*folder.glob("site/*.py"), *folder.glob("agent/*.py"))):
        sums.update(path.read_bytes())
    return sums.hexdigest()[:12]
