"""A front's links to leaders, on a loop whose clock only a test advances."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from headrace.broker.loop import EventLoop, Timer
from headrace.broker.network.links import Lost
from headrace.broker.network.peers import Peers
from headrace.wire.primitives import NO_UUID, Buffer
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic


class Link:
    """Peers on a loop whose clock only a test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timer_count = 0
        test = self

        class Loop(EventLoop):
            def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
                test.timer_count += 1
                return super().call_later(delay_ms, call)

        self.loop = Loop(lambda: self.now_s)
        self.peers = Peers(self.loop, lambda: self.now_s)

    def send(
        self,
        port: int,
        records: Buffer,
        responses: list[ProduceResponse | Lost],
        *,
        acks: int = -1,
        host: str = "127.0.0.1",
    ) -> bool:
        topics = [ProduceTopic("t", NO_UUID, [ProducePartition(0, records)])]
        request = ProduceRequest(None, acks, 1_000, topics)
        return self.peers.send(host, port, request, responses.append)

    def turn_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "waited too long"
            self.loop.turn(0.05)

    def set_forward(self, seconds: float) -> None:
        self.now_s += seconds
        self.loop.turn(0)


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.peers.close()
    made.loop.close()
