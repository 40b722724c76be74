"""A mirror's copy at its broker: a gap is refused unless exactly that gap was accepted."""

from __future__ import annotations

import uuid

import pytest

from fix_broker import BrokerCluster, RawClient
from headrace.client import Admin
from headrace.client.errors import BrokerError
from headrace.replication.gaps import SETTING
from headrace.wire.batch import END_ADDRESS_MAX, readdress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

MIRROR = "headrace.mirror"


def at(address: int) -> bytes:
    """Returns a batch as a mirror sends it, at `address`."""
    raw = bytearray(encode_batch([Record(0, 1_000, None, b"v")]))
    readdress(raw, 0, address, leader_epoch=0)
    return bytes(raw)


def test_an_accepted_gap_is_passed_once_and_exactly(one_broker: BrokerCluster) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    size_bytes = len(at(0))
    with RawClient(one_broker.bootstrap) as client, Admin(one_broker.bootstrap) as admin:
        client.create_topic(topic, 2, config={"headrace.mirror": "true"})
        for partition in (0, 1):
            assert client.produce(topic, partition, at(700)).error_code == 0
        end, to = 700 + size_bytes, 5_000
        refused = client.produce(topic, 1, at(to))
        assert refused.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert f"ends at {end}, the batch is for {to}" in (refused.error_message or "")
        admin.alter_configs(topic, {SETTING: f"0:{end}-9000,1:{end}-{to}"})
        # The setting reaches the broker through ZooKeeper; until then it refuses as before.
        for _ in range(2_000):
            taken = client.produce(topic, 1, at(to))
            if taken.error_code == 0:
                break
        assert (taken.error_code, taken.base_offset) == (0, to + size_bytes - 1)
        for partition, address in ((0, to), (0, 9_001), (1, 9_000)):
            found = client.produce(topic, partition, at(address))
            assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, (partition, address)
        assert client.list_offset(topic, 1, -2)[0] == to
        assert client.list_offset(topic, 1, -1)[0] == to + size_bytes
        assert client.fetch(topic, 1, 700).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert client.fetch(topic, 1, to).records == at(to)
        assert client.list_offset(topic, 0, -2)[0] == 700, "the other partition keeps what it holds"
        assert client.produce(topic, 1, at(to + size_bytes)).error_code == 0


def test_a_log_ends_where_offsets_end(one_broker: BrokerCluster) -> None:
    """No answer can hold an address beyond: followers fetched nothing of that leader any more."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    two = bytearray(encode_batch([Record(0, 1_000 + i, None, b"v") for i in range(2)]))
    last = END_ADDRESS_MAX - len(two)
    with RawClient(one_broker.bootstrap) as client:
        client.create_topic(topic, config={MIRROR: "true"})
        readdress(two, 0, last + 1, leader_epoch=0)  # its offsets are 2**63 - 2 and 2**63 - 1
        assert client.produce(topic, 0, bytes(two)).error_code == ErrorCode.POLICY_VIOLATION
        readdress(two, 0, last, leader_epoch=0)
        assert client.produce(topic, 0, bytes(two)).error_code == 0
        assert client.list_offset(topic, 0, -1)[0] == END_ADDRESS_MAX
        assert client.fetch(topic, 0, last).records == two
        assert client.fetch(topic, 0, END_ADDRESS_MAX).error_code == 0


@pytest.mark.parametrize("value", ["false", None])
def test_what_is_a_copy_stays_a_copy(one_broker: BrokerCluster, value: str | None) -> None:
    """Its batches have the numbers of the source's producers: batches of one here with the same numbers would
    be taken for repetitions of those, and acknowledged without being stored.
    """
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with RawClient(one_broker.bootstrap) as client, Admin(one_broker.bootstrap) as admin:
        client.create_topic(topic, config={MIRROR: "true"})
        with pytest.raises(BrokerError, match="is a mirror's copy, and stays one") as found:
            admin.alter_configs(topic, {MIRROR: value})
        assert found.value.code is ErrorCode.INVALID_CONFIG
        admin.alter_configs(topic, {"retention.ms": "2000000", MIRROR: "True"})
        settings = admin.describe_configs(topic)
        assert (settings[MIRROR].value, settings["retention.ms"].value) == ("True", "2000000")
