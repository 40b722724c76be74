"""Reads of ranges from real brokers, without Spark: any cut, a broker that restarts, deleted records."""

import signal
import socket
import threading
import time
from dataclasses import replace

import confluent_kafka
import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_kafka import ApacheKafka
from fix_warehouse import create_topic
from headrace.warehouse.source import metadata, reading
from headrace.warehouse.source.connection import fetched_partition
from headrace.warehouse.source.errors import BrokersUnreachableError, DataLossError, NoSuchTopicError
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import SourceOptions
from headrace.warehouse.source.ranges import Range, split
from headrace.warehouse.source.reading import read_batches
from headrace.wire.fetch_partitions import FetchPartitionResult
from headrace.wire.records import decode_records


def produce(bootstrap: str, topic: str, count: int, *, batch: int = 500) -> int:
    """Creates the topic with one partition and this many records; returns its end."""
    create_topic(bootstrap, topic, 1)
    settings = {"bootstrap.servers": bootstrap, "batch.num.messages": batch, "linger.ms": 50}
    producer = confluent_kafka.Producer({**settings, "compression.type": "lz4"})
    for number in range(count):
        producer.produce(topic, b"value-%d" % number, partition=0)
    assert producer.flush(60) == 0
    return latest(bootstrap, topic)


def latest(bootstrap: str, topic: str) -> int:
    with MetadataClient([bootstrap], 10) as cluster:
        return cluster.offsets({(topic, 0): -1})[topic, 0]


def values(part: Range, options: SourceOptions) -> list[bytes | None]:
    return [
        record.value
        for batch in read_batches(part, options)
        for record in decode_records(batch.buffer, batch.at)
        if part.from_offset <= record.offset < part.to_offset
    ]


def check_any_cut(bootstrap: str) -> None:
    end = produce(bootstrap, "cut", 2500)
    expected = [b"value-%d" % number for number in range(2500)]
    for size_bytes in (1, 20_000, 8 << 20):
        options = SourceOptions(bootstrap=(bootstrap,), fetch_size_bytes=size_bytes)
        for parts in (1, 2, 7, 50):
            found = [values(part, options) for part in split([Range("cut", 0, 0, end)], parts)]
            assert [value for part in found for value in part] == expected, (size_bytes, parts)


def test_any_cut_of_a_log_of_addresses_gives_every_record_once(broker_cluster: StartCluster) -> None:
    check_any_cut(broker_cluster(1).bootstrap)


@pytest.mark.real_client
def test_any_cut_of_apache_kafkas_offsets_gives_every_record_once(apache_kafka: ApacheKafka) -> None:
    check_any_cut(apache_kafka.bootstrap)


def test_a_read_resumes_after_the_broker_restarts(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(1)
    end = produce(cluster.bootstrap, "restart", 5000, batch=100)
    options = SourceOptions(bootstrap=(cluster.bootstrap,), fetch_size_bytes=10_000)
    offsets: list[int] = []
    for index, batch in enumerate(read_batches(Range("restart", 0, 0, end), options)):
        offsets += [record.offset for record in decode_records(batch.buffer, batch.at)]
        if index == 5:
            cluster[1].kill()
            cluster[1].start(wait=False)
    assert len(offsets) == len(set(offsets)) == 5000


def test_a_new_leader_that_does_not_show_all_yet_is_waited_for(
    one_broker: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its high watermark is behind that of the leader before, until its followers have fetched."""
    topic = f"new-leader-{time.monotonic_ns()}"
    end = produce(one_broker.bootstrap, topic, 1_000, batch=100)
    shown = [0]
    hidden = iter([False, False, True, True, True])

    def of_new_leader(frame: memoryview) -> tuple[FetchPartitionResult, bool]:
        result, is_throttled = fetched_partition(frame)
        if next(hidden, False):
            return result._replace(records=b"", high_watermark=shown[0]), is_throttled
        shown[0] += len(result.records or b"")  # type: ignore[arg-type]
        return result, is_throttled

    monkeypatch.setattr(reading, "fetched_partition", of_new_leader)
    options = SourceOptions(bootstrap=(one_broker.bootstrap,), fetch_size_bytes=1)
    assert values(Range(topic, 0, 0, end), options) == [b"value-%d" % number for number in range(1_000)]
    # A log that was cut stays so.
    for is_loss_allowed in (False, True):
        hidden, shown[0] = iter([False, *[True] * 1_000]), 0
        hasty = replace(options, request_timeout_ms=500, fail_on_data_loss=not is_loss_allowed)
        if is_loss_allowed:
            assert 0 < len(values(Range(topic, 0, 0, end), hasty)) < 1_000
        else:
            with pytest.raises(DataLossError, match=f"the log ends at [0-9]+, before {end}"):
                values(Range(topic, 0, 0, end), hasty)


def test_an_unreachable_broker_is_named(one_broker: BrokerCluster) -> None:
    options = SourceOptions(bootstrap=("127.0.0.1:9",), request_timeout_ms=300)
    began = time.monotonic()
    with pytest.raises(BrokersUnreachableError, match=r"127.0.0.1:9 answered.*then repeat"):
        list(read_batches(Range("t", 0, 0, 10), options))
    assert time.monotonic() - began < 40
    options = SourceOptions(bootstrap=(one_broker.bootstrap,))
    with pytest.raises(NoSuchTopicError, match="no topic 'nowhere'"):
        list(read_batches(Range("nowhere", 0, 0, 10), options))


def test_a_broker_that_hangs_does_not_keep_a_load_from_the_others(
    broker_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections, as a stopped process does, and never answers."""
    monkeypatch.setattr(metadata, "TRY_FIRST_S", 0.2)
    bootstrap = broker_cluster(1).bootstrap
    create_topic(bootstrap, "t", 1)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        servers = [f"127.0.0.1:{hung.getsockname()[1]}", bootstrap]
        for _ in range(4):  # the servers are asked in any order
            began = time.monotonic()
            with MetadataClient(servers, 60) as cluster:
                assert cluster.offsets({("t", 0): -1}) == {("t", 0): 0}
            assert time.monotonic() - began < 20


def test_a_leader_that_hangs_is_asked_for_again(
    broker_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "TRY_FIRST_S", 0.2)
    one = broker_cluster(1)
    create_topic(one.bootstrap, "t", 1)
    leader = one.brokers[0]
    with MetadataClient([one.bootstrap], 60) as cluster:
        assert cluster.offsets({("t", 0): -1}) == {("t", 0): 0}
        leader.send_signal(signal.SIGSTOP)
        resumes = threading.Timer(2.0, leader.send_signal, (signal.SIGCONT,))
        resumes.start()
        began = time.monotonic()
        assert cluster.offsets({("t", 0): -1}) == {("t", 0): 0}
        assert time.monotonic() - began < 20
        resumes.join()


def test_deleted_records_are_a_loss_unless_that_is_allowed(broker_cluster: StartCluster) -> None:
    config = {"log.segment.bytes": "1024", "log.retention.check.interval.ms": "100", "log.retention.ms": "1"}
    bootstrap = broker_cluster(1, config).bootstrap
    end = produce(bootstrap, "deleted", 1000, batch=10)
    deadline = time.monotonic() + 60
    earliest = 0
    with MetadataClient([bootstrap], 10) as cluster:
        while earliest == 0 and time.monotonic() < deadline:
            earliest = cluster.offsets({("deleted", 0): -2})["deleted", 0]
            time.sleep(0.1)
    part = Range("deleted", 0, 0, end)
    with pytest.raises(DataLossError, match=r"KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE.*failOnDataLoss"):
        values(part, SourceOptions(bootstrap=(bootstrap,)))
    left = values(part, SourceOptions(bootstrap=(bootstrap,), fail_on_data_loss=False))
    assert left == [b"value-%d" % number for number in range(1000 - len(left), 1000)]
    assert len(left) < 1000
