"""What a stranger sends through the front listener does not touch what others send through it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_broker import RawClient
from fix_zookeeper import ZooKeeperServer
from fuzzing.batches import honest_batch
from fuzzing.fronts import FUZZED, PARTITIONS, Fronts
from fuzzing.honest import TOPIC
from headrace.wire.batch import hop

BATCHES = 30


@pytest.fixture
def fronts(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> Iterator[Fronts]:
    made = Fronts(zookeeper_server, tmp_path / "fronts")
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_a_refused_batch_without_acks_leaves_the_link_to_the_leader_alone(fronts: Fronts) -> None:
    """The leader closed the link between the brokers for it, and all that others had in flight was lost."""
    now_ms = int(time.time() * 1000)
    bad = bytearray(honest_batch(b"bad", now_ms))
    bad[-1] ^= 1
    with RawClient(fronts.front) as honest:
        for number in range(BATCHES):
            strangers = [RawClient(fronts.front) for _ in range(PARTITIONS)]
            for partition, stranger in enumerate(strangers):
                stranger.send(stranger.produce_frame(FUZZED, partition, bytes(bad), acks=0))
                honest.send(honest.produce_frame(TOPIC, partition, honest_batch(b"%d" % number, now_ms)))
            found = [honest.read_produced() for _ in range(PARTITIONS)]
            assert [each.error_code for each in found] == [0] * PARTITIONS, found
            for stranger in strangers:
                with pytest.raises(EOFError):  # a refusal ends the connection of its sender
                    stranger.receive()
                stranger.close()
    assert "the link to the broker" not in fronts.cluster[1].output()
    assert "CRC" in fronts.cluster[1].output()


def test_batches_without_acks_reach_the_leader(fronts: Fronts) -> None:
    now_ms = int(time.time() * 1000)
    with RawClient(fronts.front) as client:
        for number in range(BATCHES):
            for partition in range(PARTITIONS):
                batch = honest_batch(b"%d" % number, now_ms)
                client.send(client.produce_frame(FUZZED, partition, batch, acks=0))
        # What follows on the same connection is stored behind them.
        ends = [client.produce(FUZZED, part, honest_batch(b"x", now_ms)) for part in range(PARTITIONS)]
    assert [each.error_code for each in ends] == [0] * PARTITIONS
    for partition, leader in fronts.leaders(FUZZED).items():
        with RawClient(fronts.cluster[leader].address) as reader:
            assert len(list(hop(reader.read_all(FUZZED, partition)))) == BATCHES + 1
