"""A front names no broker: its clients reach the balancer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fix_partitions import ID, TOPIC, SomePartitions
from headrace.broker.cluster import ClusterView
from headrace.broker.core import ClientConnection
from headrace.broker.front import FrontService
from headrace.broker.loop import EventLoop
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import PartitionState, TopicState
from headrace.wire import produce
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

VERSION = 12


def view_of(leader: int, epoch: int) -> ClusterView:
    topic = TopicState(TOPIC, ID, {0: PartitionState(leader, epoch, (1, 2), (1, 2))})
    brokers = [BrokerRegistration(each, f"host-{each}", 9092, "test") for each in (1, 2)]
    return ClusterView().with_brokers(brokers).with_topics({TOPIC: topic})


def test_a_producer_behind_a_balancer_is_not_sent_to_the_next_leader(tmp_path: Path, loop: EventLoop) -> None:
    """It may have no way to it. Nor would it come back: metadata of a front have the leader epoch 0, which is
    older than the one that it was told of. One request is served field by field, the next by its template.
    """
    site, nothing = SomePartitions(tmp_path, loop, 1), cast(Any, None)
    site.state.view = view_of(1, 0)
    service = FrontService(site.state, nothing, ("balancer", 9092), nothing)
    connection = ClientConnection(
        service, peer="test", frame_limit_bytes=1 << 20, on_output=lambda _: None, on_abort=pytest.fail
    )
    part = produce.ProducePartition(0, encode_batch([Record(0, 1_000, None, b"x")]))
    request = produce.ProduceRequest(None, -1, 1_000, [produce.ProduceTopic(TOPIC, NO_UUID, [part])])
    for _ in range(2):
        connection.receive(
            memoryview(produce.encode_request(request, version=VERSION, correlation_id=9, client_id="test"))
        )
    assert {type(slot).__name__ for slot in connection.slots} == {"Slot", "PlainAppend"}
    site.state.view = view_of(2, 5)
    site.state.partitions.give_up(site.all[0], "it is led by broker 2 now", lambda: None)
    for slot in connection.slots:
        assert slot.parts is not None
        raw = b"".join(map(bytes, cast(Any, slot.parts)))
        answer = produce.decode_response(memoryview(raw)[4:], version=VERSION)[1]
        (result,) = answer.topics[0].partitions
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (result.current_leader, answer.node_endpoints) == (None, ())
    site.close()
