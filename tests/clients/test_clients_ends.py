"""Seven unchanged clients at the end of a log: what they are told, commit, and find there is what a program
that was written for Apache Kafka expects (docs/decisions/0001).
"""

import bisect
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import confluent_kafka
import pytest

from fix_datacenter import Datacenter
from fix_ends import END_CLIENTS, EndClient, EndClients, From, end_of
from fix_java import KafkaTool
from fix_samples import CODECS, Got, check_rows, make_samples

pytestmark = pytest.mark.real_client

COUNT = 5_000
LAST_BATCH = 40
"""The last batch is sent by itself: "the last ten" are ten if the last batch holds so many."""
PIECE = 50
SAMPLES = make_samples(COUNT + LAST_BATCH)


@dataclass(frozen=True)
class Written:
    """A topic of one partition that a client wrote, and what it read from it."""

    client: EndClient
    bootstrap: str
    topic: str
    rows: list[Got]

    def read(self, starts: Sequence[From], count: int) -> list[list[Got]]:
        return self.client.read(self.bootstrap, self.topic, starts, count)


class Shelf:
    """Writes each topic at its first use."""

    def __init__(self, datacenter: Datacenter, clients: EndClients) -> None:
        self._datacenter = datacenter
        self._clients = clients
        self._written: dict[tuple[str, str], Written] = {}

    def take(self, name: str, codec: str) -> Written:
        if (name, codec) in self._written:
            return self._written[name, codec]
        client = self._clients[name]
        if codec not in client.codecs:
            pytest.skip(f"{name} has no {codec} of its own")
        bootstrap, topic = self._datacenter.bootstrap, f"ends-{name}-{codec}"
        self._datacenter.create_topic(topic, 1)
        told = client.produce(bootstrap, topic, SAMPLES[:COUNT], codec)
        more = client.produce(bootstrap, topic, SAMPLES[COUNT:], codec)
        rows = client.read(bootstrap, topic, [From("offset", 0)], len(SAMPLES))[0]
        check_rows(rows, SAMPLES, times=client.sets_times)
        for first, offsets in ((0, told), (COUNT, more)):
            for place, offset in (offsets or {}).items():
                assert rows[first + place].offset == offset, f"record {first + place} was delivered elsewhere"
        assert rows[-1].offset + 1 == self._datacenter.end_address(topic) == end_of(bootstrap, topic)
        self._written[name, codec] = Written(client, bootstrap, topic, rows)
        return self._written[name, codec]


@pytest.fixture(scope="module")
def shelf(datacenter: Datacenter, end_clients: EndClients) -> Shelf:
    return Shelf(datacenter, end_clients)


every_client = pytest.mark.parametrize("name", END_CLIENTS)
every_codec = pytest.mark.parametrize("codec", CODECS)


@every_client
@every_codec
def test_a_group_that_has_read_all_has_committed_the_end(name: str, codec: str, shelf: Shelf) -> None:
    written = shelf.take(name, codec)
    group = f"ends-{uuid.uuid4().hex[:8]}"
    rows = written.client.read_group(written.bootstrap, written.topic, group, len(SAMPLES))
    assert rows == written.rows
    consumer = confluent_kafka.Consumer({"bootstrap.servers": written.bootstrap, "group.id": group})
    try:
        (committed,) = consumer.committed([confluent_kafka.TopicPartition(written.topic, 0)], timeout=30)
    finally:
        consumer.close()
    assert committed.offset == end_of(written.bootstrap, written.topic)


@every_client
@every_codec
def test_the_last_ten_and_reads_from_a_time(name: str, codec: str, shelf: Shelf) -> None:
    written = shelf.take(name, codec)
    (last,) = written.read([From("last", 10)], 10)
    assert [row.offset for row in last] == [row.offset for row in written.rows[-10:]]
    times = [row.timestamp_ms for row in written.rows]
    moments = [
        times[place] if place == 0 else times[place - 1] + 1 for place in (0, COUNT // 3, COUNT - PIECE)
    ]
    read = written.read([From("time", moment) for moment in moments], PIECE)
    for moment, rows in zip(moments, read, strict=True):
        first = bisect.bisect_left(times, moment)
        assert rows == written.rows[first : first + PIECE], f"from the time {moment}"


@every_client
@every_codec
def test_seeks_to_each_kind_of_address(name: str, codec: str, shelf: Shelf) -> None:
    """The batch's address, one before its first record, its first, a middle and its last record."""
    written = shelf.take(name, codec)
    rows = written.rows
    starts = [at for at in range(1, len(rows)) if rows[at].offset != rows[at - 1].offset + 1]
    assert len(starts) > 2, "the topic lies in too few batches to tell"
    here, following = starts[len(starts) // 2 - 1], starts[len(starts) // 2]
    middle = (here + following) // 2
    seeks = (
        (rows[here - 1].offset + 1, here),
        (rows[here].offset - 1, here),
        (rows[here].offset, here),
        (rows[middle].offset, middle),
        (rows[following - 1].offset, following - 1),
        (rows[following - 1].offset + 1, following),
    )
    read = written.read([From("offset", offset) for offset, _ in seeks], PIECE)
    for (offset, first), found in zip(seeks, read, strict=True):
        assert found == rows[first : first + PIECE], f"from {offset}"


def test_kafkas_own_tool_shows_no_lag(shelf: Shelf, kafka_tool: KafkaTool) -> None:
    written = shelf.take("confluent-kafka", "zstd")
    group = f"ends-{uuid.uuid4().hex[:8]}"
    written.client.read_group(written.bootstrap, written.topic, group, len(SAMPLES))
    described = kafka_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--bootstrap-server",
        written.bootstrap,
        "--describe",
        "--group",
        group,
    ).decode()
    (line,) = [line.split() for line in described.splitlines() if written.topic in line]
    end = str(end_of(written.bootstrap, written.topic))
    assert line[:6] == [group, written.topic, "0", end, end, "0"], described
