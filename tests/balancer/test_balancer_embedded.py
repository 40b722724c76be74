"""The embedded engine before stand-in brokers: which connections it cuts, and which may finish."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fix_ports import free_port
from headrace.balancer import embedded
from headrace.balancer.backends import Backend, Phase
from headrace.balancer.embedded import EmbeddedEngine
from headrace.balancer.haproxy_config import CHECK_REQUEST, CHECK_RESPONSE

WAIT_MAX_S = 60.0
REQUEST, RESPONSE = b"a request", b"its response"


class StandIn:
    """Answers health checks until `stop`; a client gets its response once `may_respond` is set."""

    def __init__(self, response: bytes = RESPONSE) -> None:
        self.response = response
        self.may_respond = asyncio.Event()
        self.requested = asyncio.Event()

    async def start(self) -> tuple[str, int]:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()[:2]
        return host, port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.read(len(CHECK_REQUEST))
        if received == CHECK_REQUEST:
            writer.write(len(CHECK_RESPONSE).to_bytes(4, "big") + CHECK_RESPONSE)
        elif received == REQUEST:
            self.requested.set()
            await self.may_respond.wait()
            writer.write(self.response)
        writer.close()

    def stop(self) -> None:
        """Takes no further connections; open ones stay open."""
        self.server.close()


@pytest.mark.parametrize(
    ("phase", "received"),
    [
        pytest.param(Phase.DRAINING, RESPONSE, id="a draining one may finish"),
        pytest.param(Phase.READY, b"", id="a failed one is cut"),
    ],
)
def test_a_broker_that_takes_no_more_connections(phase: Phase, received: bytes) -> None:
    async def run() -> bytes:
        broker = StandIn()
        address = await broker.start()
        engine = EmbeddedEngine(here := ("127.0.0.1", free_port()), connections_max=10)
        await engine.start()
        try:
            await engine.apply([Backend(1, address, Phase.READY)])

            async def is_up() -> bool:
                return (await engine.figures())[1].is_up

            async with asyncio.timeout(WAIT_MAX_S):
                while not await is_up():
                    await asyncio.sleep(0.02)
                reader, writer = await asyncio.open_connection(*here)
                writer.write(REQUEST)
                await broker.requested.wait()
                await engine.apply([Backend(1, address, phase)])
                broker.stop()
                while await is_up():
                    await asyncio.sleep(0.02)
                broker.may_respond.set()
                try:
                    return await reader.read()
                except ConnectionResetError:
                    return b""
                finally:
                    writer.close()
        finally:
            await engine.stop()

    assert asyncio.run(run()) == received


@pytest.mark.parametrize("reads", [pytest.param(False, id="nothing"), pytest.param(True, id="slowly")])
def test_a_client_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """Its kernel answers keepalive, so nothing else ends the connection; one that is slow keeps it."""
    idle_s = 1.0
    monkeypatch.setattr(embedded, "IDLE_TIMEOUT_S", idle_s)

    async def run() -> bool:
        broker = StandIn(b"x" * (32 << 20))
        broker.may_respond.set()
        address = await broker.start()
        engine = EmbeddedEngine(here := ("127.0.0.1", free_port()), connections_max=10)
        await engine.start()
        try:
            await engine.apply([Backend(1, address, Phase.READY)])
            with socket.socket() as client:
                client.setblocking(False)
                async with asyncio.timeout(WAIT_MAX_S):
                    while not (await engine.figures())[1].is_up:
                        await asyncio.sleep(0.02)
                    await asyncio.get_running_loop().sock_connect(client, here)
                    client.send(REQUEST)
                    while not (await engine.figures())[1].connections:
                        await asyncio.sleep(0.02)
                    for _ in range(round(4 * idle_s / 0.1)):
                        await asyncio.sleep(0.1)
                        if reads:
                            client.recv(600 << 10)  # a kernel tells of room once a third is free
                return bool((await engine.figures())[1].connections)
        finally:
            await engine.stop()
            broker.stop()
            await broker.server.wait_closed()

    assert asyncio.run(run()) is reads
