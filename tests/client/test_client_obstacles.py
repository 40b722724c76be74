"""A leader whose advertised address cannot be reached while others answer: errors name it and its address."""

from __future__ import annotations

import re

import pytest

from fix_client import FakeCluster, MakeProducer, StartCluster
from headrace.client import Consumer
from headrace.client.errors import DeliveryTimeoutError, MetadataTimeoutError

WAIT_S = 60


@pytest.fixture
def half(fake_cluster: StartCluster) -> FakeCluster:
    """Broker 2 leads t-1, and nothing listens at its address. Clients know broker 1 alone."""
    cluster = fake_cluster(brokers=2, partitions=2)
    cluster.brokers[1].stop()
    return cluster


def refused_of(cluster: FakeCluster) -> str:
    address = rf"127\.0\.0\.1:{cluster.brokers[1].port}"
    return rf"its leader is broker 2: .*({address}: Connection refused|no connection to {address} yet)"


def test_a_producer_names_it(half: FakeCluster, fast_producer: MakeProducer) -> None:
    producer = fast_producer(half, delivery_timeout_ms=1000, request_timeout_ms=900)
    error = producer.send("t", b"v", partition=1).exception(WAIT_S)
    assert isinstance(error, DeliveryTimeoutError)
    assert re.search(refused_of(half), str(error))


def test_a_consumer_names_it(half: FakeCluster) -> None:
    first = half.brokers[0]
    with Consumer(f"{first.host}:{first.port}") as consumer:
        consumer.assign([("t", 1)])
        with pytest.raises(MetadataTimeoutError, match=refused_of(half)):
            consumer.position("t", 1, timeout_s=1.0)
