"""The drill's proxy: what it forges is acknowledged and nowhere, all else is stored in order."""

from __future__ import annotations

import pytest

from fix_broker import BrokerCluster, RawClient
from fix_forging_proxy import ForgingProxy
from headrace.client import Producer
from headrace.wire.batch import hop, read_header
from headrace.wire.produce import ProducePartition

pytestmark = pytest.mark.zookeeper

TOPIC = "forged"


def test_a_forged_batch_is_acknowledged_and_later_ones_are_stored_under_new_numbers(
    one_broker: BrokerCluster,
) -> None:
    dropped: list[int] = []

    def forges(topic: str, part: ProducePartition) -> bool:
        assert topic == TOPIC and part.records is not None
        header = read_header(bytes(part.records), 0)
        if header.base_sequence != 1 or dropped:
            return False
        dropped.append(header.base_sequence)
        return True

    with (
        ForgingProxy(one_broker.bootstrap, forges) as proxy,
        Producer(proxy.address) as producer,
    ):
        for index in range(4):
            sent = producer.send(TOPIC, b"event %d" % index, partition=0)
            producer.flush(60)
            assert sent.result().offset >= 0
    assert dropped == [1]
    with RawClient(one_broker[1].address) as client:
        stored = [header for _, header in hop(client.read_all(TOPIC, 0))]
    epoch = stored[0].producer_epoch
    numbers = [(each.producer_epoch - epoch, each.base_sequence) for each in stored]
    assert numbers == [(0, 0), (1, 0), (1, 1)], "the broker has three of four, the last two renumbered"
