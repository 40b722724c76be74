"""The embedded engine before stand-in brokers: whom it cuts, and whom it lets finish."""

from __future__ import annotations

import asyncio

import pytest

from fix_ports import free_port
from headrace.balancer.backends import Backend, Phase
from headrace.balancer.embedded import EmbeddedEngine
from headrace.balancer.haproxy_config import CHECK_REQUEST, CHECK_RESPONSE

WAIT_MAX_S = 60.0
QUESTION, ANSWER = b"a question", b"its answer"


class StandIn:
    """Answers health checks until it `stops`; a client gets its answer once `may_answer` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Event()

    async def start(self) -> tuple[str, int]:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()[:2]
        return host, port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(len(CHECK_REQUEST))
        if asked == CHECK_REQUEST:
            writer.write(len(CHECK_RESPONSE).to_bytes(4, "big") + CHECK_RESPONSE)
        elif asked == QUESTION:
            self.asked.set()
            await self.may_answer.wait()
            writer.write(ANSWER)
        writer.close()

    def stops(self) -> None:
        """It takes no connections any more, and has not yet finished with those it has."""
        self.server.close()


@pytest.mark.parametrize(
    ("phase", "received"),
    [
        pytest.param(Phase.DRAINING, ANSWER, id="one that leaves may finish"),
        pytest.param(Phase.READY, b"", id="one that fails is cut"),
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
                writer.write(QUESTION)
                await broker.asked.wait()
                await engine.apply([Backend(1, address, phase)])
                broker.stops()
                while await is_up():
                    await asyncio.sleep(0.02)
                broker.may_answer.set()
                try:
                    return await reader.read()
                except ConnectionResetError:
                    return b""
                finally:
                    writer.close()
        finally:
            await engine.stop()

    assert asyncio.run(run()) == received
