"""What replicas have on their disks: as the commands show it, after a disk was lost, and after retention."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from fix_broker import StartCluster
from fix_cli import Headrace, command_runner
from fix_replicas import SETTINGS, ReplicatedCluster, batch
from headrace.client.replica_admin import ReplicaAdmin
from headrace.coordination import znodes


@pytest.fixture(scope="module")
def replicas(module_clusters: StartCluster) -> Iterator[ReplicatedCluster]:
    """Brokers that enforce retention all the time."""
    settings = {**SETTINGS, "log.retention.check.interval.ms": "200"}
    with ReplicatedCluster(module_clusters(count=3, config=settings)) as cluster:
        yield cluster


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    return command_runner(monkeypatch, capsys)


def test_describe_and_list_show_replicas_epochs_lag_and_what_is_out_of_sync(
    replicas: ReplicatedCluster, run: Headrace
) -> None:
    where = ("-b", replicas.brokers.bootstrap)
    topic = replicas.topic(1, 2, 3, min_insync_replicas="1")
    epoch = replicas.elect(topic, 2)
    replicas.produce(topic, "on all")
    replicas.wait_until_equal(topic, 1, 2, 3)

    def described() -> dict[str, Any]:
        (row,) = run("topics", "describe", topic, *where, "--json").json["partitions"]
        assert isinstance(row, dict)
        return row

    replicas.wait_for(
        "every broker says how much it has", lambda: described()["lag_bytes"] == {"1": 0, "3": 0}
    )
    row = described()
    assert (row["leader"], row["leader_epoch"], row["replicas"]) == (2, epoch, [1, 2, 3])
    assert not row["is_under_replicated"] and not row["is_offline"]
    assert "under-replicated" not in run("topics", "list", *where).out

    before = len(replicas.on_disk(2, topic))
    replicas.brokers[3].stop()
    try:
        replicas.wait_in_sync(topic, 1, 2)
        replicas.produce(topic, "while broker 3 is down")
        replicas.wait_until_equal(topic, 1, 2)
        replicas.wait_for("it shows", lambda: described()["is_under_replicated"])
        row = described()
        assert row["lag_bytes"] == {"1": 0, "3": None} and set(row["in_sync"]) == {1, 2}
        shown = run("topics", "describe", topic, *where)
        assert f"{topic}-0 is under-replicated: broker 3 not in sync" in shown.out
        assert "3: ?" in shown.out and shown.exit_code == 3, "broker 3 does not answer"
        listed = run("topics", "list", *where)
        assert "under-replicated" in listed.out and "partition 0" in listed.out
    finally:
        replicas.brokers[3].start()
    replicas.wait_in_sync(topic, 1, 2, 3)
    assert replicas.wait_until_equal(topic, 1, 2, 3)[:before]


def test_a_replica_with_an_empty_disk_is_filled_again_and_joins_only_then(
    replicas: ReplicatedCluster,
) -> None:
    """The leader's log is large, and begins behind address 0: retention has deleted what was before."""
    topic = replicas.topic(1, 2, 3, segment_bytes="100000", retention_bytes="400000", min_insync_replicas="1")
    replicas.brokers[3].stop()
    shutil.rmtree(replicas.brokers[3].data_dir)
    replicas.wait_in_sync(topic, 1, 2)
    with replicas.client(1) as client:
        for _ in range(10):
            assert client.produce(topic, 0, batch("large", 90_000)).error_code == 0
    replicas.wait_for("retention deletes", lambda: first_address(replicas, 1, topic) > 0)
    replicas.brokers[3].start(wait=False)
    early: list[int] = []

    def has_joined() -> bool:
        is_in_sync = 3 in replicas.state(topic).isr
        held = (
            len(replicas.on_disk(3, topic)) if (replicas.brokers[3].data_dir / f"{topic}-0").exists() else 0
        )
        if is_in_sync and held < 300_000:
            early.append(held)
        return is_in_sync

    replicas.wait_for("it joins", has_joined)
    assert not early, "it was in sync before it had what the leader has"
    replicas.brokers[3].wait_until_ready()
    assert first_address(replicas, 3, topic) > 0
    replicas.produce(topic, "afterwards")
    ends = {replicas.on_disk(broker, topic)[-len(batch("afterwards")) :] for broker in (1, 2, 3)}
    assert len(ends) == 1


def test_an_older_copy_of_a_disk_does_not_lead_without_what_was_acknowledged_since(
    replicas: ReplicatedCluster,
) -> None:
    """All brokers die, and the one whose backup was put back is the first to return."""
    topic = replicas.topic(1, 2, 3, min_insync_replicas="1")
    replicas.wait_in_sync(topic, 1, 2, 3)
    restored = replicas.brokers[3]
    restored.stop()
    copied = restored.data_dir.with_name("copy-of-3")
    shutil.copytree(restored.data_dir, copied)
    restored.start()
    replicas.wait_in_sync(topic, 1, 2, 3)
    replicas.produce(topic, "since the copy was made")
    replicas.wait_until_equal(topic, 1, 2, 3)
    for number in (1, 2, 3):
        replicas.brokers[number].kill()
    assert set(replicas.state(topic).isr) == {1, 2, 3}, "as far as anybody knows"
    shutil.rmtree(restored.data_dir)
    copied.rename(restored.data_dir)
    restored.start(wait=False)
    replicas.wait_for("it is out of sync", lambda: set(replicas.state(topic).isr) == {1, 2})
    assert "is an older copy of broker 3's disk" in restored.output()
    assert replicas.state(topic).leader != 3
    for number in (1, 2):
        replicas.brokers[number].start()
    restored.wait_until_ready()
    replicas.wait_in_sync(topic, 1, 2, 3)
    assert b"since the copy was made" in replicas.wait_until_equal(topic, 1, 2, 3)


def test_a_broker_does_not_start_above_an_older_zookeeper(replicas: ReplicatedCluster) -> None:
    """By the in-sync sets of then it could lead, or be led, without what was acknowledged since."""
    broker, path = replicas.brokers[3], znodes.disk(3)
    older = replicas.session.get(path).data
    broker.restart()
    broker.restart()
    broker.stop()
    replicas.session.set(path, older)
    broker.start(wait=False)
    replicas.wait_for("it gives up", lambda: not broker.is_running)
    assert "ZooKeeper's data is older than" in broker.output() and "Traceback" not in broker.output()
    replicas.session.delete(path)
    broker.start()


def first_address(replicas: ReplicatedCluster, broker: int, topic: str) -> int:
    """Where a replica's log begins on its disk."""
    folder = replicas.brokers[broker].data_dir / f"{topic}-0"
    return min((int(path.stem) for path in folder.glob("*.log")), default=-1)


def test_followers_delete_what_retention_deletes_at_their_leader(replicas: ReplicatedCluster) -> None:
    topic = replicas.topic(1, 2, 3, segment_bytes="50000", retention_bytes="100000")
    with replicas.client(1) as client:
        for _ in range(8):
            assert client.produce(topic, 0, batch("kept for a while", 40_000)).error_code == 0
    replicas.wait_for("the leader deletes", lambda: first_address(replicas, 1, topic) > 0)
    with ReplicaAdmin(replicas.brokers.bootstrap) as admin:

        def starts() -> set[int]:
            stored = admin.replicas().stored
            return {stored[broker, topic, 0].start_address for broker in (1, 2, 3)}

        replicas.wait_for("all begin at the same address", lambda: len(starts()) == 1 and starts() != {0})
    replicas.wait_for(
        "all have deleted the same files",
        lambda: len({first_address(replicas, broker, topic) for broker in (1, 2, 3)}) == 1,
    )
    assert replicas.wait_until_equal(topic, 1, 2, 3)
