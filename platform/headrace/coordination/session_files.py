"""The file by which a process leaves its session with ZooKeeper to its supervisor.

ZooKeeper keeps the ephemeral nodes of a killed process until its session times out. The supervisor knows at
once that it is dead, and may end the session with the id and the password that it finds here. The file is
readable by its owner alone: who has it can end the session.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from headrace.coordination.attempts import make_client
from headrace.coordination.errors import ZooKeeperUnavailableError
from headrace.process.disk import kernel

SESSION_FILE: Final = "zookeeper-session.json"
END_WAIT_MAX_S: Final = 5.0
FILE_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class LeftSession:
    """A session of the process `pid` with the ZooKeeper at `hosts`; `password` in hexadecimal. `boot`: whose
    process it is (`process.disk.kernel`); "" in files of earlier versions.
    """

    pid: int
    hosts: str
    session_id: int
    password: str
    boot: str = ""

    @property
    def is_of_this_boot(self) -> bool:
        """Whether this kernel knows if the process lives: the folder may be a copy of another host's."""
        return self.boot in ("", kernel())

    def write(self, folder: Path) -> None:
        """Replaces the file in `folder`; a reader sees the old one or the new one."""
        temporary = folder / f"{SESSION_FILE}.new"
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(asdict(self), file)
        temporary.replace(folder / SESSION_FILE)

    def end(self) -> None:
        """Ends the session: its ephemeral nodes are deleted at once. One that has ended already stays so.

        Raises `ZooKeeperUnavailableError` if no server answers within `END_WAIT_MAX_S`.
        """
        servers = self.hosts.partition("/")[0]
        identity = self.session_id, bytes.fromhex(self.password)
        client = make_client(servers, client_id=identity)
        try:
            client.start(timeout=END_WAIT_MAX_S)
            client.stop()
        except (KazooTimeoutError, KazooException) as error:
            raise ZooKeeperUnavailableError(f"ZooKeeper {servers}: {type(error).__name__} {error}") from None
        finally:
            client.stop()
            client.close()


def read_session(folder: Path) -> LeftSession | None:
    """Returns the session that a process left in `folder`; None if there is none that can be read."""
    try:
        with (folder / SESSION_FILE).open("rb") as file:
            fields = json.loads(file.read(FILE_MAX_BYTES))
        left = LeftSession(**fields)
        bytes.fromhex(left.password)
    except (OSError, ValueError, TypeError):
        return None
    numbers, texts = (left.pid, left.session_id), (left.hosts, left.boot)
    if not all(isinstance(each, int) for each in numbers) or not all(isinstance(each, str) for each in texts):
        return None
    return left


def forget_session(folder: Path) -> None:
    """Removes the file: the session has ended."""
    (folder / SESSION_FILE).unlink(missing_ok=True)
