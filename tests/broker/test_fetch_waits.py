"""Fetches that wait: each partition that changes is looked at alone, and the answer comes when it must."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from fix_partitions import ID, TOPIC, SomePartitions
from headrace.broker.cluster import ClusterView
from headrace.broker.core import ClientConnection
from headrace.broker.handlers import fetch as handler
from headrace.broker.loop import EventLoop
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.errors import LogError
from headrace.log.files import FileSlice
from headrace.log.partition import PartitionLog
from headrace.wire import fetch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID

FOREVER_MS = 300_000
MUCH = 2**31 - 1
FAR_FUTURE_MS = 10**15
VERSION = 12


class Reader:
    """A client with one fetch of these partitions, from these offsets on."""

    def __init__(self, site: SomePartitions, wanted: list[tuple[int, int]], min_bytes: int) -> None:
        self.site = site
        self.wanted = wanted
        self.min_bytes = min_bytes
        self.connection = ClientConnection(
            cast(Any, None),
            peer="test",
            frame_limit_bytes=1 << 20,
            on_output=lambda _: None,
            on_abort=lambda problem: pytest.fail(problem),
        )
        parts = [fetch.FetchPartition(index, offset, 1 << 20, -1) for index, offset in wanted]
        request = fetch.FetchRequest(
            FOREVER_MS, min_bytes, 1 << 20, [fetch.FetchTopic(TOPIC, NO_UUID, parts)]
        )
        frame = fetch.encode_request(request, version=VERSION, correlation_id=9, client_id="test")[4:]
        handler.handle(site.state, self.connection, decode_request(memoryview(frame)))

    @property
    def has_answer(self) -> bool:
        return self.connection.slots[0].parts is not None

    @property
    def codes(self) -> list[int]:
        pieces = self.connection.slots[0].parts
        assert pieces is not None
        raw = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in pieces)
        _, response = fetch.decode_response(memoryview(raw)[4:], version=VERSION)
        return [part.error_code for part in response.topics[0].partitions]

    @property
    def must_have_answer(self) -> bool:
        """What a look at all partitions says now."""
        available: dict[int, int] = {}
        for index, offset in self.wanted:
            partition = self.site.all[index]
            if self.site.state.partitions.get(TOPIC, index) is None or partition.log.offline is not None:
                return True
            try:
                found = partition.visible_address - partition.log.position(offset)
            except LogError:
                return True
            available[index] = max(0, found, available.get(index, 0))
        return sum(available.values()) >= self.min_bytes


def test_a_flush_looks_at_its_own_partition_alone(
    tmp_path: Path, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200
    site = SomePartitions(tmp_path, loop, count)
    reader = Reader(site, [(index, 0) for index in range(count)], min_bytes=MUCH)
    looks: list[PartitionLog] = []
    position = PartitionLog.position

    def counted(log: PartitionLog, offset: int) -> int:
        looks.append(log)
        return position(log, offset)

    monkeypatch.setattr(PartitionLog, "position", counted)
    for _ in range(5):
        site.append(7)
    assert not reader.has_answer
    assert set(looks) == {site.all[7].log} and len(looks) == 5
    site.close()


def test_what_all_partitions_have_counts_together(tmp_path: Path, loop: EventLoop) -> None:
    site = SomePartitions(tmp_path, loop, 3)
    size = site.append(0)
    site.flush(0)
    reader = Reader(site, [(0, 0), (1, 0), (2, 0)], min_bytes=3 * size)
    site.append(1)
    assert not reader.has_answer
    site.append(1)
    assert reader.has_answer and reader.codes == [0, 0, 0]
    site.close()


def test_bytes_that_are_named_twice_count_once(tmp_path: Path, loop: EventLoop) -> None:
    site = SomePartitions(tmp_path, loop)
    size = site.append(0)
    site.flush(0)
    reader = Reader(site, [(0, size), (0, 0), (0, size)], min_bytes=2 * size)
    assert not reader.has_answer
    site.append(0)
    assert reader.has_answer and reader.codes == [0, 0, 0]
    site.close()


def test_an_offset_that_is_written_but_not_flushed_takes_nothing_from_the_sum(
    tmp_path: Path, loop: EventLoop
) -> None:
    site = SomePartitions(tmp_path, loop, 2)
    unflushed = site.append(1, 5_000)
    site.all[1].flushing = True  # its fsync lasts
    size = site.append(0)
    site.flush(0)
    reader = Reader(site, [(1, unflushed), (0, 0)], min_bytes=size + 1)
    assert not reader.has_answer
    site.append(0)
    assert reader.has_answer
    site.close()


def test_retention_answers_a_fetch_whose_offset_it_deletes(tmp_path: Path, loop: EventLoop) -> None:
    site = SomePartitions(tmp_path, loop, 2, {"log.retention.ms": "1000", "log.segment.bytes": "1048576"})
    size = site.append(0)
    site.flush(0)
    stays = Reader(site, [(0, size), (1, 0)], min_bytes=MUCH)
    late = Reader(site, [(0, 0), (1, 0)], min_bytes=MUCH)
    assert not late.has_answer
    site.delete_expired(FAR_FUTURE_MS)
    assert site.all[0].log.start_address == size
    assert late.codes == [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NONE]
    assert not stays.has_answer, "the end of the log is still the end"
    site.append(1)
    assert not stays.has_answer
    stays.connection.close()
    site.close()


def test_a_leader_that_does_not_lead_yet_is_none_to_a_reader(tmp_path: Path, loop: EventLoop) -> None:
    """Its log changes its role, or is being opened. Apache Kafka's consumer knows no LEADER_NOT_AVAILABLE in
    answer to a Fetch: it would end with an IllegalStateException.
    """
    site = SomePartitions(tmp_path, loop)
    topics = {TOPIC: TopicState(TOPIC, ID, {0: PartitionState(1, 0, (1,), (1,))})}
    site.state.view = ClusterView().with_topics(topics)
    waiting = Reader(site, [(0, 0)], min_bytes=MUCH)
    site.state.partitions.remove(site.all[0])
    assert waiting.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert Reader(site, [(0, 0)], min_bytes=MUCH).codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    site.close()


@pytest.mark.parametrize("seed", range(25))
def test_the_answer_comes_when_a_look_at_all_partitions_would_say_so(
    tmp_path: Path, loop: EventLoop, seed: int
) -> None:
    chance = random.Random(seed)
    site = SomePartitions(tmp_path, loop, 4, {"log.retention.ms": "1000"})
    for _ in range(4):
        site.append(chance.randrange(4), chance.choice((10, 300)))
    for index in range(4):
        site.flush(index)
    readers: list[Reader] = []
    for _ in range(60):
        action = chance.random()
        index = chance.randrange(4)
        if action < 0.3:
            wanted = [
                (each, chance.choice((site.all[each].log.start_address, site.all[each].log.end_address)))
                for each in chance.choices(range(4), k=chance.randrange(1, 6))
            ]
            readers.append(Reader(site, wanted, chance.choice((1, 200, 900, MUCH))))
        elif action < 0.85 and not site.all[index].failure:
            site.append(index, chance.choice((10, 300)))
        elif action < 0.93:
            site.delete_expired(FAR_FUTURE_MS)
        elif action < 0.95:
            site.state.partitions._fail(site.all[index], str(site.all[index].log.take_offline("a test")))
        elif action < 0.96:
            site.state.partitions.remove(site.all[index])
        for reader in list(readers):
            assert reader.has_answer == reader.must_have_answer
            if reader.has_answer:
                readers.remove(reader)
    for reader in readers:
        reader.connection.close()
    assert not any(partition.readers for partition in site.all)
    site.close()
