"""Fetch sessions of followers: what a leader looks at and answers, and what a left-out partition says."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from fix_partitions import ID, TOPIC, SomePartitions
from headrace.broker.core import ClientConnection
from headrace.broker.handlers import follower_session
from headrace.broker.handlers.fetch_reading import FetchReading
from headrace.broker.loop import EventLoop
from headrace.broker.replicas.fetch_session import FetchSession
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.files import FileSlice
from headrace.replication.in_sync import InSyncReplicas
from headrace.wire import fetch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_request

LEADER, FOLLOWER, BROKER_EPOCH = 1, 2, 72
VERSION = 17
LAG_MAX_MS = 1_000.0


class Site(SomePartitions):
    """A leader of partitions that broker 2 follows, in sync from the start; its clock is the test's."""

    def __init__(self, folder: Path, loop: EventLoop, count: int) -> None:
        super().__init__(folder, loop, count)
        self.now_ms = 0.0
        self.state.monotonic_ms = lambda: cast(int, self.now_ms)
        brokers = [BrokerRegistration(each, "h", 9092, "t", "", 70 + each) for each in (LEADER, FOLLOWER)]
        both = (LEADER, FOLLOWER)
        states = {index: PartitionState(LEADER, 0, both, both) for index in range(count)}
        view = self.state.view.with_brokers(brokers)
        self.state.view = view.with_topics({TOPIC: TopicState(TOPIC, ID, states)})
        for each in self.all:
            each.replicas = InSyncReplicas(
                LEADER, both, both, min_in_sync=1, epoch_start=0, high_watermark=0, now_ms=0.0
            )

    def lagging(self) -> set[int]:
        """The partitions whose follower is to leave the in-sync set, after a look at all."""
        for session in list(self.state.follower_sessions.values()):
            session.refresh()
        live = self.state.view.brokers
        return {
            each.index
            for each in self.all
            if each.replicas is not None
            and each.replicas.wanted(self.now_ms, LAG_MAX_MS, live, 0) == (LEADER,)
        }


class Follower:
    """A follower's requests on one connection, and the answers."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.session: FetchSession[None] = FetchSession()
        self.connection = ClientConnection(
            cast(Any, None),
            peer="follower",
            frame_limit_bytes=1 << 20,
            on_output=lambda _: None,
            on_abort=lambda problem: pytest.fail(problem),
        )

    def ask(self, named: Mapping[int, int], *, wait_ms: int = 300_000, **fields: Any) -> None:
        """Names partitions by their offsets."""
        parts = {
            (ID, index): (fetch.FetchPartition(index, offset, 1 << 20, 0, -1 if not offset else 0), None)
            for index, offset in named.items()
        }
        topics, forgotten = self.session.next_request(parts)
        request = fetch.FetchRequest(
            wait_ms,
            1,
            1 << 20,
            topics,
            FOLLOWER,
            session_id=self.session.id,
            session_epoch=self.session.epoch,
            forgotten=forgotten,
            replica_epoch=BROKER_EPOCH,
        )._replace(**fields)
        frame = fetch.encode_request(request, version=VERSION, correlation_id=9, client_id="test")[4:]
        follower_session.handle(self.site.state, self.connection, decode_request(memoryview(frame)))

    @property
    def has_answer(self) -> bool:
        return self.connection.slots[0].parts is not None

    def answer(self) -> fetch.FetchResponse:
        pieces = self.connection.slots.popleft().parts
        assert pieces is not None
        assert self.connection.waiting is None and not self.connection.is_held, "the next one is not served"
        raw = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in pieces)
        _, response = fetch.decode_response(memoryview(raw)[4:], version=VERSION)
        self.session.granted(response.session_id)
        return response

    def answered(self) -> dict[int, fetch.FetchPartitionResult]:
        return {part.partition: part for topic in self.answer().topics for part in topic.partitions}

    def end_wait(self) -> None:
        assert self.connection.waiting is not None
        self.connection.waiting.end()


@pytest.fixture
def site(tmp_path: Path, loop: EventLoop) -> Iterator[Site]:
    made = Site(tmp_path, loop, 3)
    yield made
    made.close()


@pytest.fixture
def follower(site: Site) -> Follower:
    made = Follower(site)
    made.ask({0: 0, 1: 0, 2: 0}, wait_ms=0)
    assert made.answered().keys() == {0, 1, 2}
    assert made.session.id > 0
    return made


def test_an_answer_holds_what_is_new_alone(site: Site, follower: Follower) -> None:
    follower.ask({})
    assert not follower.has_answer
    size = site.append(1)
    found = follower.answered()
    assert found.keys() == {1} and len(found[1].records or b"") == size  # type: ignore[arg-type]
    follower.ask({1: size})
    assert not follower.has_answer
    assert site.all[1].replicas is not None and site.all[1].replicas.end_address(FOLLOWER) == size


def test_a_leader_looks_at_no_partition_without_news(
    site: Site, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = FetchReading.look_up

    def counted(reading: FetchReading, name: str | None, part: fetch.FetchPartition) -> Any:
        looks.append(part.partition)
        return look(reading, name, part)

    monkeypatch.setattr(FetchReading, "look_up", counted)
    follower.ask({}, wait_ms=0)
    assert not follower.answered() and not looks
    site.append(2)
    follower.ask({}, wait_ms=0)
    assert follower.answered().keys() == {2} and looks == [2]


def test_a_higher_high_watermark_is_told_with_the_next_answer(site: Site, follower: Follower) -> None:
    follower.ask({})
    size = site.append(0)
    site.flush(0)
    assert follower.answered()[0].high_watermark == 0
    follower.ask({0: size}, wait_ms=0)
    assert follower.answered()[0].high_watermark == size
    follower.ask({}, wait_ms=0)
    assert not follower.answered()


def test_what_a_follower_drops_and_names_is_told_again(site: Site, follower: Follower) -> None:
    """It followed under another leader epoch when the answer came, and dropped it."""
    size = site.append(0)
    site.flush(0)
    follower.ask({0: 0}, wait_ms=0)
    follower.answered()
    follower.ask({0: size}, wait_ms=0)
    assert follower.answered()[0].high_watermark == size
    follower.ask({0: size}, wait_ms=0)
    assert not follower.answered()
    follower.session.drop((ID, 0))
    follower.ask({0: size}, wait_ms=0)
    assert follower.answered()[0].high_watermark == size
    follower.ask({}, wait_ms=0)
    assert not follower.answered()


def test_leaving_a_partition_out_says_that_the_follower_is_there(site: Site, follower: Follower) -> None:
    for _ in range(5):
        site.now_ms += LAG_MAX_MS * 0.9
        assert site.lagging() <= {0, 1, 2}
        follower.ask({}, wait_ms=0)
        follower.answered()
        assert not site.lagging()
    site.now_ms += LAG_MAX_MS * 0.5
    site.append(1)  # it has not asked since, and this is not its fault
    assert not site.lagging()
    site.now_ms += LAG_MAX_MS * 0.7
    assert site.lagging() == {0, 1, 2}


def test_a_follower_that_asks_for_others_lags_where_it_has_not_what_is_new(
    site: Site, follower: Follower
) -> None:
    size = site.append(1)
    for _ in range(3):
        site.now_ms += LAG_MAX_MS * 0.6
        follower.ask({1: 0}, wait_ms=0)
        assert len(follower.answered()[1].records or b"") == size  # type: ignore[arg-type]
    assert site.lagging() == {1}


def test_what_is_forgotten_is_not_sent(site: Site, follower: Follower) -> None:
    follower.session.drop((ID, 1))
    follower.ask({})
    site.append(1)
    assert not follower.has_answer
    site.append(2)
    assert follower.answered().keys() == {2}
    follower.ask({1: 0}, wait_ms=0)
    assert follower.answered().keys() == {1, 2}, "2 was sent, and was not named since"


def test_a_partition_that_is_led_elsewhere_is_an_error_until_it_is_forgotten(
    site: Site, follower: Follower
) -> None:
    follower.ask({})
    gone = site.all[1]
    site.state.partitions.remove(gone)
    assert follower.answered()[1].error_code != ErrorCode.NONE
    assert not gone.follower_readers
    follower.session.drop((ID, 1))
    follower.ask({}, wait_ms=0)
    assert not follower.answered()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"session_epoch": 5}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"session_id": 12345678}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"replica_epoch": BROKER_EPOCH + 1}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"replica_id": 3}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_what_is_not_the_next_request_of_the_session_is_refused(
    follower: Follower, fields: dict[str, Any], code: ErrorCode
) -> None:
    follower.ask({}, **fields)
    assert follower.answer().error_code == code


def test_a_session_ends_with_its_connection_and_its_registration(site: Site, follower: Follower) -> None:
    other = Follower(site)
    other.session.id, other.session.epoch = follower.session.id, follower.session.epoch
    other.ask({})
    assert other.answer().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    follower.connection.closed = True
    site.lagging()
    assert not site.state.follower_sessions and not any(each.follower_readers for each in site.all)
    site.state.view = site.state.view.with_brokers([])
    other.session.end()
    other.ask({0: 0}, wait_ms=0)
    assert other.answer().session_id == 0, "nobody knows whether it is the follower"


def test_a_follower_has_one_session(site: Site, follower: Follower) -> None:
    follower.ask({})
    again = Follower(site)
    again.ask({0: 0}, wait_ms=0)
    assert again.answered().keys() == {0}
    follower.end_wait()
    follower.answer()
    follower.ask({})
    assert follower.answer().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(site.state.follower_sessions) == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_follower_gets_every_byte_and_high_watermark(tmp_path: Path, loop: EventLoop, seed: int) -> None:
    rng = random.Random(seed)
    site = Site(tmp_path, loop, 6)
    follower = Follower(site)
    has = dict.fromkeys(range(6), 0)
    told = dict.fromkeys(range(6), 0)
    names = set(has)  # what the follower must name: it is new, or has come

    def read() -> None:
        for index, result in follower.answered().items():
            assert result.error_code == ErrorCode.NONE
            has[index] += len(result.records or b"")  # type: ignore[arg-type]
            told[index] = result.high_watermark
            names.add(index)

    def quiet() -> bool:
        ends = {each.index: each.log.end_address for each in site.all}
        return has == ends and told == ends and not names

    for step in range(300):
        is_last = step >= 200
        asleep = set() if is_last else {index for index in names if rng.random() < 0.3}
        for index in asleep:
            follower.session.drop((ID, index))
        follower.ask({index: has[index] for index in names - asleep}, wait_ms=rng.choice([0, 300_000]))
        names &= asleep
        for _ in range(0 if is_last else rng.randrange(4)):
            index = rng.randrange(6)
            site.append(index)
            if rng.random() < 0.5:
                site.flush(index)
        if is_last:
            for each in site.all:
                site.flush(each.index)
        if not follower.has_answer:
            follower.end_wait()
        read()
        site.now_ms += 100.0
        if is_last and quiet():
            break
    assert quiet(), (has, told, names)
    assert not site.lagging()
    site.close()
