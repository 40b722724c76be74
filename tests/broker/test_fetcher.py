"""The fetcher of one leader: one fetch at a time, after what came with the last one is flushed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from fix_replica_manager import CountingWorkers
from headrace.broker.cluster import ClusterView
from headrace.broker.loop import Timer
from headrace.broker.network.links import Lost
from headrace.broker.replicas.cut_off import LEADER_SILENT_MS
from headrace.broker.replicas.fetcher import (
    BUSY_WAIT_MS,
    PARTITION_FETCH_MAX_BYTES,
    STRAGGLER_MAX_MS,
    WAIT_MIN_MS,
)
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.followed import PAUSE_MAX_MS, PAUSE_MIN_MS, FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.settings.dynamic import Throttles
from headrace.broker.workers import Workers
from headrace.client.calls import Call
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.config import LogConfig
from headrace.log.directory import PartitionName
from headrace.log.partition import PartitionLog
from headrace.replication.throttling import SHARE_MIN_BYTES
from headrace.wire import fetch
from headrace.wire.apis import body_position, read_request_head
from headrace.wire.batch import readdress
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartitionResult, FetchRequest, FetchResponse, FetchTopicResult
from headrace.wire.records import Record, encode_batch

ME, LEADER, TOPIC_ID = 1, 2, UUID(int=5)
VERSION = 17


def batch(address: int, epoch: int = 0) -> bytes:
    raw = bytearray(encode_batch([Record(0, 1_000, None, b"v" * 50)]))
    readdress(raw, 0, address, epoch)
    return bytes(raw)


SIZE = len(batch(0))


class Bench:
    """A fetcher whose clock, threads and leader are the test's."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.now_ms = 1_000.0
        self.workers = CountingWorkers()
        self.timers: list[tuple[float, Timer]] = []
        self.requests: list[FetchRequest] = []
        self.answer: Callable[[Any], None] | None = None
        view = ClusterView().with_brokers(
            [BrokerRegistration(each, "127.0.0.1", 9092, "test", "", 70 + each) for each in (ME, LEADER)]
        )
        state = SimpleNamespace(
            broker_id=ME,
            view=view,
            monotonic_ms=lambda: self.now_ms,
            append_refusal=None,
            throttles=Throttles(),
            loop=SimpleNamespace(call_later=self.call_later),
        )
        self.state = state
        self.followed = FollowedPartitions(cast(Workers, self.workers), self.call_later)
        self.fetchers = Fetchers(cast(Any, state), self.followed, cast(Any, self))
        config = BrokerConfig().topic_config({})
        self.all = [
            FollowedPartition(
                PartitionName("t", index),
                TOPIC_ID,
                config,
                PartitionLog(folder / f"t-{index}"),
                high_watermark=0,
            )
            for index in range(count)
        ]
        for each in self.all:
            self.followed.add(each)
            self.fetchers.follow(each, LEADER, 3)

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self.timers.append((self.now_ms + delay_ms, timer))
        return timer

    def forward(self, ms: float) -> None:
        self.now_ms += ms
        due = [timer for at_ms, timer in self.timers if at_ms <= self.now_ms]
        self.timers = [entry for entry in self.timers if entry[0] > self.now_ms]
        for timer in due:
            if timer.call is not None:
                timer.call()

    def ask(self, host: str, port: int, call: Call, done: Callable[[Any], None], *, timeout_s: float) -> bool:
        """The link to the leader."""
        assert self.answer is None, "a fetch is on its way already"
        frame = memoryview(call.encode(VERSION, 1, "test"))[4:]  # type: ignore[arg-type]
        at = body_position(frame, read_request_head(frame), True)
        self.requests.append(fetch.decode_request(frame, at, VERSION))
        self.answer = done
        return True

    def respond(self, *results: FetchPartitionResult, session_id: int = 0) -> None:
        answer, self.answer = self.answer, None
        assert answer is not None
        answer(FetchResponse([FetchTopicResult("", TOPIC_ID, list(results))], session_id=session_id))

    def lose(self) -> None:
        answer, self.answer = self.answer, None
        assert answer is not None
        answer(Lost("the leader is gone", was_sent=True))

    @property
    def asked(self) -> dict[int, int]:
        """The offsets of the last fetch, by partition."""
        return {part.partition: part.fetch_offset for part in self.requests[-1].topics[0].partitions}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    if made.answer is not None:
        made.respond()  # the first fetch was sent before all partitions were known
    yield made
    for each in made.all:
        each.log.abandon()


def result(partition: int, records: bytes = b"", **fields: Any) -> FetchPartitionResult:
    return FetchPartitionResult(partition, 0, 0, records, 0, 0)._replace(**fields)


def test_one_fetch_names_all_partitions_and_who_asks(bench: Bench) -> None:
    request = bench.requests[-1]
    assert bench.asked == {0: 0, 1: 0}
    assert (request.replica_id, request.replica_epoch) == (ME, 71)
    assert request.max_wait_ms == WAIT_MIN_MS
    assert {part.current_leader_epoch for part in request.topics[0].partitions} == {3}


def test_the_next_fetch_asks_for_what_is_flushed(bench: Bench) -> None:
    bench.respond(result(0, batch(0), high_watermark=10 * SIZE), result(1, batch(0)))
    assert bench.answer is None, "both logs are being flushed"
    bench.workers.run()
    assert bench.asked == {0: SIZE, 1: SIZE}
    assert bench.all[0].high_watermark == SIZE, "no further than this log reaches"
    last = bench.requests[-1].topics[0].partitions[0]
    assert last.last_fetched_epoch == 0


def test_a_slow_disk_is_left_out_after_a_while(bench: Bench) -> None:
    bench.respond(result(0, batch(0)), result(1))
    bench.forward(STRAGGLER_MAX_MS / 2)
    assert bench.answer is None
    bench.forward(STRAGGLER_MAX_MS)
    assert bench.asked == {1: 0} and bench.requests[-1].max_wait_ms == BUSY_WAIT_MS
    bench.respond(result(1))
    assert bench.asked == {1: 0}, "the others go on"
    bench.workers.run()
    bench.respond(result(1))
    assert bench.asked == {0: SIZE, 1: 0}


def test_an_error_pauses_its_partition_alone_longer_each_time(bench: Bench) -> None:
    pauses = []
    for _ in range(8):
        bench.respond(result(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), result(1))
        assert bench.asked == {1: 0}
        pauses.append(bench.all[0].retry_at_ms - bench.now_ms)
        bench.forward(pauses[-1])
        bench.respond(result(1))
        assert bench.asked == {0: 0, 1: 0}
    assert pauses[0] == PAUSE_MIN_MS and pauses[-1] == PAUSE_MAX_MS
    bench.respond(result(0), result(1))
    assert bench.asked == {0: 0, 1: 0}, "an answer ends the pauses"


def test_a_lost_leader_is_asked_again(bench: Bench) -> None:
    bench.lose()
    assert bench.answer is None
    bench.forward(PAUSE_MIN_MS + 1)
    assert bench.asked == {0: 0, 1: 0}


def test_an_answer_to_an_earlier_epoch_is_void(bench: Bench) -> None:
    bench.fetchers.follow(bench.all[0], LEADER, 4)
    bench.respond(result(0, batch(0)), result(1, batch(0)))
    assert bench.all[0].log.end_address == 0
    assert bench.all[1].log.end_address == SIZE


def test_what_a_void_answer_told_is_asked_for_again(bench: Bench) -> None:
    """In a session the leader tells nothing twice, and takes it for known."""
    bench.respond(result(0), result(1), session_id=9)
    bench.fetchers.follow(bench.all[0], LEADER, 4)
    bench.respond(result(0, high_watermark=SIZE), session_id=9)
    request = bench.requests[-1]
    assert request.session_id == 9 and bench.asked == {0: 0}
    assert [(topic.topic_id, topic.partitions) for topic in request.forgotten] == [(TOPIC_ID, [0])]
    bench.respond(result(0, high_watermark=SIZE), session_id=9)
    assert bench.all[0].leader_high_watermark == SIZE and not bench.requests[-1].forgotten


def test_a_log_is_cut_before_anything_is_appended(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.respond(result(0, batch(0) + batch(SIZE), high_watermark=2 * SIZE), result(1))
    bench.workers.run()
    bench.respond(result(0, diverging_epoch=(0, SIZE)), result(1))
    assert "below the high watermark" in caplog.text, "acknowledged bytes are cut off: an error"
    bench.workers.run()
    assert bench.all[0].log.end_address == SIZE == bench.all[0].high_watermark
    assert bench.asked == {0: SIZE, 1: 0}


def test_a_log_that_its_leader_has_passed_begins_anew(bench: Bench) -> None:
    bench.respond(result(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=700), result(1))
    bench.workers.run()
    assert bench.asked == {0: 700, 1: 0}


def test_what_a_leader_of_before_had_deleted_is_kept_where_a_later_one_has_it(bench: Bench) -> None:
    """An unclean election made a leader whose log begins, and ends, before the others begin."""
    one = bench.all[0]
    one.log.config = LogConfig(segment_bytes=SIZE)
    start = 4 * SIZE
    gone = result(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start)
    bench.respond(gone, result(1))
    bench.workers.run()
    bench.respond(result(0, batch(start), log_start_offset=start), result(1))
    bench.workers.run()
    bench.respond(result(0, diverging_epoch=(0, 2 * SIZE)), result(1))
    bench.workers.run()
    assert bench.asked == {0: 0, 1: 0}
    bench.respond(result(0, batch(0, 2) + batch(SIZE, 2), high_watermark=2 * SIZE), result(1))
    bench.workers.run()
    assert bench.asked[0] == 2 * SIZE
    bench.followed.checkpoint(one)
    bench.workers.run()
    assert bench.followed.delete_expired(one, 1_000) == []
    assert one.log.start_address == 0


def test_a_full_disk_pauses_and_loses_nothing(bench: Bench) -> None:
    bench.state.append_refusal = "the disk is full"
    bench.respond(result(0, batch(0)), result(1))
    assert bench.all[0].log.end_address == 0 and bench.asked == {1: 0}
    bench.state.append_refusal = None
    bench.forward(PAUSE_MIN_MS + 1)
    bench.respond(result(1))
    assert bench.asked == {0: 0, 1: 0}


def test_who_is_followed_no_more_is_asked_for_no_more(bench: Bench) -> None:
    bench.fetchers.leave(bench.all[0])
    bench.respond(result(0, batch(0)), result(1))
    assert bench.all[0].log.end_address == 0 and bench.asked == {1: 0}


# --- whether the leader is heard ---


def hears(bench: Bench) -> list[bool]:
    bench.fetchers.note_heard()
    for each in bench.all:
        each.note_silence(bench.now_ms, LEADER_SILENT_MS)
    return [each.hears_leader for each in bench.all]


@pytest.mark.parametrize("session_id", [0, 9])
def test_a_leader_is_heard_while_it_answers(bench: Bench, session_id: int) -> None:
    """In a session it names no partition of which there is nothing new."""
    bench.respond(result(0), result(1), session_id=session_id)
    for _ in range(4):
        bench.forward(LEADER_SILENT_MS - 1)
        bench.respond(*(() if session_id else (result(0), result(1))), session_id=session_id)
        assert hears(bench) == [True, True]
    bench.forward(LEADER_SILENT_MS + 1)
    assert hears(bench) == [False, False]
    bench.respond(*(() if session_id else (result(0), result(1))), session_id=session_id)
    assert hears(bench) == [True, True]


def test_a_lost_leader_is_not_heard(bench: Bench) -> None:
    bench.respond(result(0), result(1), session_id=9)
    bench.lose()
    assert hears(bench) == [True, True], "for a moment it may be on its way"
    bench.forward(LEADER_SILENT_MS + 1)
    assert hears(bench) == [False, False]


def test_a_leader_that_is_none_any_more_is_not_heard_of_that_partition(bench: Bench) -> None:
    bench.respond(result(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), result(1), session_id=9)
    bench.forward(LEADER_SILENT_MS + 1)
    bench.respond(result(1), session_id=9)
    assert hears(bench) == [False, True]
    bench.fetchers.follow(bench.all[0], LEADER, 4)
    assert hears(bench) == [True, True], "another leader has time to answer"


# --- throttles ---


def throttle(bench: Bench, rate: int, in_sync: tuple[int, ...]) -> None:
    """Throttles partition 0 here; `in_sync`: its in-sync replicas as this broker sees them."""
    config = BrokerConfig().topic_config({"follower.replication.throttled.replicas": f"0:{ME},1:{LEADER}"})
    for each in bench.all:
        each.set_config(config)
    states = {index: PartitionState(LEADER, 3, (LEADER, ME), in_sync) for index in (0, 1)}
    bench.state.view = bench.state.view.with_topics({"t": TopicState("t", TOPIC_ID, states)})
    bench.state.throttles.configure({"follower.replication.throttled.rate": str(rate)}, bench.now_ms)


def test_a_throttled_partition_is_fetched_no_faster_than_its_rate(bench: Bench) -> None:
    throttle(bench, SIZE // 2, in_sync=(LEADER,))
    bench.respond(result(0, batch(0)), result(1, batch(0)))
    bench.workers.run()
    assert bench.asked == {1: SIZE}, "partition 0 has had twice what it may have in a second"
    bench.forward(900)
    bench.respond(result(1))
    assert bench.asked == {1: SIZE}
    bench.forward(200)
    bench.respond(result(1))
    assert bench.asked == {0: SIZE, 1: SIZE}
    sizes = {part.partition: part.max_bytes for part in bench.requests[-1].topics[0].partitions}
    assert sizes == {0: SHARE_MIN_BYTES, 1: PARTITION_FETCH_MAX_BYTES}


def test_a_replica_in_sync_is_never_throttled(bench: Bench) -> None:
    throttle(bench, 1, in_sync=(LEADER, ME))
    for count in range(1, 5):
        bench.respond(result(0, batch((count - 1) * SIZE)), result(1))
        bench.workers.run()
        assert bench.asked == {0: count * SIZE, 1: 0}


def test_the_fetcher_wakes_when_a_throttle_allows_more(bench: Bench) -> None:
    throttle(bench, SIZE // 2, in_sync=(LEADER,))
    bench.fetchers.leave(bench.all[1])
    bench.respond(result(0, batch(0)))
    bench.workers.run()
    assert bench.answer is None, "nothing may be asked for"
    bench.forward(1_100)
    assert bench.asked == {0: SIZE}
