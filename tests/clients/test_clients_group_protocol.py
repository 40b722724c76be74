"""The consumer protocol of KIP-848, which our brokers do not have: clients that are set to it are told so."""

import time
import uuid

import confluent_kafka
import pytest

from fix_datacenter import Datacenter
from fix_java import JavaPeer, JavaPeerError

pytestmark = pytest.mark.real_client

WAIT_MAX_S = 30.0


@pytest.fixture(scope="module")
def topic(datacenter: Datacenter) -> str:
    name = f"protocol-{uuid.uuid4().hex[:8]}"
    datacenter.create_topic(name, 1)
    return name


def test_librdkafka_is_told_and_does_not_wait_for_ever(datacenter: Datacenter, topic: str) -> None:
    """It asked a broker that did not offer the API for the coordinator, again and again, and said nothing."""
    settings = {"bootstrap.servers": datacenter.bootstrap, "group.id": topic, "group.protocol": "consumer"}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + WAIT_MAX_S
        while (message := consumer.poll(0.5)) is None:
            assert time.monotonic() < deadline, "nothing was said"
        error = message.error()
        assert error is not None and error.code() == confluent_kafka.KafkaError._FATAL
        assert "ConsumerGroupHeartbeat fatal error: Broker: API version not supported" in error.str()
    finally:
        consumer.close()


def test_java_is_told(datacenter: Datacenter, topic: str, java_peer: JavaPeer) -> None:
    settings = {"bootstrap.servers": datacenter.bootstrap, "group.id": topic, "group.protocol": "consumer"}
    java_peer("join", settings, member="new", topic=topic)
    with pytest.raises(JavaPeerError, match=r"Set group\.protocol=classic"):
        for _ in range(int(WAIT_MAX_S)):
            java_peer("poll", member="new", records="/dev/null", wait_ms=1000)
    java_peer("leave", member="new")
