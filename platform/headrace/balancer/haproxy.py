"""HAProxy as a child process, in master-worker mode: starts it, sends it changes, reads its figures.

Owns the process, its configuration file and its runtime socket; `haproxy_config` has the text of the file and
of the commands.
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
from headrace.balancer.names import FrontNames
from headrace.process.text import has_control

logger = logging.getLogger(__name__)

START_WAIT_MAX_S: Final = 10.0
RELOAD_WAIT_MAX_S: Final = 10.0
STOP_WAIT_MAX_S: Final = 5.0
RESPONSE_WAIT_MAX_S: Final = 5.0
RESPONSE_MAX_BYTES: Final = 4 << 20
POLL_S: Final = 0.02
# sockaddr_un holds 108 bytes, and HAProxy binds a longer temporary name first.
SOCKET_PATH_MAX: Final = 80

_PR_SET_PDEATHSIG: Final = 1
# The runtime API answers most commands with an empty line, and these with a message of success.
_SUCCESS: Final = ("", "New server registered.", "Server deleted.")
_CHANGED_ADDRESS: Final = ("IP changed from", "port changed from", "no need to change")


class HaproxyEngine:
    kind: Final = "haproxy"

    def __init__(self, program: Path, settings: HaproxySettings, directory: Path) -> None:
        self._program = program
        self._settings = settings
        self._configuration = directory / "haproxy.cfg"
        self._names = FrontNames()
        self._wanted: tuple[Backend, ...] = ()
        self._backends: tuple[Backend, ...] = ()  # of these, those whose addresses are known
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns once HAProxy listens. Raises `BalancerError` if it does not."""
        self._configuration.parent.mkdir(parents=True, exist_ok=True)
        self._settings.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings.socket.unlink(missing_ok=True)
        self._write()
        self._process = await asyncio.create_subprocess_exec(
            self._program,
            *("-W", "-db", "-f", self._configuration),
            stdin=asyncio.subprocess.DEVNULL,
            # A signal to our process group must not reach HAProxy: `stop` ends it.
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        deadline = asyncio.get_running_loop().time() + START_WAIT_MAX_S
        while True:
            if self._process.returncode is not None:
                raise BalancerError(
                    f"HAProxy does not start with {self._configuration}; its own message is above"
                )
            with contextlib.suppress(OSError):
                await self._send("show info")
                return
            if asyncio.get_running_loop().time() > deadline:
                raise BalancerError(f"HAProxy was not ready within {START_WAIT_MAX_S:g} s")
            await asyncio.sleep(POLL_S)

    async def failed(self) -> str:
        """Returns the cause once HAProxy has ended by itself."""
        assert self._process is not None
        return f"HAProxy ended with {await self._process.wait()}"

    async def apply(self, backends: Sequence[Backend]) -> None:
        """Makes these the backends; once it returns, none that drains gets a new connection.

        One whose name means nothing gets none either, and holds up no other one. Raises `BalancerError`,
        `OSError`.
        """
        self._wanted = tuple(backends)
        resolved = await self._names.resolved(backends)
        present = parse_servers(await self._send(f"show servers state {POOL}"))
        for command in commands(present, resolved):
            response = (await self._send(command)).strip()
            if response not in _SUCCESS and not response.startswith(_CHANGED_ADDRESS):
                raise BalancerError(f"HAProxy answered {command!r} with {response!r}")
        if resolved != self._backends:
            self._backends = resolved
            self._write()

    async def figures(self) -> dict[int, BackendFigures]:
        found = parse_figures(await self._send("show stat"))
        unknown = {
            each.broker_id: BackendFigures(False, 0, 0, 0, 0, 0, self._names.problem_of(each.address[0]))
            for each in self._wanted
        }
        by_name = {backend.name: backend.broker_id for backend in self._backends}
        return unknown | {by_name[name]: figures for name, figures in found.items() if name in by_name}

    async def reload(self) -> None:
        """Lets a new worker process take over the listening sockets; the old one serves its open connections.

        Raises `BalancerError` if no new one does.
        """
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
        new = self._configuration.with_suffix(".new")
        new.write_text(text)
        new.replace(self._configuration)

    async def _worker(self) -> str:
        lines = (await self._send("show info")).splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("Pid:")), "")

    async def _send(self, command: str) -> str:
        """Sends one command over the runtime socket; returns the response.

        Raises `OSError`; `BalancerError` for what HAProxy would take for several commands.
        """
        if has_control(command) or ";" in command:
            raise BalancerError(f"not one command: {command!r}")
        async with asyncio.timeout(RESPONSE_WAIT_MAX_S):
            reader, writer = await asyncio.open_unix_connection(
                self._settings.socket, limit=RESPONSE_MAX_BYTES
            )
            try:
                writer.write(f"{command}\n".encode())
                return (await reader.read(-1)).decode(errors="replace")
            finally:
                writer.transport.abort()


def socket_path(directory: Path) -> Path:
    """The path of the runtime socket of a balancer with this directory."""
    path = directory / "haproxy.sock"
    if len(os.fsencode(path.absolute())) <= SOCKET_PATH_MAX:
        return path.absolute()
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}" / f"{name}.haproxy.sock"


def _die_with_parent() -> None:
    """Makes HAProxy end with this process; runs in the child.

    Nothing else would update its backends, and the next balancer needs its address.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
