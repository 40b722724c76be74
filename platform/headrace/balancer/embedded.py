"""A TCP balancer in this process, where HAProxy cannot be installed: no root, one machine.

Owns its sockets and health checks. `apply` sets the backends, `backends.choose` picks the next one. It knows
nothing of Kafka except the health check's request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Final

from headrace.balancer.backends import (
    CHECK_INTERVAL_S,
    CONNECT_TIMEOUT_S,
    Backend,
    BackendFigures,
    Health,
    Phase,
    choose,
    text_of,
)
from headrace.balancer.checking import check
from headrace.balancer.haproxy_config import HALF_CLOSED_TIMEOUT_S, IDLE_TIMEOUT_S
from headrace.process.command_line import HostPort

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 256 << 10  # read ahead at most, in each direction of each connection
BACKLOG: Final = 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Member:
    """A backend with its health, its connections and their figures. It is checked until `close`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.health = Health()
        self.check = "not checked yet"
        self.connecting = 0
        self.total = 0
        self.connect_errors = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.open: set[asyncio.Task[None]] = set()
        self.checking = asyncio.create_task(self._check_always())

    @property
    def takes_more(self) -> bool:
        return self.backend.phase is Phase.READY and self.health.is_up

    def figures(self) -> BackendFigures:
        return BackendFigures(
            self.health.is_up,
            len(self.open),
            self.total,
            self.connect_errors,
            self.bytes_in,
            self.bytes_out,
            self.check,
        )

    def cut(self) -> None:
        """Closes all connections."""
        for task in self.open:
            task.cancel()

    def close(self) -> None:
        self.checking.cancel()
        self.cut()

    async def _check_always(self) -> None:
        while True:
            problem = await check(self.backend.address)
            before, self.health = self.health, self.health.after(not problem)
            self.check = problem or "ok"
            if before.is_up != self.health.is_up:
                state = "up" if self.health.is_up else f"down: {self.check}"
                logger.warning("%s at %s is %s", self.backend.name, text_of(self.backend.address), state)
                # A stopping broker does not answer health checks while it finishes its requests.
                if not self.health.is_up and self.backend.phase is Phase.READY:
                    self.cut()
            await asyncio.sleep(CHECK_INTERVAL_S)


class EmbeddedEngine:
    kind: Final = "embedded"

    def __init__(self, listen: HostPort, connections_max: int) -> None:
        self._listen = listen
        self._connections_max = connections_max
        self._members: dict[int, _Member] = {}
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Starts to listen. Raises `OSError` if the address cannot be bound."""
        self._server = await asyncio.start_server(
            self._accept, *self._listen, limit=CHUNK_BYTES, backlog=BACKLOG
        )

    async def failed(self) -> str:
        """Never returns: this engine ends only with its process."""
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def apply(self, backends: Sequence[Backend]) -> None:
        """Makes these the backends; once it returns, none that drains gets a new connection."""
        for backend in backends:
            member = self._members.get(backend.broker_id)
            if member is None:
                member = self._members[backend.broker_id] = _Member(backend)
            if member.backend.address != backend.address:
                member.health = Health()
            member.backend = backend
        for broker_id in self._members.keys() - {backend.broker_id for backend in backends}:
            self._members.pop(broker_id).close()
        draining = [member for member in self._members.values() if member.backend.phase is Phase.DRAINING]
        # Every attempt to connect ends within CONNECT_TIMEOUT_S.
        while any(member.connecting for member in draining):
            await asyncio.sleep(0.01)

    async def figures(self) -> dict[int, BackendFigures]:
        return {broker_id: member.figures() for broker_id, member in self._members.items()}

    async def reload(self) -> None:
        """Does nothing: this engine has no configuration file."""

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [*self._clients, *(member.checking for member in self._members.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- clients ---

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= self._connections_max:
            logger.warning("refused a connection: %d are open", self._connections_max)
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve((reader, writer)))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, client: Streams) -> None:
        """Serves one client until it or its broker ends the connection."""
        try:
            tried: set[int] = set()
            while (member := self._next(tried)) is not None:
                broker = await self._connect(member)
                if broker is not None:
                    await self._join(member, client, broker)
                    return
                tried.add(member.backend.broker_id)
            logger.warning("no broker takes the connection of %s", client[1].get_extra_info("peername"))
        except OSError as error:
            logger.info("a connection ended: %s", error)
        finally:
            client[1].transport.abort()

    def _next(self, tried: set[int]) -> _Member | None:
        members = self._members.items()
        chosen = choose(
            {broker_id for broker_id, member in members if member.takes_more and broker_id not in tried},
            {broker_id: len(member.open) + member.connecting for broker_id, member in members},
            {broker_id: member.total for broker_id, member in members},
        )
        return None if chosen is None else self._members[chosen]

    async def _connect(self, member: _Member) -> Streams | None:
        member.connecting += 1
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                broker = await asyncio.open_connection(*member.backend.address, limit=CHUNK_BYTES)
        except OSError as error:
            member.connect_errors += 1
            logger.warning("%s does not take a connection: %s", member.backend.name, error or "too slow")
            return None
        finally:
            member.connecting -= 1
        task = asyncio.current_task()
        assert task is not None
        member.open.add(task)
        task.add_done_callback(member.open.discard)
        member.total += 1
        return broker

    async def _join(self, member: _Member, client: Streams, broker: Streams) -> None:
        for _, writer in (client, broker):
            connected = writer.get_extra_info("socket")
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        inward = asyncio.create_task(self._copy(client[0], broker[1], member, is_inward=True))
        outward = asyncio.create_task(self._copy(broker[0], client[1], member, is_inward=False))
        try:
            done, left = await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
            if left and not any(task.exception() for task in done):
                # One side has closed its half of the connection; the other may finish what it sends.
                await asyncio.wait(left, timeout=HALF_CLOSED_TIMEOUT_S)
        finally:
            for task in (inward, outward):
                task.cancel()
            await asyncio.gather(inward, outward, return_exceptions=True)
            broker[1].transport.abort()

    @staticmethod
    async def _copy(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, member: _Member, *, is_inward: bool
    ) -> None:
        while data := await source.read(CHUNK_BYTES):
            if is_inward:
                member.bytes_in += len(data)
            else:
                member.bytes_out += len(data)
            sink.write(data)
            await _taken(sink)
        sink.write_eof()


async def _taken(sink: asyncio.StreamWriter) -> None:
    """Returns once the peer has taken enough of what was written. Raises `TimeoutError` if it takes nothing
    for `IDLE_TIMEOUT_S`: its kernel may answer keepalive for ever, and what the other side does, such as
    closing the connection, is not seen meanwhile.
    """
    while True:
        left_bytes = sink.transport.get_write_buffer_size()
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                return await sink.drain()
        except TimeoutError:
            if sink.transport.get_write_buffer_size() >= left_bytes:
                raise
