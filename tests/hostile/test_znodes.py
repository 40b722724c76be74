"""Nodes that a stranger with access to ZooKeeper made: each is left out by itself, and all others are read.

Each case of `DOCUMENTS` and `NAMES` ended the watch of a whole registry: no broker heard of any change more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_zookeeper import ZooKeeperRoom, has_topics
from headrace.coordination import documents, znodes
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.consumers import STREAMS_MAX, ConsumerRegistry
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.fronts import Front, FrontRegistry
from headrace.coordination.offline_logs import parse
from headrace.coordination.producer_ids import allocate_block
from headrace.coordination.topics import TopicRegistry

WAIT_MAX_S = 60.0
NESTED = b"[" * 100_000
NAMES = ["9" * 5_000, "99999999999", "٣", "007", "-1", "²", "x"]
TOPIC_ID = str(UUID(int=7))
DOCUMENTS: dict[str, bytes] = {
    "nested": NESTED,
    "nested objects": b'{"version":1,"a":' * 50_000,
    "infinite": b'{"version":1,"topic_id":"%s","partitions":{"0":[1e999]}}' % TOPIC_ID.encode(),
    "an infinite number": b'{"version":1,"topic_id":"%s","partitions":{"Infinity":[1]}}' % TOPIC_ID.encode(),
    "no int32": b'{"version":1,"topic_id":"%s","partitions":{"0":[%d]}}' % (TOPIC_ID.encode(), 10**30),
    "nothing": b"",
    "half a character": b'{"version":1,"topic_id":"\xff"}',
}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.01)


@given(st.lists(st.text(max_size=12) | st.integers(-5, 2**40).map(str)))
def test_numbers_among_names(names: list[str]) -> None:
    canonical = [name for name in names if re.fullmatch("0|[1-9][0-9]{0,9}", name)]
    assert documents.numbers(names) == sorted({int(name) for name in canonical if int(name) < 2**31})
    assert documents.numbers([*NAMES, "7"]) == [7]


@given(
    st.binary(max_size=60) | st.recursive(st.floats() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_bytes_are_a_document_or_corrupt(data: bytes) -> None:
    try:
        assert documents.decode("/a", data)["version"] == 1
    except CorruptNodeError as error:
        assert "/a" in str(error)


def test_names_that_are_no_numbers_hide_no_broker_front_or_offline_log(zookeeper: ZooKeeperRoom) -> None:
    registration = BrokerRegistration(1, "127.1.0.11", 9092, "east")
    brokers: list[list[BrokerRegistration]] = []
    fronts: list[list[Front]] = []
    with zookeeper.session() as one, zookeeper.session() as stranger:
        BrokerRegistry(one).watch(lambda live: brokers.append([replace(each, epoch=0) for each in live]))
        FrontRegistry(one).watch(fronts.append)
        for name in NAMES:
            for parent in (znodes.BROKER_IDS, znodes.FRONTS, znodes.BALANCED):
                stranger.create(f"{parent}/{name}", NESTED, make_parents=True)
        stranger.create(f"{znodes.BALANCED}/x-127.1.0.3:9092-abc", b"", make_parents=True)
        BrokerRegistry(stranger).register(registration)
        FrontRegistry(stranger).announce(Front(1, "127.1.0.11", 9093))
        wait_for(lambda: brokers[-1:] == [[registration]])
        wait_for(lambda: fronts[-1:] == [[Front(1, "127.1.0.11", 9093)]])
        FrontRegistry(one).forget("127.1.0.3:9092")
        assert FrontRegistry(one).balancers_of(1) == []
    assert parse([f"{name}-t-{name}" for name in NAMES] + ["1-t-0"]) == {(1, "t", 0)}


def test_a_topic_whose_nodes_are_absurd_leaves_the_others(zookeeper: ZooKeeperRoom) -> None:
    seen: list[set[str]] = []
    with zookeeper.session() as one, zookeeper.session() as stranger:
        has_topics(one, "first", "state")
        TopicRegistry(one).watch(lambda topics: seen.append(set(topics)))
        for number, data in enumerate(DOCUMENTS.values()):
            stranger.create(znodes.topic(f"absurd-{number}"), data, make_parents=True)
        for value in (10**30, -2, "1e999", None):
            state = json.dumps({"version": 1, "leader": 1, "leader_epoch": value, "isr": [1]}).encode()
            stranger.set(znodes.partition_state("state", 0), state)
            with pytest.raises(CorruptNodeError, match="not a partition's state"):
                TopicRegistry(stranger).get("state")
        TopicRegistry(stranger).create("second", uuid4(), {0: (1,)})
        wait_for(lambda: bool(seen) and {"first", "second"} <= seen[-1])
        assert not any(name.startswith("absurd") for name in seen[-1])


def test_a_members_absurd_subscription_leaves_the_group(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as one, zookeeper.session() as stranger:
        registry = ConsumerRegistry(one, "g")
        registry.join("honest", {"t": 2})
        absurd: list[Any] = [{"t": 10**12}, {"t": -1}, {"t": 0.5}, {"t": STREAMS_MAX + 1}, [], None]
        for number, subscription in enumerate(absurd):
            data = json.dumps({"version": 1, "subscription": subscription}).encode()
            stranger.create(znodes.member("g", f"absurd-{number}"), data)
        stranger.create(znodes.member("g", "nested"), NESTED)
        assert registry.members() == {"honest": {"t": 2}}


def test_absurd_owners_offsets_and_blocks_of_ids(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        has_topics(session, "t")
        registry = ConsumerRegistry(session, "g")
        session.create(znodes.owner("g", "t", 0), b"\xff\xfe", make_parents=True)
        assert registry.owners("t")[0].name
        registry.commit("t", 0, 5)
        for data in (b"9" * 4_000, b"9" * 5_000, str(2**63).encode(), b"\xff"):
            session.set(znodes.offset("g", "t", 0), data)
            with pytest.raises(CorruptNodeError, match="an offset must be a decimal number"):
                registry.offsets([("t", 0)])
        allocate_block(session)
        for field in ("1e999", "-7", '"x"', "[" * 5_000):
            session.set(znodes.PRODUCER_ID_BLOCK, f'{{"version":1,"block_end":{field}}}'.encode())
            with pytest.raises(CorruptNodeError):
                allocate_block(session)
