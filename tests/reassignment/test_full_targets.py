"""Moves to real brokers, two of which share a small disk: it never gets more than it has room for."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_cli import command_runner
from headrace.client.replica_admin import ReplicaAdmin
from headrace.coordination.topics import TopicRegistry
from headrace.process.disk import file_system_of, space_of
from headrace.reassignment.operations import CannotDrainError, drain
from headrace.wire.records import Record, encode_batch

MIB: Final = 1 << 20
DISK_BYTES: Final = 24 * MIB
RESERVE_BYTES: Final = 4 * MIB
PARTITION_MIB: Final = 5
WAIT_MAX_S: Final = 60.0


@pytest.fixture(scope="module")
def small_disk() -> Iterator[Path]:
    disk = Path(tempfile.mkdtemp(prefix="headrace-targets-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "headrace-test", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        disk.rmdir()
        pytest.skip("mounting a file system needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
        shutil.rmtree(disk, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(small_disk: Path, module_clusters: StartCluster) -> BrokerCluster:
    """Broker 1 has a large disk, 2 and 3 have the small one."""
    return module_clusters(
        count=3,
        config={"headrace.disk.free.min.bytes": str(RESERVE_BYTES)},
        arguments=lambda broker_id: (
            [] if broker_id == 1 else ["--data-dir", str(small_disk / f"broker-{broker_id}")]
        ),
    )


@pytest.fixture
def admin(cluster: BrokerCluster) -> Iterator[ReplicaAdmin]:
    with ReplicaAdmin(cluster.bootstrap) as admin:
        yield admin


@pytest.fixture
def registry(cluster: BrokerCluster) -> Iterator[TopicRegistry]:
    with cluster.zookeeper.session() as session:
        yield TopicRegistry(session)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def fill(cluster: BrokerCluster, topic: str, partitions: int) -> None:
    data = encode_batch([Record(0, 1_000, None, bytes(MIB // 2))])
    with RawClient(cluster[1].address) as client:
        for number in range(partitions):
            wait_for(lambda: client.produce(topic, number, data).error_code == 0)  # noqa: B023
            for _ in range(2 * PARTITION_MIB - 1):
                assert client.produce(topic, number, data).error_code == 0


def test_a_small_disk_takes_what_it_has_room_for(
    cluster: BrokerCluster,
    admin: ReplicaAdmin,
    registry: TopicRegistry,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, where = command_runner(monkeypatch, capsys), ("-b", cluster.bootstrap)
    registry.create("many", uuid4(), dict.fromkeys(range(8), (1,)))
    fill(cluster, "many", 8)

    # What brokers tell of their disks is true, and that two of them have one.
    rooms = admin.replicas().rooms
    assert all(abs(rooms[each].free_bytes - space_of(small_disk).free_bytes) < MIB for each in (2, 3))
    assert {each.reserve_bytes for each in rooms.values()} == {RESERVE_BYTES}
    assert rooms[2].file_system == rooms[3].file_system == file_system_of(small_disk)
    assert rooms[1].file_system == file_system_of(cluster[1].data_dir) != rooms[2].file_system
    listed = {row["broker"]: row for row in run("brokers", "list", *where, "--json").json}
    assert 20 * MIB < listed[2]["free_bytes"] <= DISK_BYTES

    # 40 MiB do not fit: the two brokers have 20 for both, after the reserve.
    refused = run("brokers", "drain", 1, "--dry-run", *where)
    assert refused.exit_code == 1
    assert "none of brokers 2, 3 has room for its 5," in refused.err
    assert "brokers 2, 3, on one disk, have room for" in refused.err and "--ignore-room" in refused.err
    with pytest.raises(CannotDrainError):
        drain(admin, 1, timeout_s=WAIT_MAX_S)
    after = admin.replicas()
    assert not after.drained and not after.reassignments
    would = run("brokers", "drain", 1, "--dry-run", "--ignore-room", "--json", *where).json
    assert would["partitions"] == 8 and not admin.replicas().drained
    (disk,) = [each for each in would["disks"] if each["brokers"] == [2, 3]]
    assert disk["needed_bytes"] > disk["free_bytes"] - disk["reserve_bytes"] > 0

    # A balance goes as far as there is room, and says so.
    balanced = run("brokers", "balance", *where)
    assert balanced.exit_code == 0 and "3 partitions moved" in balanced.out, balanced
    assert "get less than their share" in balanced.err and "brokers 2, 3, on one disk" in balanced.err
    assert space_of(small_disk).free_bytes >= RESERVE_BYTES

    # With less to move broker 1 is drained, and the reserve stays.
    registry.delete("many")
    wait_for(lambda: not admin.replicas().partitions)
    wait_for(lambda: space_of(small_disk).free_bytes > 20 * MIB)
    registry.create("few", uuid4(), dict.fromkeys(range(3), (1,)))
    fill(cluster, "few", 3)
    dry = run("brokers", "drain", 1, "--dry-run", *where)
    assert dry.exit_code == 0 and "its reserve" in dry.out and "2,3" in dry.out, dry
    assert drain(admin, 1, timeout_s=WAIT_MAX_S).partitions == 3
    assert all(1 not in part.replicas for part in admin.replicas().partitions.values())
    assert space_of(small_disk).free_bytes >= RESERVE_BYTES
