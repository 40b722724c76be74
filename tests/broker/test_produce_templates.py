"""The fast path of Produce: which requests of a connection take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fix_partitions import ID, TOPIC, SomePartitions
from headrace.broker.core import ClientConnection
from headrace.broker.loop import EventLoop
from headrace.broker.partition import Partition
from headrace.broker.produce import plain
from headrace.wire import produce
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

VERSION = 12


class Producer:
    """One connection, whose requests hold one batch for one partition."""

    def __init__(self, site: SomePartitions) -> None:
        self._site = site
        self._connection = ClientConnection(
            cast(Any, None),
            peer="test",
            frame_limit_bytes=1 << 20,
            on_output=lambda _: None,
            on_abort=lambda problem: pytest.fail(problem),
        )

    def sends(self, index: int) -> bool:
        """Returns whether the request took the fast path; one that did not is learned."""
        part = produce.ProducePartition(index, encode_batch([Record(0, 1_000, None, b"x")]))
        request = produce.ProduceRequest(None, 1, 1_000, [produce.ProduceTopic(TOPIC, NO_UUID, [part])])
        encoded = produce.encode_request(request, version=VERSION, correlation_id=9, client_id="test")
        frame = memoryview(bytearray(encoded[4:]))
        state = self._site.state
        if plain.serve(state, self._connection, frame, VERSION, 9, may_keep=False):
            state.partitions.commit()
            return True
        plain.learn(state, self._connection, frame, decode_request(frame))
        return False


def test_partitions_that_are_led_here_again_take_it_again(
    tmp_path: Path, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many templates the connection has: those of the time before count no more."""
    monkeypatch.setattr(plain, "TEMPLATES_MAX", 2)
    site = SomePartitions(tmp_path, loop, 3)
    producer = Producer(site)
    for index in range(3):
        assert not producer.sends(index)
    assert [producer.sends(index) for index in range(3)] == [True, True, False]
    for led in site.all[:2]:
        site.state.partitions.remove(led)
        site.state.partitions.add(Partition(TOPIC, led.index, ID, led.config, led.log, 1))
        assert not producer.sends(led.index)
    assert [producer.sends(index) for index in range(3)] == [True, True, False]
    site.close()
