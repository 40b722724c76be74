"""Apache Kafka's load tools: what they print, as version 4.3.1 printed it, and a run of each."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

import pytest
from clients.kafka_java import ProducerSummary, consumed, window_records_per_s
from clients.outcome import ClientFailedError, Outcome
from clients.running import run
from peers.jars import bench_set

from clients import kafka_java
from fix_broker import BrokerCluster, RawClient

RUN_MAX_S = 120.0
ALL_CORES = range(8)

PRODUCED = """\
Warmup first 200000 records. Steady state results will print after the complete test summary.
2 records sent, 4.0 records/sec (0.00 MB/sec), 269.0 ms avg latency, 494.0 ms max latency.
15912 records sent, 31508.9 records/sec (6.01 MB/sec), 166.9 ms avg latency, 302.0 ms max latency.
In steady state.
99675 records sent, 198952.1 records/sec (37.95 MB/sec), 919.7 ms avg latency, 971.0 ms max latency.
300000 records sent, 87387.124964 records/sec (16.67 MB/sec), 851.19 ms avg latency, 1070.00 ms max latency, \
931 ms 50th, 1052 ms 95th, 1064 ms 99th, 1069 ms 99.9th.
100000 steady state records sent, 66622.251832 records/sec (12.71 MB/sec), 919.57 ms avg latency, \
971.00 ms max latency, 925 ms 50th, 955 ms 95th, 965 ms 99th, 966 ms 99.9th.
"""
CONSUMED = """\
time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-22 16:22:02:627, 0, 0.0002, 0.0002, 1, 0.9425, 1019, 42, 0.0045, 23.8095
2026-11-22 16:22:02:945, 0, 12.5690, 39.5247, 65898, 207223.2704, 0, 318, 39.5247, 207223.2704
"""


def test_a_producer_has_two_summaries() -> None:
    found = [each for line in PRODUCED.splitlines() if (each := ProducerSummary.parse(line)) is not None]
    whole, steady = found
    assert (whole.is_steady, whole.records) == (False, 300_000)
    assert (steady.is_steady, steady.records, steady.records_per_s) == (True, 100_000, 66622.251832)
    assert steady.latencies_ms == {
        "avg_ms": 919.57,
        "max_ms": 971.0,
        "p50_ms": 925.0,
        "p95_ms": 955.0,
        "p99_ms": 965.0,
        "p999_ms": 966.0,
    }


def test_the_windows_of_a_producer_are_no_summaries() -> None:
    rates = [rate for line in PRODUCED.splitlines() if (rate := window_records_per_s(line)) is not None]
    assert rates == [4.0, 31508.9, 198952.1]


def test_a_consumer_tells_what_it_has_read_so_far() -> None:
    progress = [each for line in CONSUMED.splitlines() if (each := consumed(line)) is not None]
    assert progress == [(1, 0.0002 * (1 << 20)), (65_898, 12.5690 * (1 << 20))]


@pytest.fixture
def home(kafka_jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that has the bench's jars of Kafka: those of the other tests, so that nothing is fetched."""
    jars = tmp_path / "jars" / "bench-kafka"
    jars.mkdir(parents=True)
    for path in kafka_jars.glob("*.jar"):
        (jars / path.name).symlink_to(path)
    (jars / ".complete").write_text(bench_set("kafka").digest)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    return tmp_path


def moved(command: list[str], home: Path) -> Outcome:
    return run(command, cores=ALL_CORES, log=home / "client.log", timeout_s=RUN_MAX_S)


def test_the_tools_are_measured_once_they_are_warm(one_broker: BrokerCluster, home: Path) -> None:
    topic = f"java-{uuid.uuid4().hex}"
    with RawClient(one_broker.brokers[0].address) as raw:
        raw.create_topic(topic)
        produce = kafka_java.produce_command(
            one_broker.bootstrap, topic, seconds=1, warmup_s=0, value_bytes=100, properties={"acks": "1"}
        )
        sent = moved(produce, home)
        assert raw.list_offset(topic, 0, -1)[0] > sent.size_bytes, "the warm-up is in the log, too"
    assert sent.size_bytes == sent.records * 100
    assert 0 < sent.more["p50_ms"] <= sent.more["p99_ms"] <= sent.more["max_ms"]
    assert 0 < sent.cpu_s < sent.seconds * 8
    # One record a poll: the log lasts for seconds, however late the meter reads what the tool prints.
    consume = partial(
        kafka_java.consume_command,
        one_broker.bootstrap,
        topic,
        seconds=0.2,
        warmup_s=0.2,
        properties={"max.poll.records": "1"},
    )
    read = moved(consume(value_bytes=100), home)
    assert read.size_bytes == read.records * 100
    with pytest.raises(ClientFailedError, match=r"records have \d+ bytes, and \d+ are expected"):
        moved(consume(value_bytes=200), home)  # a busy machine reads few records in this time


def test_a_tool_that_refuses_its_settings_is_a_failure(home: Path) -> None:
    command = kafka_java.produce_command(
        "127.0.0.1:1", "t", seconds=1, warmup_s=0, properties={"acks": "many"}
    )
    with pytest.raises(ClientFailedError, match="kafka_java_client"):
        moved(command, home)
