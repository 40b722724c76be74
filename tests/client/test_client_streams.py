"""A group's streams: in order, each message until the next is requested, bounded, ended with the error."""

from __future__ import annotations

import os
import threading
import time

import pytest

from fix_fake_log import number_of
from fix_members import WAIT_S, Members, until
from headrace.client import ConsumerRecord
from headrace.client.errors import BrokerError, ForkedError, OffsetOutOfRangeError
from headrace.client.streams import QUEUE_RECORDS_MAX, MessageStream


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


def test_the_error_that_ends_the_group_is_raised_by_its_streams(members: Members) -> None:
    group = members.make(consumer_options={"auto_offset_reset": "error"})
    [stream] = group.streams(1)
    with pytest.raises(OffsetOutOfRangeError):
        next(stream)
    with pytest.raises(OffsetOutOfRangeError):
        stream.get(1)


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
    stream.reset_positions(lambda *_: True)
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


def test_a_rebalance_does_not_wait_for_a_reader_that_commits() -> None:
    """The commit is what the reader waits for next, and the group's thread stores it after the drain."""
    stream = MessageStream(0, wants_more=lambda: None)
    stream.put([ConsumerRecord("t", 0, 1, 0, None, b"v", ())])
    assert stream.get(1) is not None
    draining = threading.Thread(target=stream.drain, args=(60,), daemon=True)
    draining.start()
    time.sleep(0.1)
    assert stream.mark_consumed_by(threading.get_ident())
    draining.join(10)
    assert not draining.is_alive()
    assert stream.consumed() == {("t", 0): 2}
