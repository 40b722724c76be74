"""Groups over ZooKeeper: shares, rebalances, offsets, leaving, dying; and the stream between two threads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest
from kazoo.security import make_acl

from fix_broker import BrokerCluster
from fix_fake_log import number_of
from headrace.client import Admin, Consumer, ConsumerGroup, ConsumerRecord, Producer
from headrace.client.cluster import TopicPartition
from headrace.client.errors import BrokerError, ClosedError, ForkedError, OffsetOutOfRangeError
from headrace.client.groups import GroupError
from headrace.client.streams import QUEUE_RECORDS_MAX, MessageStream
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.errors import NodeHeldError
from headrace.coordination.session import SessionState, ZooKeeperSession

WAIT_S = 60
CLAIM_S = 20


def until(condition: Callable[[], bool], what: str = "it", wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {wait_s:g} s"
        time.sleep(0.02)


class Members:
    """Members of one group that read a topic of four partitions, each stream in a thread of its own."""

    def __init__(self, cluster: BrokerCluster, partitions: int = 4) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.topic = f"group-{uuid.uuid4().hex[:8]}"
        self.name = f"readers-{uuid.uuid4().hex[:8]}"
        self.groups: list[ConsumerGroup] = []
        self.got: list[list[ConsumerRecord]] = []  # one list per member
        self.published = 0
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(self.topic, partitions)

    def publish(self, count: int) -> None:
        with Producer(self.cluster.bootstrap) as producer:
            for _ in range(count):
                producer.send(self.topic, b"%d" % self.published, partition=self.published % self.partitions)
                self.published += 1

    def make(self, **options: Any) -> ConsumerGroup:
        options = {
            "consumer_options": {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100},
            "session_timeout_ms": 2000,
            **options,
        }
        group = ConsumerGroup(
            self.cluster.zookeeper.hosts, self.cluster.bootstrap, self.name, [self.topic], **options
        )
        self.groups.append(group)
        return group

    def join(self, streams: int = 1, leave_after: int | None = None, **options: Any) -> ConsumerGroup:
        """A member that reads all its streams, and leaves after `leave_after` messages."""
        group = self.make(**options)
        got: list[ConsumerRecord] = []
        self.got.append(got)

        def work(stream: MessageStream) -> None:
            for message in stream:
                got.append(message)
                if len(got) == leave_after:
                    break
            if leave_after:
                group.close()

        for stream in group.streams(streams):
            threading.Thread(target=work, args=(stream,), daemon=True).start()
        return group

    def numbers(self) -> list[int]:
        return [number_of(message) for got in self.got for message in got]

    def shares(self) -> list[TopicPartition]:
        return sorted(key for group in self.groups for keys in group.assignment.values() for key in keys)

    def until_shared(self) -> None:
        everything = [(self.topic, partition) for partition in range(4)]
        until(lambda: self.shares() == everything, "an even share")

    def offsets(self) -> dict[TopicPartition, int]:
        with ZooKeeperSession(self.cluster.zookeeper.hosts) as session:
            return ConsumerRegistry(session, self.name).all_offsets()

    def ends(self) -> dict[TopicPartition, int]:
        with Admin(self.cluster.bootstrap) as admin:
            found = admin.list_offsets(self.topic)
        return {(self.topic, partition): at.offset for partition, at in found.items() if at.offset}

    def close(self) -> None:
        for group in self.groups:
            group.close()


@pytest.fixture
def members(one_broker: BrokerCluster) -> Iterator[Members]:
    with contextlib.closing(Members(one_broker)) as made:
        yield made
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("group-")]


def test_two_members_share_and_one_leaves_half_way(members: Members) -> None:
    members.join()
    members.join(leave_after=300)
    members.until_shared()
    members.publish(1000)
    until(lambda: len(members.got[1]) == 300)
    members.publish(1000)
    until(lambda: len(set(members.numbers())) == 2000, "every message")
    assert sorted(members.numbers()) == list(range(2000))
    assert members.groups[0].rebalances >= 2
    members.close()
    assert members.offsets() == members.ends()


def test_streams_of_one_member_share_too_and_keep_the_order(members: Members) -> None:
    group = members.make()
    streams = group.streams(3)
    members.publish(600)
    got: list[list[ConsumerRecord]] = [[] for _ in streams]

    def work(number: int) -> None:
        for message in streams[number]:
            got[number].append(message)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: sum(map(len, got)) == 600)
    assert [len(keys) for _, keys in sorted(group.assignment.items())] == [2, 1, 1]
    group.close()
    for thread in threads:
        thread.join(WAIT_S)
    for share in got:
        partitions = {message.partition for message in share}
        for partition in partitions:
            numbers = [number_of(message) for message in share if message.partition == partition]
            assert numbers == sorted(numbers)


def test_a_member_continues_at_the_committed_offsets(members: Members) -> None:
    members.publish(500)
    with members.make() as group:
        [stream] = group.streams(1)
        first = [number_of(next(stream)) for _ in range(200)]
    members.publish(100)
    with members.make() as group:
        [stream] = group.streams(1)
        rest = [stream.get(WAIT_S) for _ in range(400)]
        assert stream.get(0.3) is None
    assert sorted(first + [number_of(each) for each in rest if each is not None]) == list(range(600))


def test_offsets_are_committed_by_commit_and_at_an_interval(members: Members) -> None:
    members.publish(100)
    group = members.make(auto_commit_interval_ms=None)
    [stream] = group.streams(1)
    for _ in range(100):
        next(stream)
    assert members.offsets() == {}
    group.commit()
    assert members.offsets() == members.ends()
    group.close()
    other = members.make(auto_commit_interval_ms=50)
    [stream] = other.streams(1)
    members.publish(100)
    for _ in range(100):
        next(stream)
    stream.get(0.01)  # the last one is consumed when the next one is requested
    until(lambda: members.offsets() == members.ends())


def test_an_unfinished_message_is_delivered_again_if_its_reader_never_returns(members: Members) -> None:
    members.publish(1)
    slow = members.make(rebalance_grace_ms=50)
    [stream] = slow.streams(1)
    in_hand = next(stream)
    closer = threading.Thread(target=slow.close)
    closer.start()
    closer.join(WAIT_S)
    assert members.offsets() == {}
    [stream] = members.make().streams(1)
    assert stream.get(WAIT_S) == in_hand


def test_new_partitions_are_shared(members: Members) -> None:
    members.join()
    members.until_shared()
    with Admin(members.cluster.bootstrap) as admin:
        admin.create_partitions(members.topic, 6)
    until(lambda: len(members.shares()) == 6)


def test_an_expired_session_is_replaced_and_nothing_is_lost(members: Members) -> None:
    members.join(auto_commit_interval_ms=100)
    members.join(auto_commit_interval_ms=100)
    members.until_shared()
    members.publish(300)
    until(lambda: len(set(members.numbers())) == 300)
    members.cluster.zookeeper.expire(members.groups[0]._session)
    members.publish(300)
    until(lambda: len(set(members.numbers())) == 600, "every message")
    members.until_shared()


def test_a_session_that_expires_unnoticed_takes_its_claims_with_it(members: Members) -> None:
    """The group's thread sleeps until the session is replaced: it sees the same members as before."""
    group = members.join(auto_commit_interval_ms=None)
    members.until_shared()
    session, poll = group._session, group._consumer.poll
    before, sleeps = session.session_id, threading.Event()

    def polls_late(timeout_s: float) -> list[ConsumerRecord]:
        sleeps.set()
        until(lambda: session.session_id != before and session.state is SessionState.CONNECTED)
        return poll(timeout_s)

    group._consumer.poll = polls_late  # type: ignore[method-assign, assignment]
    assert sleeps.wait(WAIT_S)
    members.cluster.zookeeper.expire(session)
    with ZooKeeperSession(members.cluster.zookeeper.hosts) as other:
        registry = ConsumerRegistry(other, members.name)
        until(lambda: len(registry.owners(members.topic)) == 4, "a claim on all partitions", CLAIM_S)


def test_a_member_that_cannot_join_leaves_nothing(members: Members) -> None:
    with ZooKeeperSession(members.cluster.zookeeper.hosts) as other:
        ConsumerRegistry(other, members.name).join("m", {members.topic: 1})
        group = members.make(member_id="m", session_timeout_ms=500)
        with pytest.raises(NodeHeldError):
            group.streams(1)
    group.close()
    assert group._session.state is SessionState.CLOSED


def test_a_member_that_dies_is_replaced(members: Members) -> None:
    survivor = members.join()
    dead = members.make()
    dead.streams(1)
    members.until_shared()
    assert len(survivor.assignment[0]) == 2
    # As if its process had died: nothing is released, its session ends.
    dead._session.close()
    until(lambda: len(survivor.assignment[0]) == 4)


def test_the_error_that_ends_the_group_is_raised_by_its_streams(members: Members) -> None:
    group = members.make(consumer_options={"auto_offset_reset": "error"})
    [stream] = group.streams(1)
    with pytest.raises(OffsetOutOfRangeError):
        next(stream)
    with pytest.raises(OffsetOutOfRangeError):
        stream.get(1)


def test_closing(members: Members) -> None:
    group = members.make()
    group.close()
    group.close()
    with pytest.raises(ClosedError):
        group.streams(1)
    group = members.make()
    streams = group.streams(2)
    with pytest.raises(RuntimeError, match="already"):
        group.streams(1)
    group.close()
    assert [list(stream) for stream in streams] == [[], []]
    with pytest.raises(ClosedError):
        group.commit()


@pytest.mark.parametrize(
    ("options", "message"), [({"group": ""}, "is not a group name"), ({"topics": []}, "topic")]
)
def test_invalid_settings(options: Any, message: str) -> None:
    options = {"group": "g", "topics": ["t"], **options}
    with pytest.raises(ValueError, match=message):
        ConsumerGroup("127.0.0.1:1", "127.0.0.1:1", **options)


# --- streams without a group ---


def message(number: int, size_bytes: int = 1) -> ConsumerRecord:
    return ConsumerRecord("t", 0, number, 0, None, b"x" * size_bytes, ())


def test_a_message_is_consumed_when_the_next_one_is_requested() -> None:
    stream = MessageStream(0, wants_more=lambda: None)
    stream.put([message(5), message(6)])
    assert next(stream).offset == 5
    assert stream.consumed() == {}
    assert next(stream).offset == 6
    assert stream.consumed() == {("t", 0): 6}
    stream.mark_consumed_by(threading.get_ident() + 1)
    assert stream.consumed() == {("t", 0): 6}
    stream.mark_consumed_by(threading.get_ident())
    assert stream.consumed() == {("t", 0): 7}
    stream.reset_positions()
    assert stream.consumed() == {}


def test_a_full_stream_requests_more_when_it_is_half_empty() -> None:
    requests = []
    stream = MessageStream(0, wants_more=lambda: requests.append(True))
    stream.put([message(i) for i in range(QUEUE_RECORDS_MAX)])
    assert stream.is_full
    for _ in range(QUEUE_RECORDS_MAX // 2):
        next(stream)
    assert not requests
    next(stream)
    assert requests == [True]
    assert not stream.is_full
    stream.put([message(1, 20_000_000)])
    assert stream.is_full


def test_draining_waits_for_the_reader_but_no_longer_than_the_grace_time() -> None:
    stream = MessageStream(0, wants_more=lambda: None)
    stream.put([message(1), message(2)])
    next(stream)
    began = time.monotonic()
    stream.drain(0.1)
    assert 0.1 <= time.monotonic() - began < 30
    assert stream.consumed() == {}
    reader = threading.Timer(0.1, lambda: stream.get(0.2))
    reader.start()
    stream.drain(WAIT_S)
    reader.join()


def test_an_ended_stream_ends_its_readers() -> None:
    stream = MessageStream(0, wants_more=lambda: None)
    threading.Timer(0.05, lambda: stream.end(None)).start()
    assert list(stream) == []
    failed = MessageStream(0, wants_more=lambda: None)
    failed.put([message(1)])
    failed.end(BrokerError(29, "t-0"))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        next(failed)


def test_a_group_member_is_an_ordinary_consumer_underneath(members: Members) -> None:
    """What a group reads and what an explicit consumer reads are the same records."""
    members.publish(50)
    with members.make() as group:
        [stream] = group.streams(1)
        grouped = sorted(next(stream) for _ in range(50))
    with Consumer(members.cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(members.topic, partition) for partition in range(4)])
        got: list[ConsumerRecord] = []
        while len(got) < 50:
            got += consumer.poll(1)
    assert sorted(got) == grouped


def test_a_commit_that_zookeeper_refuses_is_an_error(members: Members) -> None:
    members.publish(8)
    group = members.make(auto_commit_interval_ms=None)
    [stream] = group.streams(1)
    for _ in range(4):
        next(stream)
    group.commit()
    read_only = [make_acl("world", "anyone", read=True)]
    with ZooKeeperSession(members.cluster.zookeeper.hosts) as session:
        for key in members.offsets():  # and the folder of those that have no node yet
            session._client.set_acls(znodes.offset(members.name, *key), read_only)
        session._client.set_acls(str(PurePosixPath(znodes.offset(members.name, *key)).parent), read_only)
    for _ in range(4):
        next(stream)
    with pytest.raises(GroupError, match=r"its offsets are not stored: .*refused"):
        group.commit()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_no_messages(members: Members) -> None:
    group = members.make()
    [stream] = group.streams(1)
    child = os.fork()
    if child == 0:
        try:
            stream.get(5)
        except ForkedError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    group.close()
