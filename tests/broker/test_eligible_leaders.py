"""Replicas that left the in-sync set while too few stayed (KIP-966): brokers are killed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from fix_cli import Headrace, command_runner
from fix_replicas import ReplicatedCluster
from headrace.coordination.topics import NO_LEADER
from headrace.log.names import CHECKPOINT, PREVIOUS_CHECKPOINT
from headrace.wire.errors import ErrorCode


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    return command_runner(monkeypatch, capsys)


def kill(replicas: ReplicatedCluster, topic: str, broker: int, *left: int) -> None:
    """SIGKILL; waits until the set says that it is gone."""
    replicas.brokers[broker].kill()
    replicas.wait_in_sync(topic, *left)


@contextmanager
def damage(replicas: ReplicatedCluster, topic: str, broker: int) -> Iterator[None]:
    """Flips a bit in the first batch of a broker that is down. Without a checkpoint its start checks all."""
    folder = replicas.brokers[broker].data_dir / f"{topic}-0"
    for name in (CHECKPOINT, PREVIOUS_CHECKPOINT):
        (folder / name).unlink(missing_ok=True)
    segment = min(folder.glob("*.log"))
    sound = segment.read_bytes()
    segment.write_bytes(sound[:30] + bytes([sound[30] ^ 1]) + sound[31:])
    try:
        yield
    finally:
        segment.write_bytes(sound)


def left_alone(replicas: ReplicatedCluster) -> str:
    """Makes a topic that broker 1 leads alone. Broker 2 left last, and has all that was acknowledged."""
    topic = replicas.topic(1, 2, 3)
    kill(replicas, topic, 3, 1, 2)
    replicas.produce(topic, "without broker 3")
    kill(replicas, topic, 2, 1)
    assert replicas.state(topic).elr == (2,), "broker 3 left while enough stayed, and lacks something"
    return topic


def test_it_leads_when_the_last_one_in_sync_is_gone(replicas: ReplicatedCluster, run: Headrace) -> None:
    topic = left_alone(replicas)
    acknowledged = replicas.read(topic)
    assert b"without broker 3" in acknowledged
    refused = replicas.try_to_produce(topic, "too few")
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    replicas.produce(topic, "on broker 1 alone", acks=1)
    assert replicas.read(topic) == acknowledged, "nobody sees what broker 1 alone has"
    where = ("-b", replicas.brokers[1].address)
    row: dict[str, Any] = run("topics", "describe", topic, *where, "--json").json["partitions"][0]
    assert (row["in_sync"], row["eligible"]) == ([1], [2])
    shown = " ".join(run("topics", "describe", topic, *where).out.split())
    assert f"{topic}-0: broker 2 eligible to lead, with all that was acknowledged" in shown

    replicas.brokers[1].kill()
    replicas.brokers[3].start()
    replicas.wait_for("nobody leads", lambda: replicas.state(topic).leader == NO_LEADER)
    assert (replicas.state(topic).isr, replicas.state(topic).elr) == ((1,), (2,))
    replicas.brokers[2].start()
    replicas.wait_for("broker 2 leads", lambda: replicas.state(topic).leader == 2)
    replicas.produce(topic, "without broker 1")
    assert replicas.state(topic).elr == (), "enough are in sync again"
    replicas.brokers[1].start()
    replicas.wait_in_sync(topic, 1, 2, 3)
    held = replicas.wait_until_equal(topic, 1, 2, 3)
    assert held.startswith(acknowledged) and b"without broker 1" in held
    assert b"on broker 1 alone" not in held, "it was not acknowledged by all"


def test_a_damaged_log_is_not_eligible_even_after_it_was_mended(replicas: ReplicatedCluster) -> None:
    """Somebody may put an older copy there, or cut the damage out."""
    topic = left_alone(replicas)
    acknowledged = replicas.read(topic)
    replicas.brokers[1].kill()
    replicas.brokers[3].start()
    replicas.wait_for("nobody leads", lambda: replicas.state(topic).leader == NO_LEADER)
    before = replicas.state(topic)
    with damage(replicas, topic, 2):
        replicas.brokers[2].start()
        replicas.wait_for("it is not eligible any more", lambda: replicas.state(topic).elr == ())
        assert replicas.state(topic) == replace(before, elr=()), "it was never elected"
    replicas.wait_for("it has opened the log", lambda: f"{topic}-0: open again" in replicas.logs())
    assert (replicas.state(topic).leader, replicas.state(topic).isr) == (NO_LEADER, (1,))
    replicas.brokers[1].start()
    replicas.wait_in_sync(topic, 1, 2, 3)
    assert replicas.wait_until_equal(topic, 1, 2, 3).startswith(acknowledged)


def test_a_leader_whose_log_is_damaged_gives_way_when_an_eligible_broker_returns(
    replicas: ReplicatedCluster,
) -> None:
    """Broker 2 leads, and cannot; then broker 1 returns, which no controller has seen at first."""
    topic = left_alone(replicas)
    replicas.brokers[1].kill()
    replicas.brokers[3].start()
    replicas.wait_for("nobody leads", lambda: replicas.state(topic).leader == NO_LEADER)
    before = replicas.state(topic)
    led = replace(before, leader=2, leader_epoch=before.leader_epoch + 1, isr=(2,), elr=(1,))
    replicas.registry.set_partition_state(topic, 0, led, expected=before)
    with damage(replicas, topic, 2):
        replicas.brokers[2].start()
        replicas.brokers[1].start()
        replicas.wait_for("broker 1 leads", lambda: replicas.state(topic).leader == 1)
        assert replicas.state(topic).leader_epoch > led.leader_epoch
        assert 2 not in replicas.state(topic).elr
    replicas.wait_in_sync(topic, 1, 2, 3)
