"""`headrace groups` on real brokers: groups of Kafka's protocol and of ZooKeeper, side by side."""

from __future__ import annotations

import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kafka
import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_cli import Headrace, command_runner
from headrace.cli import cluster as cli_cluster
from headrace.cli import group_state
from headrace.cli.errors import ExitCode
from headrace.client import Admin, ConsumerGroup, Producer
from headrace.client.group_admin import GroupAdmin
from headrace.site.context import ContextDatacenter

WAIT_MAX_S = 60.0
RECORDS = 40
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def brokers(module_clusters: StartCluster) -> BrokerCluster:
    return module_clusters(
        2, {"group.initial.rebalance.delay.ms": "0", "zookeeper.session.timeout.ms": "40000"}
    )


def datacenter_of(brokers: BrokerCluster, zookeeper: str) -> ContextDatacenter:
    return ContextDatacenter(
        name="east",
        bootstrap_servers=tuple(f"{each.host}:{each.port}" for each in brokers.brokers),
        broker_ids=tuple(each.broker_id for each in brokers.brokers),
        zookeeper_servers=zookeeper,
    )


@pytest.fixture
def headrace(
    brokers: BrokerCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Headrace:
    """Runs commands in this process, on these brokers as the datacenter's."""
    datacenter = datacenter_of(brokers, brokers.zookeeper.hosts)
    for module in (cli_cluster, group_state):
        monkeypatch.setattr(module, "datacenter", lambda _: datacenter)

    return command_runner(monkeypatch, capsys)


@pytest.fixture
def topic(brokers: BrokerCluster) -> str:
    """Four partitions; ten records in each, one a day, each a batch of its own; the last one is new."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(name, 4)
    now_ms = int(time.time() * 1000)
    with Producer(brokers.bootstrap) as producer:
        for number in range(RECORDS):
            age_ms = DAY_MS * (9 - number // 4)
            sent = producer.send(name, b"%d" % number, partition=number % 4, timestamp_ms=now_ms - age_ms)
            sent.result(WAIT_MAX_S)
    return name


@contextmanager
def kafka_member(brokers: BrokerCluster, topic: str, group: str) -> Iterator[None]:
    """A member of Kafka's protocol that has read and committed everything, and stays."""
    stop = threading.Event()
    caught_up = threading.Event()

    def read() -> None:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=brokers.bootstrap.split(","),
            group_id=group,
            client_id="billing",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            # It may join before it knows the topic's partitions, and then waits for newer metadata.
            metadata_max_age_ms=1_000,
        )
        seen: set[tuple[int, int]] = set()
        while not stop.is_set():
            # Longer than a rejoin takes, even on a busy machine: kafka-python 3.0.12 forgets for ever a
            # rejoin for newer metadata if a poll ends between its JoinGroup and its SyncGroup.
            wait_ms = 2_000 if caught_up.is_set() else 20_000
            for records in consumer.poll(timeout_ms=wait_ms).values():
                seen |= {(record.partition, record.offset) for record in records}
            if len(seen) == RECORDS and not caught_up.is_set():
                consumer.commit()
                caught_up.set()
        consumer.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert caught_up.wait(WAIT_MAX_S)
        yield
    finally:
        stop.set()
        thread.join(WAIT_MAX_S)


@contextmanager
def zookeeper_member(brokers: BrokerCluster, topic: str, group: str) -> Iterator[None]:
    with ConsumerGroup(
        brokers.zookeeper.hosts,
        brokers.bootstrap,
        group,
        [topic],
        member_id="reader",
        consumer_options={"auto_offset_reset": "earliest"},
    ) as member:
        (stream,) = member.streams(1)
        for _ in range(RECORDS):
            next(stream)
        member.commit()
        yield


@pytest.fixture(params=["kafka", "zookeeper"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def member_of(kind: str) -> Callable[[BrokerCluster, str, str], Any]:
    return {"kafka": kafka_member, "zookeeper": zookeeper_member}[kind]


def row_of(headrace: Headrace, group: str) -> dict[str, Any]:
    (row,) = [row for row in headrace("groups", "list", "--json").json if row["group"] == group]
    return dict(row)


def test_a_running_group_is_shown_and_neither_reset_nor_deleted(
    headrace: Headrace, brokers: BrokerCluster, topic: str, kind: str
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    with member_of(kind)(brokers, topic, group):
        row = row_of(headrace, group)
        assert row == {"group": group, "kind": kind, "state": "Stable", "members": 1, "topics": [topic]}
        described = headrace("groups", "describe", group, "--json").json
        (member,) = described["members"]
        assert [part["partition"] for part in member["partitions"]] == [0, 1, 2, 3]
        expected = ("billing", "127.0.0.1") if kind == "kafka" else (None, None)
        assert (member["client_id"], member["host"]) == expected
        assert {each["member"] for each in described["partitions"]} == {member["member"]}
        assert [each["lag_bytes"] for each in described["partitions"]] == [0] * 4
        assert [each["lag_records"] for each in described["partitions"]] == [0] * 4
        text = headrace("groups", "describe", group).out
        assert f"kind {kind}, state Stable, members 1" in text
        before = {each["partition"]: each["offset"] for each in described["partitions"]}
        for words in (("reset", group, "--to", "earliest"), ("delete", group, "--yes")):
            refused = headrace("groups", *words)
            assert refused.exit_code == ExitCode.NEGATIVE
            assert f"group {group} has 1 live member (" in refused.err and "stop them first" in refused.err
        refused = headrace("groups", "delete", group, "--topic", topic, "--yes")
        assert refused.exit_code == ExitCode.NEGATIVE
        assert f"group {group}: members read {topic}; stop them, and try again" in refused.err
        dry = headrace("groups", "reset", group, "--to", "earliest", "--dry-run")
        assert dry.exit_code == ExitCode.NEGATIVE and "→" in dry.out and "live member" in dry.err
        described = headrace("groups", "describe", group, "--json").json
        assert {each["partition"]: each["offset"] for each in described["partitions"]} == before
    row = row_of(headrace, group)
    assert (row["kind"], row["state"], row["members"]) == (kind, "Empty", 0)


def test_a_stopped_group_loses_the_offsets_of_one_topic(
    headrace: Headrace, brokers: BrokerCluster, topic: str, kind: str
) -> None:
    group, other = f"g-{uuid.uuid4().hex[:8]}", f"other-{uuid.uuid4().hex[:8]}"
    with member_of(kind)(brokers, topic, group):
        pass
    with GroupAdmin(brokers.bootstrap) as admin:
        admin.create_topic(other, 1)
        admin.commit_offsets(group, {(other, 0): 0})
    refused = headrace("groups", "delete", group, "--topic", topic, "--topic", "nowhere", "--yes")
    assert refused.exit_code == ExitCode.NEGATIVE
    assert f"group {group} has stored no offsets of nowhere; nothing was deleted" in refused.err
    assert row_of(headrace, group)["topics"] == sorted([other, topic])
    done = headrace("groups", "delete", group, "-t", topic, "--yes")
    assert done.exit_code == 0, done.err
    assert done.out.strip() == f"deleted the offsets of group {group} of {topic}"
    assert row_of(headrace, group)["topics"] == [other]
    assert headrace("groups", "delete", group, "-t", other, "--yes", "--json").json["topics"] == [other]


def test_a_stopped_group_is_reset_by_every_target_and_deleted(
    headrace: Headrace, brokers: BrokerCluster, topic: str, kind: str
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    with member_of(kind)(brokers, topic, group):
        pass
    with Admin(brokers.bootstrap) as admin:
        ends = {number: at.offset for number, at in admin.list_offsets(topic).items()}

    def stored() -> dict[int, int]:
        rows = headrace("groups", "describe", group, "--json").json["partitions"]
        return {row["partition"]: row["offset"] for row in rows}

    def reset(*words: object) -> dict[int, tuple[int, int]]:
        before = stored()
        dry = headrace("groups", "reset", group, *words, "--dry-run", "--json")
        assert dry.exit_code == 0 and dry.json["changed"] is False and stored() == before
        done = headrace("groups", "reset", group, *words, "--json")
        assert done.exit_code == 0 and done.json["changed"] is True, done.err
        assert done.json["partitions"] == dry.json["partitions"]
        changes = {row["partition"]: (row["before"], row["after"]) for row in done.json["partitions"]}
        assert stored() == before | {number: after for number, (_, after) in changes.items()}
        return changes

    assert stored() == ends
    assert reset("--to", "earliest") == {number: (end, 0) for number, end in ends.items()}
    rows = headrace("groups", "describe", group, "--json").json["partitions"]
    assert [(row["lag_records"], row["lag_records_exact"]) for row in rows] == [(10, True)] * 4
    assert [row["lag_bytes"] for row in rows] == [ends[number] for number in range(4)]
    assert all(8.9 * 86_400 < row["lag_s"] < 9.9 * 86_400 for row in rows)
    (middle,) = {after for _, after in reset("--to", "-36h", "--topic", topic, "-p", 2).values()}
    rows = headrace("groups", "describe", group, "--json").json["partitions"]
    assert [row["lag_records"] for row in rows] == [10, 10, 2, 10]
    assert reset("--shift-by", "-1", "-t", topic, "-p", 2) == {2: (middle, middle - 1)}
    assert reset("--shift-by", "-1TiB", "-t", topic, "-p", 2) == {2: (middle - 1, 0)}
    assert reset("--to-offset", middle, "-t", topic, "-p", 2) == {2: (0, middle)}
    assert reset("--to", "latest") == {
        0: (0, ends[0]),
        1: (0, ends[1]),
        2: (middle, ends[2]),
        3: (0, ends[3]),
    }
    outside = headrace("groups", "reset", group, "--to-offset", ends[0] + 1, "-t", topic, "-p", 0)
    assert outside.exit_code == ExitCode.USAGE and "goes from 0 to" in outside.err
    assert headrace("groups", "delete", group, "--yes").out == f"deleted group {group}\n"
    assert group not in {row["group"] for row in headrace("groups", "list", "--json").json}
    gone = headrace("groups", "delete", group, "--yes")
    assert gone.exit_code == ExitCode.NEGATIVE and "there is no group" in gone.err


def test_both_kinds_under_one_name_are_told(headrace: Headrace, brokers: BrokerCluster, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    with kafka_member(brokers, topic, group):
        with GroupAdmin(brokers.bootstrap) as admin:
            assert [member.client_id for member in admin.describe_group(group).members or ()] == ["billing"]
            assert admin.list_groups().groups[group].members is not None
        with ConsumerGroup(brokers.zookeeper.hosts, brokers.bootstrap, group, [topic]) as member:
            member.streams(1)
            deadline = time.monotonic() + WAIT_MAX_S
            while row_of(headrace, group)["kind"] != "kafka and zookeeper":
                assert time.monotonic() < deadline, "the member in ZooKeeper is not shown"
            assert "overwrite each other's offsets" in headrace("groups", "describe", group).out


def test_without_zookeeper_the_brokers_tell_what_they_know(
    headrace: Headrace, brokers: BrokerCluster, topic: str
) -> None:
    running, stored = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))
    here = ("-b", brokers.bootstrap)
    assert headrace("groups", "reset", stored, "--topic", topic, "--to", "earliest").exit_code == 0
    with kafka_member(brokers, topic, running):
        listed = headrace("groups", "list", *here, "--json")
        assert listed.exit_code == 0 and "coordinate through ZooKeeper cannot be seen" in listed.err
        rows = {row["group"]: row for row in listed.json}
        assert rows[running] | {"group": ""} == {
            "group": "",
            "kind": "kafka",
            "state": "Stable",
            "members": 1,
            "topics": [topic],
        }
        assert rows[stored] | {"group": ""} == {
            "group": "",
            "kind": "not known",
            "state": "Unknown",
            "members": None,
            "topics": [topic],
        }
        described = headrace("groups", "describe", running, *here, "--json").json
        assert [each["lag_bytes"] for each in described["partitions"]] == [0] * 4
        assert headrace("groups", "reset", running, *here, "--to", "earliest").exit_code == ExitCode.NEGATIVE
    refused = headrace("groups", "reset", stored, *here, "--to", "latest")
    assert refused.exit_code == ExitCode.NEGATIVE and "--yes if none of its members runs" in refused.err
    assert headrace("groups", "reset", stored, *here, "--to", "latest", "--yes").exit_code == ExitCode.DONE
    rows = headrace("groups", "describe", stored, *here, "--json").json["partitions"]
    assert [row["lag_bytes"] for row in rows] == [0] * 4
    wrong = headrace("groups", "reset", stored, *here, "--topic", topic[:-1], "--to", "latest", "--yes")
    assert wrong.exit_code == ExitCode.NEGATIVE and f"did you mean {topic!r}?" in wrong.err
    wrong = headrace("groups", "describe", stored[:-1], *here)
    assert wrong.exit_code == ExitCode.NEGATIVE and f"did you mean {stored!r}?" in wrong.err
    assert headrace("groups", "delete", stored, *here, "--yes").exit_code == ExitCode.DONE


def test_any_name_of_a_group_is_shown_escaped(headrace: Headrace, topic: str) -> None:
    group = f"g\x1b[31m[red]{uuid.uuid4().hex[:8]}"
    shown = group.replace("\x1b", "\\x1b")
    assert shown in headrace("groups", "reset", group, "--topic", topic, "--to", "earliest").out
    assert shown in headrace("groups", "list").out
    assert shown in headrace("groups", "describe", group).out
    assert row_of(headrace, group)["state"] == "Empty"
    assert shown in headrace("groups", "delete", group, "--yes").out


def test_a_hung_coordinator_is_named_and_its_groups_are_not_touched(
    headrace: Headrace, brokers: BrokerCluster, topic: str
) -> None:
    groups = [f"g-{uuid.uuid4().hex[:8]}" for _ in range(6)]
    for group in groups:
        assert headrace("groups", "reset", group, "--topic", topic, "--to", "earliest").exit_code == 0
    coordinators = {
        group: headrace("groups", "describe", group, "--json").json["coordinator"] for group in groups
    }
    hung = coordinators[groups[0]]
    broker = brokers[hung]
    silence = f"broker {hung} at {broker.address} does not answer"
    broker.send_signal(signal.SIGSTOP)
    try:
        listed = headrace("groups", "list", "--json")
        assert listed.exit_code == ExitCode.UNREACHABLE and silence in listed.err
        rows = {row["group"]: row for row in listed.json}
        assert set(groups) <= set(rows)
        for group in groups:
            state = "Unknown" if coordinators[group] == hung else "Empty"
            assert (rows[group]["state"], rows[group]["topics"]) == (state, [topic])
        described = headrace("groups", "describe", groups[0], "--json")
        assert described.exit_code == ExitCode.UNREACHABLE and silence in described.err
        assert described.json["members"] is None
        assert {row["offset"] for row in described.json["partitions"]} == {0}
        problems = [row["problem"] for row in described.json["partitions"]]
        assert problems.count(silence) == 2 and problems.count(None) == 2
        refused = headrace("groups", "reset", groups[0], "--to", "latest")
        assert refused.exit_code == ExitCode.UNREACHABLE and silence in refused.err
        refused = headrace("groups", "delete", groups[0], "--yes")
        assert (
            refused.exit_code == ExitCode.UNREACHABLE
            and f"broker {hung}, which coordinates it" in refused.err
        )
        topics = headrace("topics", "describe", topic)
        assert topics.exit_code == ExitCode.UNREACHABLE and silence in topics.out
    finally:
        broker.send_signal(signal.SIGCONT)


def test_a_stopped_site_is_one_line(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, brokers: BrokerCluster
) -> None:
    nothing = ContextDatacenter(
        name="east",
        bootstrap_servers=("127.106.3.1:1",),
        broker_ids=(1,),
        zookeeper_servers="127.106.3.1:1",
    )
    for module in (cli_cluster, group_state):
        monkeypatch.setattr(module, "datacenter", lambda _: nothing)
    for words in (("list",), ("describe", "g"), ("delete", "g", "-y"), ("reset", "g", "--to", "latest")):
        result = headrace("groups", *words)
        assert result.exit_code == ExitCode.UNREACHABLE
        assert len(result.err.splitlines()) == 1 and "127.106.3.1:1" in result.err, result.err
    without = datacenter_of(brokers, "127.106.3.1:1")
    for module in (cli_cluster, group_state):
        monkeypatch.setattr(module, "datacenter", lambda _: without)
    result = headrace("groups", "list")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "only ZooKeeper knows are missing" in result.err


def test_a_hung_zookeeper_hides_nothing_of_what_brokers_know(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, brokers: BrokerCluster, topic: str
) -> None:
    """Its kernel accepts connections, and nothing answers on them."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    with kafka_member(brokers, topic, group), socket.create_server(("127.0.0.1", 0)) as silent:
        beside = datacenter_of(brokers, f"127.0.0.1:{silent.getsockname()[1]}")
        for module in (cli_cluster, group_state):
            monkeypatch.setattr(module, "datacenter", lambda _: beside)
        listed = headrace("groups", "list", "--json")
        assert {"group": group, "kind": "kafka", "state": "Stable", "members": 1, "topics": [topic]} in (
            listed.json
        )
        began_s = time.monotonic()
        described = headrace("groups", "describe", group, "--json")
        took_s = time.monotonic() - began_s
        unknown = headrace("groups", "describe", f"{group}-none")
    assert [row["lag_bytes"] for row in described.json["partitions"]] == [0] * 4
    assert {result.exit_code for result in (listed, described, unknown)} == {ExitCode.UNREACHABLE}
    for result in (listed, described):
        assert "only ZooKeeper knows are missing" in result.err
    assert f"no broker knows group '{group}-none'" in unknown.err
    # An end that waits for the library's attempt takes ten seconds more.
    assert took_s < cli_cluster.READ_MAX_S + WAIT_MAX_S / 10
