"""A TCP balancer in this process, for where HAProxy is not: connects each client to a healthy broker and
moves bytes both ways.

Owns sockets and health checks. Which backends there are it is told (`apply`); which is next is
`backends.choose`. It knows nothing of Kafka but the question that a health check asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from typing import Final

from headrace.balancer.backends import (
    CHECK_INTERVAL_S,
    CHECK_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    Backend,
    BackendFigures,
    Health,
    HostPort,
    Phase,
    choose,
)
from headrace.balancer.haproxy_config import CHECK_ANSWER, CHECK_REQUEST, HALF_CLOSED_TIMEOUT_S

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 256 << 10  # of each direction of each connection: no more is read before it is sent on
BACKLOG: Final = 1024
FRAME_LENGTH_BYTES: Final = 4

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Member:
    """A backend with what is known of it here."""

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
        self.checking: asyncio.Task[None] | None = None

    @property
    def takes_more(self) -> bool:
        return self.backend.phase is Phase.READY and self.health.is_up

    def cut(self) -> None:
        for task in self.open:
            task.cancel()


class EmbeddedEngine:
    kind: Final = "embedded"

    def __init__(self, listen: HostPort, connections_max: int) -> None:
        self._listen = listen
        self._connections_max = connections_max
        self._members: dict[int, _Member] = {}
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises `OSError` when the address cannot be had."""
        self._server = await asyncio.start_server(
            self._begin, *self._listen, limit=CHUNK_BYTES, backlog=BACKLOG
        )

    async def failed(self) -> str:
        """This engine ends with its process only."""
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def apply(self, backends: Sequence[Backend]) -> None:
        """When it returns, no new connection goes to a backend that drains."""
        for backend in backends:
            member = self._members.get(backend.broker_id)
            if member is None:
                member = self._members[backend.broker_id] = _Member(backend)
            if member.backend.address != backend.address:
                member.health = Health()
            member.backend = backend
            if member.checking is None:
                member.checking = asyncio.create_task(self._check_always(member))
        for gone in self._members.keys() - {backend.broker_id for backend in backends}:
            member = self._members.pop(gone)
            if member.checking is not None:
                member.checking.cancel()
            member.cut()
        draining = [member for member in self._members.values() if member.backend.phase is Phase.DRAINING]
        # Every attempt ends within CONNECT_TIMEOUT_S.
        while any(member.connecting for member in draining):
            await asyncio.sleep(0.01)

    async def figures(self) -> dict[int, BackendFigures]:
        return {
            broker_id: BackendFigures(
                member.health.is_up,
                len(member.open),
                member.total,
                member.connect_errors,
                member.bytes_in,
                member.bytes_out,
                member.check,
            )
            for broker_id, member in self._members.items()
        }

    async def reload(self) -> None:
        """Checks every backend at once; there is no configuration to read anew."""
        for member in self._members.values():
            if member.checking is not None:
                member.checking.cancel()
            member.checking = asyncio.create_task(self._check_always(member))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [*self._clients, *(m.checking for m in self._members.values() if m.checking is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # clients

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= self._connections_max:
            logger.warning("refused a connection: %d are open", self._connections_max)
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve((reader, writer)))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, client: Streams) -> None:
        """One client, from its arrival to its end."""
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
        up = {each for each, member in self._members.items() if member.takes_more and each not in tried}
        chosen = choose(
            up,
            {each: len(member.open) + member.connecting for each, member in self._members.items()},
            {each: member.total for each, member in self._members.items()},
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
            its_socket = writer.get_extra_info("socket")
            its_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        inward = asyncio.create_task(self._move(client[0], broker[1], member, is_inward=True))
        outward = asyncio.create_task(self._move(broker[0], client[1], member, is_inward=False))
        try:
            done, left = await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
            if left and not any(task.exception() for task in done):
                # One side has said that it ends: the other may finish what it has to say.
                await asyncio.wait(left, timeout=HALF_CLOSED_TIMEOUT_S)
        finally:
            for task in (inward, outward):
                task.cancel()
            await asyncio.gather(inward, outward, return_exceptions=True)
            broker[1].transport.abort()

    @staticmethod
    async def _move(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, member: _Member, *, is_inward: bool
    ) -> None:
        while data := await source.read(CHUNK_BYTES):
            if is_inward:
                member.bytes_in += len(data)
            else:
                member.bytes_out += len(data)
            sink.write(data)
            await sink.drain()
        sink.write_eof()

    # health

    async def _check_always(self, member: _Member) -> None:
        while True:
            member.check = await _check(member.backend.address)
            before, member.health = member.health, member.health.after(not member.check)
            member.check = member.check or "ok"
            if before.is_up != member.health.is_up:
                up = "up" if member.health.is_up else f"down: {member.check}"
                logger.warning("%s at %s:%d is %s", member.backend.name, *member.backend.address, up)
                # A broker that stops no longer answers checks while it finishes what it has.
                if not member.health.is_up and member.backend.phase is Phase.READY:
                    member.cut()
            await asyncio.sleep(CHECK_INTERVAL_S)


async def _check(address: HostPort) -> str:
    """What is wrong with the broker at this address; empty if it answers as one."""
    writer = None
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(CHECK_REQUEST)
            answer = await reader.readexactly(FRAME_LENGTH_BYTES + len(CHECK_ANSWER))
    except TimeoutError:
        return f"no answer within {CHECK_TIMEOUT_S:g} s"
    except (OSError, asyncio.IncompleteReadError) as error:
        return str(error)
    finally:
        if writer is not None:
            # The rest of the answer is of no interest; a client's connection would not be cut like this.
            with contextlib.suppress(OSError):
                writer.transport.abort()
    return "" if answer[FRAME_LENGTH_BYTES:] == CHECK_ANSWER else "it does not answer as a broker does"
