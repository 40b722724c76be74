"""The thread that scrubs a broker's logs (`log.scrub`), at idle I/O priority, until the broker stops."""

from __future__ import annotations

import ctypes
import logging
import platform
import threading
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log.scrub import Scrub, ScrubFinding

logger = logging.getLogger(__name__)

STOP_WAIT_MAX_S: Final = 5.0
RETRY_WAIT_S: Final = 60.0
# ioprio_set(2): no library of ours has it. Its number depends on the machine.
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_WHO_PROCESS: Final = 1
_CLASS_IDLE: Final = 3 << 13


class Damage(NamedTuple):
    """The ranges of addresses that are damaged on this broker's disk, and those that are whole again."""

    found: tuple[ScrubFinding, ...] = ()
    mended: tuple[ScrubFinding, ...] = ()


class Scrubber:
    """`rate_bytes_per_s` 0: nothing is scrubbed."""

    def __init__(self, directory: Path, rate_bytes_per_s: int, interval_ms: int) -> None:
        self._directory = directory
        self._rate = rate_bytes_per_s
        self._interval_ms = interval_ms
        self._stopped = threading.Event()
        self._scrub: Scrub | None = None
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    def start(self) -> None:
        if self._rate:
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread; it saves where it stands."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_WAIT_MAX_S)

    def damage(self) -> Damage:
        """Returns what is known now. Any thread."""
        scrub = self._scrub
        return Damage() if scrub is None else Damage(tuple(scrub.findings), tuple(scrub.mended))

    def _run(self) -> None:
        lower_io_priority()
        while not self._stopped.is_set():
            try:
                self._scrub = Scrub(self._directory, self._rate, self._interval_ms, self._stopped.wait)
                self._scrub.run()
            except Exception:
                logger.exception("the scrub failed; it goes on in %d s", RETRY_WAIT_S)
                self._stopped.wait(RETRY_WAIT_S)


def lower_io_priority() -> bool:
    """Gives the calling thread idle I/O priority; returns whether the system did."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is None:
        return False
    try:
        return int(ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE)) == 0
    except (OSError, AttributeError):
        return False
