"""Apache Kafka's own command-line tools against real brokers: verifiable and console producers and consumers,
and what an operator types. Each is a JVM of its own, as released."""

import json
from pathlib import Path

import pytest

from fix_datacenter import Datacenter
from fix_java import KafkaTool

pytestmark = pytest.mark.real_client

COUNT = 100_000
TOPIC = "tools"


@pytest.fixture(scope="module")
def verifiable_topic(datacenter: Datacenter, kafka_tool: KafkaTool) -> str:
    """A topic into which the verifiable producer wrote the numbers 0 to COUNT - 1; each was acknowledged."""
    datacenter.create_topic(TOPIC, 1)
    output = kafka_tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", datacenter.bootstrap, "--topic", TOPIC, "--max-messages", str(COUNT)),
        *("--acks", "-1", "--throughput", "-1"),
    )
    events = [json.loads(line) for line in output.splitlines()]
    acknowledged = [each for each in events if each["name"] == "producer_send_success"]
    assert [int(each["value"]) for each in acknowledged] == list(range(COUNT))
    assert events[-1]["name"] == "tool_data" and events[-1]["acked"] == COUNT
    return TOPIC


def test_verifiable_consumer(verifiable_topic: str, datacenter: Datacenter, kafka_tool: KafkaTool) -> None:
    output = kafka_tool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", datacenter.bootstrap, "--topic", verifiable_topic, "--group-id", "verifiers"),
        *("--max-messages", str(COUNT), "--reset-policy", "earliest", "--verbose"),
    )
    events = [json.loads(line) for line in output.splitlines()]
    values = [int(each["value"]) for each in events if each["name"] == "record_data"]
    assert values == list(range(COUNT))
    commits = [each for each in events if each["name"] == "offsets_committed"]
    assert commits and all(each["success"] for each in commits)


def test_console_consumer_from_an_offset(
    verifiable_topic: str, datacenter: Datacenter, kafka_tool: KafkaTool
) -> None:
    where = ("--bootstrap-server", datacenter.bootstrap, "--topic", verifiable_topic)
    shown = ("--formatter-property", "print.offset=true", "--max-messages")
    tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    whole = kafka_tool(tool, *where, "--from-beginning", *shown, str(COUNT)).decode().splitlines()
    rows = [line.split("\t") for line in whole]
    assert [int(value) for _, value in rows] == list(range(COUNT))
    # The middle of a batch: the record before it is one address below.
    place = next(at for at in range(COUNT // 2, COUNT) if _offset(rows[at]) == _offset(rows[at - 1]) + 1)
    start = ("--partition", "0", "--offset", str(_offset(rows[place])))
    assert kafka_tool(tool, *where, *start, *shown, "500").decode().splitlines() == whole[place : place + 500]


def _offset(row: list[str]) -> int:
    return int(row[0].removeprefix("Offset:"))


def test_console_producer(datacenter: Datacenter, kafka_tool: KafkaTool) -> None:
    lines = b"".join(b"key-%d\tline %d\n" % (each % 7, each) for each in range(COUNT))
    kafka_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", datacenter.bootstrap, "--topic", "console", "--compression-codec", "zstd"),
        *("--reader-property", "parse.key=true", "--batch-size", "1000"),
        stdin=lines,
    )
    read = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", datacenter.bootstrap, "--topic", "console", "--from-beginning"),
        *("--max-messages", str(COUNT), "--formatter-property", "print.key=true"),
    )
    assert read == lines


def test_operators_tools(
    verifiable_topic: str, datacenter: Datacenter, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", datacenter.bootstrap)
    topics = "org.apache.kafka.tools.TopicCommand"
    kafka_tool(
        topics, *server, "--create", "--topic", "typed", "--partitions", "3", "--config", "retention.ms=60000"
    )
    described = kafka_tool(topics, *server, "--describe", "--topic", "typed").decode()
    assert "PartitionCount: 3" in described and "retention.ms=60000" in described
    topic_id = described.partition("TopicId: ")[2].split()[0]
    by_id = kafka_tool(topics, *server, "--describe", "--topic-id", topic_id).decode()
    assert "Topic: typed" in by_id and "PartitionCount: 3" in by_id
    kafka_tool(topics, *server, "--alter", "--topic", "typed", "--partitions", "5")
    assert "PartitionCount: 5" in kafka_tool(topics, *server, "--describe", "--topic", "typed").decode()
    assert {"typed", verifiable_topic} <= set(kafka_tool(topics, *server, "--list").decode().split())
    kafka_tool(topics, *server, "--delete", "--topic", "typed")
    assert "typed" not in kafka_tool(topics, *server, "--list").decode().split()

    offsets = kafka_tool(
        "org.apache.kafka.tools.GetOffsetShell", *server, "--topic", verifiable_topic
    ).decode()
    assert offsets.strip() == f"{verifiable_topic}:0:{datacenter.end_address(verifiable_topic)}"
    groups = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    assert "verifiers" in kafka_tool(groups, *server, "--list").decode().split()
    described = kafka_tool(groups, *server, "--describe", "--group", "verifiers").decode()
    assert verifiable_topic in described


def test_all_groups_are_described_after_a_topic_was_deleted(
    datacenter: Datacenter, kafka_tool: KafkaTool
) -> None:
    """An offset of a deleted topic made the tool fail for all groups. One id here is no plain name."""
    server = ("--bootstrap-server", datacenter.bootstrap)
    for topic in ("kept", "deleted"):
        datacenter.create_topic(topic, 1)
        kafka_tool("org.apache.kafka.tools.ConsoleProducer", *server, "--topic", topic, stdin=b"one\ntwo\n")
    for group, topic in (("keeps", "kept"), ("a/b", "kept"), ("loses", "deleted"), ("loses", "kept")):
        kafka_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *(*server, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2"),
        )
    kafka_tool("org.apache.kafka.tools.TopicCommand", *server, "--delete", "--topic", "deleted")
    groups = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    lines = kafka_tool(groups, *server, "--all-groups", "--describe").decode().splitlines()
    rows = {tuple(line.split()[:2]) for line in lines}
    assert {("keeps", "kept"), ("a/b", "kept"), ("loses", "kept")} <= rows
    assert ("loses", "deleted") not in rows


def test_offsets_of_a_topic_are_deleted(datacenter: Datacenter, kafka_tool: KafkaTool) -> None:
    server = ("--bootstrap-server", datacenter.bootstrap)
    for topic in ("left", "read"):
        datacenter.create_topic(topic, 1)
        kafka_tool("org.apache.kafka.tools.ConsoleProducer", *server, "--topic", topic, stdin=b"one\n")
        kafka_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *(*server, "--topic", topic, "--group", "reader", "--from-beginning", "--max-messages", "1"),
        )
    groups = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    said = kafka_tool(groups, *server, "--delete-offsets", "--group", "reader", "--topic", "left").decode()
    assert "Successful" in said
    lines = kafka_tool(groups, *server, "--describe", "--group", "reader").decode().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("reader")] == ["read"]


def test_records_are_deleted(datacenter: Datacenter, kafka_tool: KafkaTool, tmp_path: Path) -> None:
    server = ("--bootstrap-server", datacenter.bootstrap)
    datacenter.create_topic("purged", 1)
    kafka_tool("org.apache.kafka.tools.ConsoleProducer", *server, "--topic", "purged", stdin=b"one\ntwo\n")
    wanted = tmp_path / "purged.json"
    wanted.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "purged", "partition": 0, "offset": -1}]})
    )
    said = kafka_tool(
        "org.apache.kafka.tools.DeleteRecordsCommand", *server, "--offset-json-file", str(wanted)
    ).decode()
    assert f"purged-0\tlow_watermark: {datacenter.end_address('purged')}" in said
