"""Fetch as followers and consumers of a rack (KIP-392) send it, and OffsetForLeaderEpoch, from strangers:
replica ids, broker epochs that are over, not given yet or another broker's, leader epochs, offsets behind the
end, racks.

Two brokers hold the topic. An honest producer writes it with acks=all meanwhile and reads it back; afterwards
both logs are the same bytes, and no answer tells of an end that the log does not have.
"""

from __future__ import annotations

import random
import time
from typing import Final

from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from fix_broker import RawClient, batches_of
from fuzzing.fronts import PARTITIONS, REPLICATED, Fronts
from fuzzing.honest import LATENCY_MAX_MS, HonestClient
from fuzzing.values import TEXTS, integer, mutate
from fuzzing.world import World
from headrace.coordination.brokers import BrokerRegistry
from headrace.coordination.session import ZooKeeperSession
from headrace.wire import fetch
from headrace.wire.batch import hop
from headrace.wire.primitives import NO_UUID

REQUESTS: Final = 150
RACKS: Final = ("rack-1", "rack-2")
VERSIONS: Final = (4, 9, 11, 12, 13, 15, 16, 17)
ANSWER_WAIT_MAX_S: Final = 60.0
EQUAL_WAIT_MAX_S: Final = 60.0
HONEST_EXCHANGES_MIN: Final = 3


class Attack:
    """One connection to one broker. `epochs`: of both brokers, the true ones; `ends`: of the partitions."""

    def __init__(
        self, pair: Fronts, broker: int, epochs: dict[int, int], ends: dict[int, int], rng: random.Random
    ) -> None:
        self._rng = rng
        self._epochs = epochs
        self._address = pair.cluster[broker].address
        self._client = RawClient(self._address, timeout_s=ANSWER_WAIT_MAX_S)
        asked = MetadataRequest(
            topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        ids = {each.name: each.topic_id for each in self._client.call(asked).topics}
        self._topic_id = ids[REPLICATED] or NO_UUID
        self._ends = ends
        self.last = b""

    def close(self) -> None:
        self._client.close()

    def run_one(self) -> None:
        kind = self._rng.random()
        if kind < 0.2:
            self._ask_epoch()
            return
        version = self._rng.choice(VERSIONS)
        request = self._fetch(version)
        number = self._client.next_id()
        self.last = fetch.encode_request(request, version=version, correlation_id=number, client_id="odd")
        if kind < 0.3:
            with RawClient(self._address) as client:
                broken = mutate(self._rng, self.last[4:])
                client.send(len(broken).to_bytes(4, "big") + broken)
            return
        self._client.send(self.last)
        _, response = fetch.decode_response(self._client.receive(), version=version)
        asked = [part.partition for topic in request.topics for part in topic.partitions]
        found = [part.partition for topic in response.topics for part in topic.partitions]
        assert found == asked, f"asked for {asked}, answered {found}: {request}"
        for part in (part for topic in response.topics for part in topic.partitions):
            _check_reader(part, request)

    def _fetch(self, version: int) -> fetch.FetchRequest:
        rng = self._rng
        parts = [self._part() for _ in range(rng.choice((1, 1, 2, 10)))]
        named = version < fetch.TOPIC_IDS_FROM
        topic = fetch.FetchTopic(REPLICATED if named else "", NO_UUID if named else self._topic_id, parts)
        replica = rng.choice((1, 2, 1, 2, 0, 7, -1, -1, -1, -2, 2**31 - 1, -(2**31)))
        return fetch.FetchRequest(
            max_wait_ms=rng.choice((0, 0, 1, 30)),
            min_bytes=rng.choice((0, 1, 2**31 - 1)),
            max_bytes=rng.choice((0, 1, 1 << 20, -1)),
            topics=[topic] * rng.choice((1, 1, 1, 3)),
            replica_id=replica,
            replica_epoch=self._broker_epoch(replica),
            rack_id=rng.choice((*RACKS, *RACKS, "", "rack-3", *TEXTS)),
        )

    def _broker_epoch(self, replica: int) -> int:
        """Mostly not the true one: whoever names that is the broker, as far as anybody can tell."""
        true = self._epochs.get(replica, 5)
        other = self._epochs.get(3 - replica, 5)
        return self._rng.choice((-1, 0, true - 1, true + 1, other, 2**62, -(2**63), integer(self._rng, 64)))

    def _part(self) -> fetch.FetchPartition:
        rng = self._rng
        number = rng.randrange(PARTITIONS)
        end = self._ends[number]
        return fetch.FetchPartition(
            rng.choice((number, number, number, 77, -1)),
            rng.choice((0, end, end + 1, end - 1, max(0, end - 300), -1, 2**63 - 1, integer(rng, 64))),
            rng.choice((0, 1, 1 << 16, 2**31 - 1, -1)),
            current_leader_epoch=rng.choice((-1, 0, 0, 1, 2, 2**31 - 1, integer(rng, 32))),
            last_fetched_epoch=rng.choice((-1, 0, 0, 1, 2**31 - 1, integer(rng, 32))),
        )

    def _ask_epoch(self) -> None:
        rng = self._rng
        asked = tuple(
            OffsetForLeaderPartition(
                partition=i32(rng.choice((*range(PARTITIONS), 77, -1))),
                current_leader_epoch=i32(rng.choice((-1, 0, 1, 2**31 - 1, integer(rng, 32)))),
                leader_epoch=i32(rng.choice((-1, 0, 0, 1, 2**31 - 1, integer(rng, 32)))),
            )
            for _ in range(rng.choice((1, 2, 30)))
        )
        name = TopicName(rng.choice((REPLICATED, REPLICATED, "no-such-topic", "")))
        replica = BrokerId(rng.choice((-2, -1, 1, 2, 7, -(2**31))))
        topics = (OffsetForLeaderTopic(topic=name, partitions=asked),)
        response = self._client.call(OffsetForLeaderEpochRequest(replica_id=replica, topics=topics))
        found = response.topics[0].partitions
        assert [each.partition for each in found] == [each.partition for each in asked]
        ends: dict[int, int] = {}
        for each, question in zip(found, asked, strict=True):
            if int(each.error_code) or each.end_offset < 0:
                continue
            part = int(each.partition)
            ends[part] = ends.get(part) or self._client.list_offset(REPLICATED, part, -1)[0]
            assert each.leader_epoch <= question.leader_epoch, f"{each} for {question}"
            # What is written may be a batch of the honest producer ahead of what is visible.
            assert each.end_offset <= ends[part] + 10_000, f"{each}, and the log ends at {ends[part]}"


def _check_reader(part: fetch.FetchPartitionResult, request: fetch.FetchRequest) -> None:
    """A consumer sees nothing beyond the high watermark, and is sent to another replica only for its rack."""
    sent_to = part.preferred_read_replica
    assert sent_to == -1 or (sent_to in (1, 2) and request.rack_id == f"rack-{sent_to}"), f"{part}: {request}"
    if request.replica_id == fetch.CONSUMER_REPLICA_ID:
        shown = [header.address for _, header in hop(batches_of(part) if part.records else b"")]
        assert all(each < part.high_watermark for each in shown), f"{shown}, {part}: {request}"


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last requests in hex."""
    pair = world.fronts()
    with ZooKeeperSession(pair.cluster.zookeeper.hosts, name="fuzz") as session:
        epochs = {each.broker_id: each.epoch for each in BrokerRegistry(session).live()}
    leaders = pair.leaders(REPLICATED)
    part = rng.randrange(PARTITIONS)
    honest = HonestClient(pair.cluster[leaders[part]].address, REPLICATED, partition=part)
    honest.start()
    ends = {number: _end(pair, leader, number) for number, leader in leaders.items()}
    attacks = [Attack(pair, broker, epochs, ends, rng) for broker in (1, 2)]
    try:
        for _ in range(REQUESTS):
            rng.choice(attacks).run_one()
    finally:
        last = [attack.last[:4096].hex() for attack in attacks]
        for attack in attacks:
            attack.close()
        seen = honest.finish()
    assert seen.fault is None, f"the honest producer of the replicated topic: {seen.fault}"
    assert len(seen.latencies_s) >= HONEST_EXCHANGES_MIN, f"it made {len(seen.latencies_s)} exchanges"
    longest_ms = seen.percentile_ms(1)
    assert longest_ms <= LATENCY_MAX_MS, f"the honest producer waited {longest_ms:.0f} ms"
    _check_equal(pair)
    return last


def _end(pair: Fronts, leader: int, number: int) -> int:
    with RawClient(pair.cluster[leader].address) as client:
        return client.list_offset(REPLICATED, number, -1)[0]


def _check_equal(pair: Fronts) -> None:
    """Waits until both brokers hold the same bytes."""
    deadline = time.monotonic() + EQUAL_WAIT_MAX_S
    while True:
        held = [
            [b"".join(path.read_bytes() for path in sorted((broker.data_dir / name).glob("*.log")))]
            for broker in pair.cluster.brokers
            for name in [f"{REPLICATED}-{part}" for part in range(PARTITIONS)]
        ]
        if held[:PARTITIONS] == held[PARTITIONS:]:
            return
        assert time.monotonic() < deadline, "the two replicas do not hold the same bytes"
        time.sleep(0.1)
