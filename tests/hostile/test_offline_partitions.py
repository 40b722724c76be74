"""A partition whose log is damaged, in a cluster that runs: every broker says so, and why, and the partition
serves again once it was mended, without a restart.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName
from typer.testing import CliRunner

from fix_broker import BrokerProcess, RawClient, StartCluster
from fix_java import KafkaTool
from fix_ports import free_port
from headrace.cli.main import app
from headrace.client import Admin
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S = 90.0
BATCH = encode_batch([Record(0, 1_000, None, b"v")])


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not become true in time"
        time.sleep(0.1)


def headrace(*words: object) -> tuple[int, str, str]:
    """Exit code, output, and the error."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output, str(done.exception)


class Damaged:
    """Two brokers with the topic `rot`; the log of rot-0 is damaged, and its leader has been restarted."""

    def __init__(self, start: StartCluster) -> None:
        pages = {1: f"127.0.0.1:{free_port('127.0.0.1')}", 2: f"127.0.0.1:{free_port('127.0.0.1')}"}
        self.cluster = start(
            2, {"log.scrub.bytes.per.second": "0"}, arguments=lambda n: ["--status", pages[n]]
        )
        with Admin(self.cluster.bootstrap) as admin:
            admin.create_topic("rot", 2, 1)
            leader = admin.topic("rot").partitions[0].leader
        self.leader: BrokerProcess = self.cluster[leader]
        self.other: BrokerProcess = self.cluster[3 - leader]
        self.page = pages[leader]
        with RawClient(self.leader.address) as client:
            for _ in range(10):
                assert client.produce("rot", 0, BATCH).error_code == 0
        self.leader.stop()
        self.folder = self.leader.data_dir / "rot-0"
        (self.segment,) = self.folder.glob("*.log")
        self.whole = self.segment.read_bytes()
        self.segment.write_bytes(self.whole[:-1])
        self.leader.start()

    def metadata(self, broker: BrokerProcess, index: int = 0) -> tuple[int, int, tuple[int, ...]]:
        """The error, the leader and the offline replicas that a broker names."""
        request = MetadataRequest(
            topics=(MetadataRequestTopic(topic_id=None, name=TopicName("rot")),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        with RawClient(broker.address) as client:
            partitions = {each.partition_index: each for each in client.call(request).topics[0].partitions}
        part = partitions[index]
        return int(part.error_code), part.leader_id, tuple(map(int, part.offline_replicas))

    def offline(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.page}/status", timeout=30) as response:
            found: dict[str, Any] = json.load(response)["offline"]
            return found

    def serves(self) -> bool:
        with RawClient(self.leader.address) as client:
            return bool(client.produce("rot", 0, BATCH).error_code == ErrorCode.NONE)


@pytest.fixture
def damaged(broker_cluster: StartCluster) -> Damaged:
    return Damaged(broker_cluster)


def test_every_broker_says_which_partition_is_offline_and_set_aside_brings_it_back(damaged: Damaged) -> None:
    leader = damaged.leader.broker_id
    gone = (ErrorCode.LEADER_NOT_AVAILABLE, -1, (leader,))
    for broker in (damaged.leader, damaged.other):
        eventually(lambda b=broker: damaged.metadata(b) == gone)  # type: ignore[misc]
        assert damaged.metadata(broker, 1)[0] == ErrorCode.NONE
    found = damaged.offline()
    assert (found["count"], [each["partition"] for each in found["partitions"]]) == (1, ["rot-0"])
    assert str(damaged.segment) in found["partitions"][0]["problem"]

    with Admin(damaged.cluster.bootstrap) as admin:
        whole, offline = admin.describe_log_dirs(leader)
        assert (whole.error, whole.path) == (ErrorCode.NONE, str(damaged.leader.data_dir))
        assert 0 < whole.usable_bytes <= whole.total_bytes
        assert (offline.error, offline.path) == (ErrorCode.KAFKA_STORAGE_ERROR, str(damaged.folder))
        assert {key: each.size_bytes for key, each in offline.replicas.items()} == {
            ("rot", 0): len(damaged.whole) - 1
        }
        assert "set-aside" in offline.problem
        (other,) = admin.describe_log_dirs(damaged.other.broker_id, {"rot": [0, 1]})
        assert {key: each.size_bytes for key, each in other.replicas.items()} == {("rot", 1): 0}

    code, described, _ = headrace("topics", "describe", "rot", "-b", damaged.cluster.bootstrap)
    assert code == 1, described  # not all of it is served
    words = " ".join(described.split())
    assert "rot-0 is not served: offline: " in words and str(damaged.segment) in words
    assert (
        f"address {len(damaged.whole) - 1}" in words and f"headrace log set-aside {damaged.folder}" in words
    )
    told = headrace("topics", "describe", "rot", "-b", damaged.cluster.bootstrap, "--json")[1]
    rows = json.loads(told[told.index("{") :])
    assert [row["problem"] is None for row in rows["partitions"]] == [False, True]
    assert [row["end_address"] for row in rows["partitions"]] == [None, 0]

    # Beside the running brokers: the offline log alone is touched.
    code, done, _ = headrace("log", "set-aside", damaged.leader.data_dir, "--partition", "rot-0")
    assert code == 0, done
    eventually(damaged.serves)
    for broker in (damaged.leader, damaged.other):
        eventually(lambda b=broker: damaged.metadata(b) == (ErrorCode.NONE, leader, ()))  # type: ignore[misc]
    assert damaged.offline() == {"count": 0, "partitions": []}
    with RawClient(damaged.leader.address) as client:
        assert client.list_offset("rot", 0, -1)[0] > len(damaged.whole), "no address is given away twice"
        assert client.fetch("rot", 0, 0).error_code == 0
    code, _, refused = headrace("log", "set-aside", damaged.leader.data_dir, "--partition", "rot-0")
    assert code != 0 and "stop the broker first" in refused


def test_a_restored_file_is_opened_by_the_running_broker(damaged: Damaged, tmp_path: Path) -> None:
    assert not damaged.serves()
    restored = damaged.folder / "restored"
    restored.write_bytes(damaged.whole)
    restored.replace(damaged.segment)
    eventually(damaged.serves)
    with RawClient(damaged.leader.address) as client:
        assert client.list_offset("rot", 0, -1)[0] == len(damaged.whole) + len(BATCH)
    assert "rot-0: open again" in damaged.leader.output()


def test_brokers_that_are_killed_leave_no_partition_marked_offline(damaged: Damaged) -> None:
    """The mark of the killed one would outlive it by a session's timeout, and hold up its successor's."""
    eventually(lambda: damaged.metadata(damaged.other)[0] == ErrorCode.LEADER_NOT_AVAILABLE)
    damaged.leader.kill()
    damaged.segment.write_bytes(damaged.whole)
    damaged.leader.start()
    eventually(lambda: damaged.metadata(damaged.other) == (ErrorCode.NONE, damaged.leader.broker_id, ()))
    assert damaged.serves()


@pytest.mark.real_client
def test_kafkas_own_tool_lists_the_folder_that_is_offline(damaged: Damaged, kafka_tool: KafkaTool) -> None:
    printed = kafka_tool(
        "org.apache.kafka.tools.LogDirsCommand", "--bootstrap-server", damaged.cluster.bootstrap, "--describe"
    ).decode()
    brokers = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))["brokers"]
    folders = {
        each["logDir"]: each
        for broker in brokers
        if broker["broker"] == damaged.leader.broker_id
        for each in broker["logDirs"]
    }
    assert folders[str(damaged.leader.data_dir)]["error"] is None
    assert "KafkaStorageException" in folders[str(damaged.folder)]["error"]
