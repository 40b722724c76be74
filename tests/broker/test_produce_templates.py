"""The fast path of Produce: which requests of a connection take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fix_partitions import ID, TOPIC, SomePartitions
from headrace.broker.cluster import ClusterView
from headrace.broker.core import ClientConnection
from headrace.broker.loop import EventLoop
from headrace.broker.partition import Partition
from headrace.broker.produce import plain
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import PartitionState, TopicState
from headrace.wire import produce
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID, LeaderAndEpoch, NodeEndpoint
from headrace.wire.records import Record, encode_batch

VERSION = 12
NOT_LEADER_OR_FOLLOWER = ErrorCode.NOT_LEADER_OR_FOLLOWER


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

    def sends(self, index: int, *, waits: bool = False) -> bool:
        """Returns whether the request took the fast path; one that did not is learned. `waits`: for all
        replicas, and nothing is written yet."""
        part = produce.ProducePartition(index, encode_batch([Record(0, 1_000, None, b"x")]))
        request = produce.ProduceRequest(
            None, -1 if waits else 1, 1_000, [produce.ProduceTopic(TOPIC, NO_UUID, [part])]
        )
        encoded = produce.encode_request(request, version=VERSION, correlation_id=9, client_id="test")
        frame = memoryview(bytearray(encoded[4:]))
        state = self._site.state
        if plain.serve(state, self._connection, frame, VERSION, 9, may_keep=False):
            if not waits:
                state.partitions.commit()
            return True
        plain.learn(state, self._connection, frame, decode_request(frame))
        return False

    def answers(self) -> list[produce.ProduceResponse]:
        """Returns what was answered on the fast path."""
        parts = [b"".join(map(bytes, cast(Any, slot).parts)) for slot in self._connection.slots]
        return [produce.decode_response(memoryview(each)[4:], version=VERSION)[1] for each in parts]


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


def test_a_producer_that_waits_for_all_replicas_learns_the_next_leader(
    tmp_path: Path, loop: EventLoop
) -> None:
    """It goes there at once (KIP-951), and asks no broker that may not know it yet."""
    site = SomePartitions(tmp_path, loop, 1)
    producer, led = Producer(site), site.all[0]
    assert [producer.sends(0, waits=True) for _ in range(2)] == [False, True]
    moved = TopicState(TOPIC, ID, {0: PartitionState(2, 5, (1, 2), (2,))})
    brokers = [BrokerRegistration(each, f"host-{each}", 9092, "test") for each in (1, 2)]
    site.state.view = ClusterView().with_brokers(brokers).with_topics({TOPIC: moved})
    site.state.partitions.give_up(led, "it is led by broker 2 now", lambda: None)
    (answer,) = producer.answers()
    result = answer.topics[0].partitions[0]
    assert (result.error_code, result.current_leader) == (NOT_LEADER_OR_FOLLOWER, LeaderAndEpoch(2, 5))
    assert answer.node_endpoints == (NodeEndpoint(2, "host-2", 9092, "test"),)
    site.close()
