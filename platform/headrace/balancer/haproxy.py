"""HAProxy as a child process, in master-worker mode: starts it, tells it what changes, reads its figures.

Owns the process, its configuration file and its runtime socket. What stands in the file and what is said over
the socket is `haproxy_config`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.balancer.backends import Backend, BackendFigures
from headrace.balancer.errors import BalancerError
from headrace.balancer.haproxy_config import (
    POOL,
    HaproxySettings,
    commands,
    config_text,
    parse_figures,
    parse_servers,
)

logger = logging.getLogger(__name__)

START_WAIT_MAX_S: Final = 10.0
RELOAD_WAIT_MAX_S: Final = 10.0
STOP_WAIT_MAX_S: Final = 5.0
ANSWER_WAIT_MAX_S: Final = 5.0
ANSWER_MAX_BYTES: Final = 4 << 20
POLL_S: Final = 0.02
# sockaddr_un holds 108 bytes, and HAProxy binds a longer temporary name first.
SOCKET_PATH_MAX: Final = 80

_PR_SET_PDEATHSIG: Final = 1
# The runtime API answers most commands with an empty line; these say something when all is well.
_GOOD_ANSWERS: Final = ("", "New server registered.", "HaproxyServer deleted.")
_CHANGED_ADDRESS: Final = ("IP changed from", "port changed from", "no need to change")


class HaproxyEngine:
    kind: Final = "haproxy"

    def __init__(self, program: Path, settings: HaproxySettings, directory: Path) -> None:
        self._program = program
        self._settings = settings
        self._configuration = directory / "haproxy.cfg"
        self._backends: tuple[Backend, ...] = ()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns once HAProxy listens. Raises `BalancerError` when it does not."""
        self._configuration.parent.mkdir(parents=True, exist_ok=True)
        self._settings.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings.socket.unlink(missing_ok=True)
        self._write()
        self._process = await asyncio.create_subprocess_exec(
            self._program,
            *("-W", "-db", "-f", self._configuration),
            stdin=asyncio.subprocess.DEVNULL,
            # Whoever ends our process group lets us end HAProxy in our turn.
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        deadline = asyncio.get_running_loop().time() + START_WAIT_MAX_S
        while True:
            if self._process.returncode is not None:
                raise BalancerError(f"HAProxy does not start with {self._configuration}: its reason is above")
            with contextlib.suppress(OSError):
                await self._say("show info")
                return
            if asyncio.get_running_loop().time() > deadline:
                raise BalancerError(f"HAProxy was not ready within {START_WAIT_MAX_S:g} s")
            await asyncio.sleep(POLL_S)

    async def failed(self) -> str:
        """Returns when HAProxy has ended by itself, with the reason."""
        assert self._process is not None
        return f"HAProxy ended with {await self._process.wait()}"

    async def apply(self, backends: Sequence[Backend]) -> None:
        """When it returns, no new connection goes to a backend that drains. Raises `BalancerError`,
        `OSError`."""
        present = parse_servers(await self._say(f"show servers state {POOL}"))
        for command in commands(present, backends):
            answer = (await self._say(command)).strip()
            if answer not in _GOOD_ANSWERS and not answer.startswith(_CHANGED_ADDRESS):
                raise BalancerError(f"HAProxy answers {command!r} with {answer!r}")
        if tuple(backends) != self._backends:
            self._backends = tuple(backends)
            self._write()

    async def figures(self) -> dict[int, BackendFigures]:
        found = parse_figures(await self._say("show stat"))
        by_name = {backend.name: backend.broker_id for backend in self._backends}
        return {by_name[name]: figures for name, figures in found.items() if name in by_name}

    async def reload(self) -> None:
        """A new worker process takes the listening sockets over; the old one serves its connections to their
        end. Raises `BalancerError` when the old one stays in charge."""
        assert self._process is not None
        before = await self._worker()
        self._process.send_signal(signal.SIGUSR2)
        deadline = asyncio.get_running_loop().time() + RELOAD_WAIT_MAX_S
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(OSError):
                if await self._worker() not in ("", before):
                    return
            await asyncio.sleep(POLL_S)
        raise BalancerError(f"HAProxy did not reload {self._configuration} within {RELOAD_WAIT_MAX_S:g} s")

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_WAIT_MAX_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _write(self) -> None:
        text = config_text(self._settings, self._backends)
        fresh = self._configuration.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._configuration)

    async def _worker(self) -> str:
        lines = (await self._say("show info")).splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("Pid:")), "")

    async def _say(self, command: str) -> str:
        """One command over the runtime socket. Raises `OSError`."""
        async with asyncio.timeout(ANSWER_WAIT_MAX_S):
            reader, writer = await asyncio.open_unix_connection(self._settings.socket, limit=ANSWER_MAX_BYTES)
            try:
                writer.write(f"{command}\n".encode())
                return (await reader.read(-1)).decode(errors="replace")
            finally:
                writer.transport.abort()


def socket_path(directory: Path) -> Path:
    """Where the runtime socket of a balancer with this directory lies."""
    path = directory / "haproxy.sock"
    if len(os.fsencode(path.absolute())) <= SOCKET_PATH_MAX:
        return path.absolute()
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}" / f"{name}.haproxy.sock"


def _die_with_parent() -> None:
    """Runs in the child: without us nobody would keep its backends, and the next one needs its address."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
