"""The ends of brokers' processes: the agent ends the ZooKeeper session that a dead broker left behind.

Without it the broker's partitions would wait for the session's timeout before they get new leaders. That a
process has ended is known from the kernel (pidfd_open(2)), never guessed from silence: a process that hangs
keeps its session, and so does one of another host, whose folder was copied to this one. A broker that ends in
order removes its file itself. A ZooKeeper that hangs holds up the sessions of its own brokers alone.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

from headrace.agent.unit import Unit
from headrace.coordination.errors import CoordinationError
from headrace.coordination.session_files import LeftSession, forget_session, read_session
from headrace.process.background import in_background

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.5  # for processes that have been started
JOIN_WAIT_MAX_S: Final = 6.0


def broker_folders(units: Iterable[Unit]) -> list[Path]:
    """Returns the data directories of the brokers among these units."""
    return [unit.data_dir for unit in units if unit.kind == "broker" and unit.data_dir is not None]


class Endings:
    """A thread that watches the processes whose sessions are in `folders()`, from `start` until `ending`."""

    def __init__(self, folders: Callable[[], Iterable[Path]], ending: threading.Event) -> None:
        self._folders = folders
        self._ending = ending
        self._selector = selectors.DefaultSelector()
        self._watched: dict[LeftSession, int] = {}  # and the process's descriptor
        self._ended: dict[LeftSession, Future[None]] = {}  # those that are being ended
        self._thread = threading.Thread(target=self._run, name="endings", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Waits until the thread has ended, at most `JOIN_WAIT_MAX_S`."""
        self._thread.join(JOIN_WAIT_MAX_S)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._look()
                if not self._watched:
                    self._ending.wait(LOOK_INTERVAL_S)
                    continue
                for key, _ in self._selector.select(LOOK_INTERVAL_S):
                    folder, left = key.data
                    self._forget(left)
                    self._end(folder, left)
            except Exception:
                logger.exception("watching the ends of brokers failed")
                self._ending.wait(LOOK_INTERVAL_S)
        for left in list(self._watched):
            self._forget(left)
        self._selector.close()

    def _look(self) -> None:
        """Begins to watch each process that has left a session and is not watched yet."""
        self._ended = {left: future for left, future in self._ended.items() if not future.done()}
        present: set[LeftSession] = set()
        for folder in self._folders():
            left = read_session(folder)
            if left is None or not left.is_of_this_boot:
                continue
            present.add(left)
            if left in self._watched or left in self._ended:
                continue
            descriptor = _opened(left.pid)
            if descriptor is None:
                self._end(folder, left)
                continue
            self._watched[left] = descriptor
            self._selector.register(descriptor, selectors.EVENT_READ, (folder, left))
        for left in self._watched.keys() - present:
            self._forget(left)

    def _forget(self, left: LeftSession) -> None:
        descriptor = self._watched.pop(left)
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _end(self, folder: Path, left: LeftSession) -> None:
        """Ends the session of a process that has ended, on a thread of its own."""
        self._ended[left] = in_background(partial(_end_session, folder, left), f"ending-{left.pid}")


def _opened(pid: int) -> int | None:
    """A descriptor of a process; None if there is none of this id."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        # A thread of some other process has the id by now.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _end_session(folder: Path, left: LeftSession) -> None:
    """Ends a session, unless the process's successor has its own already."""
    if read_session(folder) != left:
        return
    try:
        left.end()
    except CoordinationError as error:
        logger.warning("process %d of %s has ended, its session has not: %s", left.pid, folder, error)
        return
    except Exception:
        logger.exception("process %d of %s has ended, its session has not", left.pid, folder)
        return
    logger.info("ended the ZooKeeper session that process %d of %s left", left.pid, folder)
    if read_session(folder) == left:
        forget_session(folder)
