"""The fuzzer of `make fuzz` for a few rounds: the kept seeds, which found something once."""

from __future__ import annotations

import random

import pytest

from fix_zookeeper import ZooKeeperServer
from fuzzing.__main__ import TARGETS, Tally, one_round
from fuzzing.honest import Seen
from fuzzing.requests import HEAD_BYTES, Names, RequestMaker, captured_requests
from fuzzing.world import World
from headrace.wire.apis import ApiKey

KEPT = {
    "frames": (5, 2129361890, 1544887618),
    "sessions": (5,),
    "front": (5, 404126268, 1097697411),
    "records": (5, 2129361890),
    "readers": (5,),
    "log": (5,),
    "audit": (792263688, 1681367231),
    "registry": (5, 2129361890),
    "znodes": (5,),
    "agent": (5,),
    "backups": (5, 2376697984),
    "epochs": (5, 1056842577),
    "replicas": (5,),
    "admin": (5, 2671391434, 871427536),
    "files": (5,),
}
"""Seeds by target. One is added whenever `make fuzz` found something and that was mended."""

# Built from their schemas alone. Clients send OffsetForLeaderEpoch only after a leader has changed.
NOT_CAPTURED = {
    ApiKey.DELETE_RECORDS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.SASL_HANDSHAKE,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_rounds_find_nothing(name: str, zookeeper_server: ZooKeeperServer) -> None:
    tally = Tally()
    with World(zookeeper_server) as world:
        for seed in KEPT[name]:
            one_round(world, name, seed, tally)
            assert not tally.findings, f"{name}, seed {seed}: {tally.findings[0]}"
    assert tally.rounds == len(KEPT[name])
    assert tally.honest_exchanges > 0


def test_a_broker_that_ends_is_a_finding(zookeeper_server: ZooKeeperServer) -> None:
    with World(zookeeper_server) as world:
        world.kill()
        assert "ended" in (world.trouble() or "")


def test_every_version_that_a_broker_serves_is_built(zookeeper_server: ZooKeeperServer) -> None:
    with World(zookeeper_server) as world:
        assert set(world.maker.unknown) == {
            (0, 0),
            (0, 1),
            (0, 2),
        }  # offered, and not served: docs/protocol.md
        captured = {each.api_key for each in world.maker.captured}
        served = {key for key, *_ in world.maker.versions}
        assert captured == served - NOT_CAPTURED, "tests/golden/record_frames.py has it"


def test_changed_captures_keep_what_they_ask_for() -> None:
    heads = {each.frame[:HEAD_BYTES] for each in captured_requests()}
    maker, rng = RequestMaker([], Names()), random.Random(5)
    assert {maker.changed_capture(rng)[:HEAD_BYTES] for _ in range(500)} <= heads
    assert {each.api_key for each in captured_requests()} <= set(ApiKey)


def test_what_the_honest_client_saw() -> None:
    seen = Seen([0.001] * 98 + [0.2, 0.3], None)
    assert (seen.percentile_ms(0.5), seen.percentile_ms(1)) == (1.0, 300.0)
