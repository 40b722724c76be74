"""Groups over ZooKeeper: shares, rebalances, offsets, leaving, dying, sessions that end."""

from __future__ import annotations

import threading
from pathlib import PurePosixPath
from typing import Any

import pytest
from kazoo.security import make_acl

from fix_fake_log import number_of
from fix_members import WAIT_S, Members, until
from headrace.client import Admin, Consumer, ConsumerGroup, ConsumerRecord, Producer
from headrace.client.errors import ClosedError, GroupError
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.errors import NodeHeldError, ZooKeeperUnavailableError
from headrace.coordination.session import SessionState, ZooKeeperSession

CLAIM_S = 20


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


@pytest.mark.parametrize("streams", [1, 2])
def test_a_message_whose_work_fails_is_delivered_again(members: Members, streams: int) -> None:
    """The error ended the `with` block, which closed the group: that committed the message as consumed."""
    members.publish(20)
    done: list[int] = []
    with pytest.raises(ZeroDivisionError), members.make() as group:
        for message in group.streams(streams)[0]:
            if len(done) == 4:
                number_of(message) // 0
            done.append(number_of(message))
    with members.make() as group:
        [stream] = group.streams(1)
        rest = [stream.get(WAIT_S) for _ in range(16)]
        assert stream.get(0.3) is None
    assert sorted(done + [number_of(each) for each in rest if each is not None]) == list(range(20))


def test_the_name_of_one_topic_is_no_list_of_letters(members: Members) -> None:
    """The group waited for ever for topics "g", "r", "o" and so on, without a word."""
    members.publish(1)
    options: Any = {"auto_offset_reset": "earliest"}
    zookeeper, bootstrap = members.cluster.zookeeper.hosts, members.cluster.bootstrap
    with ConsumerGroup(zookeeper, bootstrap, members.name, members.topic, consumer_options=options) as group:
        found = group.streams(1)[0].get(20)
    assert found is not None and number_of(found) == 0


def test_a_negative_offset_is_none(members: Members) -> None:
    """A client of Kafka's protocol may commit one; members ended with an error where one was stored."""
    members.publish(20)
    with members.make() as group:
        group.streams(1)
        until(lambda: len(members.shares()) == members.partitions)
    with members.cluster.zookeeper.session() as session:
        path = znodes.offset(members.name, members.topic, 0)
        session.ensure_path(path)
        session.set(path, b"-1")
    with members.make() as group:
        [stream] = group.streams(1)
        found = [stream.get(WAIT_S) for _ in range(20)]
    assert sorted(number_of(each) for each in found if each is not None) == list(range(20))


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


LATEST: Any = {"consumer_options": {"fetch_max_wait_ms": 100}, "auto_commit_interval_ms": None}


def test_a_group_that_begins_at_the_end_leaves_nothing_out(members: Members) -> None:
    """What was published after a member found the end is the group's, whoever reads the partition then."""
    members.publish(40)
    group = members.make(**LATEST)
    group.streams(1)
    until(lambda: members.offsets() == members.ends(), "an offset of each partition")
    members.publish(40)
    group.close()
    members.join(**LATEST)
    until(lambda: len(members.numbers()) >= 40, "every message")
    assert sorted(members.numbers()) == list(range(40, 80))


def test_a_partition_that_was_added_since_is_read_from_its_beginning(members: Members) -> None:
    members.publish(40)
    members.make(**LATEST).streams(1)
    until(lambda: members.offsets() == members.ends(), "an offset of each partition")
    members.close()
    with Admin(members.cluster.bootstrap) as admin:
        admin.create_partitions(members.topic, 6)
    members.partitions = 6
    members.publish(60)
    members.join(**LATEST)
    until(lambda: len(members.numbers()) >= 60, "every message")
    assert sorted(members.numbers()) == list(range(40, 100))


def test_an_offset_of_a_deleted_topic_is_not_stored_for_the_one_that_has_its_name(members: Members) -> None:
    members.publish(40)
    group = members.make(auto_commit_interval_ms=None)
    [stream] = group.streams(1)
    assert all(stream.get(WAIT_S) is not None for _ in range(40))
    group._thread._watches[1].cancel()  # it comes late, and sees one topic only
    with Admin(members.cluster.bootstrap) as admin:
        admin.delete_topic(members.topic)
        admin.create_topic(members.topic, 4)
    members.publish(400)
    group.close()
    assert members.offsets() == {}
    members.join()
    until(lambda: len(members.numbers()) >= 400, "every message")
    assert sorted(members.numbers()) == list(range(40, 440))


def test_a_topic_that_is_made_again_is_read_from_its_beginning(members: Members) -> None:
    members.publish(40)
    members.join(**LATEST)
    until(lambda: members.offsets() == members.ends(), "an offset of each partition")
    with Admin(members.cluster.bootstrap) as admin:
        admin.delete_topic(members.topic)
        admin.create_topic(members.topic, 4)
    members.publish(400)
    until(lambda: len(set(members.numbers())) >= 400, "every message")
    assert sorted(set(members.numbers())) == list(range(40, 440))


def test_a_topic_that_is_not_there_is_named(members: Members, caplog: pytest.LogCaptureFixture) -> None:
    """Without a word, a misspelt topic looks like one without news."""
    name = f"{members.topic}-misspelt"
    hosts = members.cluster.zookeeper.hosts
    group = ConsumerGroup(hosts, members.cluster.bootstrap, members.name, [members.topic, name])
    members.groups.append(group)
    [stream] = group.streams(1)
    until(lambda: f"there is no topic '{name}': it is read once it is made" in caplog.text)
    assert f"no topic '{members.topic}'" not in caplog.text
    with Admin(members.cluster.bootstrap) as admin, Producer(members.cluster.bootstrap) as producer:
        admin.create_topic(name, 1)
        until(lambda: (name, 0) in group.assignment[0])
        producer.send(name, b"1").result(WAIT_S)
        assert stream.get(WAIT_S) is not None
        admin.delete_topic(name)
    until(lambda: caplog.text.count(f"there is no topic '{name}'") == 2)


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
    members.cluster.zookeeper.expire(members.groups[0]._thread._session)
    members.publish(300)
    until(lambda: len(set(members.numbers())) == 600, "every message")
    members.until_shared()


def test_a_session_that_expires_unnoticed_takes_its_claims_with_it(members: Members) -> None:
    """The group's thread sleeps until the session is replaced: it sees the same members as before."""
    group = members.join(auto_commit_interval_ms=None)
    members.until_shared()
    session, poll = group._thread._session, group._thread._consumer.poll
    before, sleeps = session.session_id, threading.Event()

    def polls_late(timeout_s: float) -> list[ConsumerRecord]:
        sleeps.set()
        until(lambda: session.session_id != before and session.state is SessionState.CONNECTED)
        return poll(timeout_s)

    group._thread._consumer.poll = polls_late  # type: ignore[method-assign, assignment]
    assert sleeps.wait(WAIT_S)
    members.cluster.zookeeper.expire(session)
    with ZooKeeperSession(members.cluster.zookeeper.hosts) as other:
        registry = ConsumerRegistry(other, members.name)
        until(lambda: len(registry.owners(members.topic)) == 4, "a claim on all partitions", CLAIM_S)


def test_partitions_whose_release_failed_go_to_their_next_owner(members: Members) -> None:
    """ZooKeeper stood still for longer than a call waits, and kept this member's session."""
    first = members.join()
    until(lambda: len(first.assignment[0]) == 4)
    session = first._thread._session
    delete, failures = session.delete, iter([ZooKeeperUnavailableError("no answer")])

    def fails_once(*arguments: Any, **options: Any) -> None:
        for failure in failures:
            raise failure
        delete(*arguments, **options)

    session.delete = fails_once  # type: ignore[method-assign]
    second = members.join()
    until(lambda: len(first.assignment[0]) == len(second.assignment[0]) == 2, "an even share")
    assert not list(failures), "a release failed"


def test_what_was_claimed_just_after_a_session_expired_goes_to_its_next_owner(members: Members) -> None:
    """It expires while a member that rebalances reads the registry, which then claims in the next session."""
    first, second = members.join(), members.join()
    members.until_shared()
    thread, expire = first._thread, members.cluster.zookeeper.expire
    read, claim_all, before = thread._registry.members, thread._registry.claim_all, thread._session.session_id
    claimed = threading.Event()

    def reads_late() -> dict[str, dict[str, int]]:
        if thread._session.session_id == before and len(read()) == 1:
            expire(thread._session)
            until(lambda: thread._session.session_id != before and first.member_id in read())
        return read()

    def claims(*arguments: Any, **options: Any) -> None:
        claim_all(*arguments, **options)
        if thread._session.session_id != before and not claimed.is_set():
            claimed.set()
            until(lambda: len(read()) == 2, "a third member")

    thread._registry.members, thread._registry.claim_all = reads_late, claims  # type: ignore[method-assign]
    second.close()
    assert claimed.wait(WAIT_S)
    third = members.join()
    until(lambda: len(first.assignment[0]) == len(third.assignment[0]) == 2, "an even share")


def test_a_member_that_cannot_join_leaves_nothing(members: Members) -> None:
    with ZooKeeperSession(members.cluster.zookeeper.hosts) as other:
        ConsumerRegistry(other, members.name).join("m", {members.topic: 1})
        group = members.make(member_id="m", session_timeout_ms=500)
        with pytest.raises(NodeHeldError):
            group.streams(1)
    group.close()
    assert group._thread._session.state is SessionState.CLOSED


def test_a_member_that_dies_is_replaced(members: Members) -> None:
    survivor = members.join()
    dead = members.make()
    dead.streams(1)
    members.until_shared()
    assert len(survivor.assignment[0]) == 2
    # As if its process had died: nothing is released, its session ends.
    dead._thread._session.close()
    until(lambda: len(survivor.assignment[0]) == 4)


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
    ("options", "message"),
    [
        ({"group": ""}, "is not a group name"),
        ({"topics": []}, "topic"),
        # No member of this id would ever be in the group, and what it leaves would be there for ever.
        ({"member_id": "host/1"}, "'host/1' is not a member's id: it must have"),
        ({"member_id": ".."}, "is not a member's id"),
        ({"member_id": "a\nb"}, "is not a member's id"),
        ({"member_id": "m" * 1025}, "is not a member's id"),
    ],
)
def test_invalid_settings(options: Any, message: str) -> None:
    options = {"group": "g", "topics": ["t"], **options}
    with pytest.raises(ValueError, match=message):
        ConsumerGroup("127.0.0.1:1", "127.0.0.1:1", **options)


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
