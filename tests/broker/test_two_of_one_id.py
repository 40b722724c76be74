"""A broker that was cut off, was replaced by another one under its id, and comes back."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_broker import BrokerProcess
from fix_replicas import ReplicatedCluster
from headrace.coordination import znodes


@pytest.fixture
def successor(replicas: ReplicatedCluster) -> Iterator[BrokerProcess]:
    """Another broker 1, with a disk and an address of its own."""
    old = replicas.brokers[1]
    folder = Path(tempfile.mkdtemp(prefix="headrace-successor-"))
    found = BrokerProcess(1, folder, old.zookeeper, old.datacenter, old.config)
    yield found
    found.kill()


def test_a_broker_whose_id_was_taken_meanwhile_ends_and_is_counted_nowhere(
    replicas: ReplicatedCluster, successor: BrokerProcess
) -> None:
    old = replicas.brokers[1]
    topic = replicas.topic(2, 1, min_insync_replicas="2")
    replicas.wait_in_sync(topic, 1, 2)
    os.kill(old.pid, signal.SIGSTOP)
    try:
        registration = znodes.broker(1)
        replicas.wait_for("its session ends", lambda: replicas.session.exists(registration) is None)
        successor.start()
        replicas.produce(topic, "second")
    finally:
        os.kill(old.pid, signal.SIGCONT)
    replicas.wait_for(
        "the old one is back", lambda: not old.is_running or "follows broker 2 again" in old.output()
    )
    # The leader may count what the successor has, and nothing that another process fetched in its name.
    os.kill(successor.pid, signal.SIGSTOP)
    try:
        answer = replicas.try_to_produce(topic, "third")
        held = b"".join(path.read_bytes() for path in (successor.data_dir / f"{topic}-0").glob("*.log"))
        assert answer.error_code or b"third" in held, (
            "acknowledged, and the replica in sync has nothing of it"
        )
    finally:
        os.kill(successor.pid, signal.SIGCONT)
    replicas.wait_for("the old one ends", lambda: not old.is_running)
    assert f"broker at {successor.address} has been registered under this id" in old.output()
    replicas.produce(topic, "fourth")
    assert replicas.state(topic).leader == 2
