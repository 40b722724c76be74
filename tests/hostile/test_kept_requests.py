"""What requests keep in memory: while they wait for ZooKeeper or other members, and by what they repeat."""

from __future__ import annotations

import gc
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from kio.schema.offset_commit.v2.request import OffsetCommitRequest
from kio.schema.sync_group.v0.request import SyncGroupRequest

from fix_broker import RawClient
from fix_turns import MeasuredBroker, StartMeasured
from headrace.broker.core import QUEUED_MAX_BYTES, ClientConnection
from headrace.broker.groups import offset_nodes
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import uvarint

WAIT_MAX_S: Final = 20.0
MUCH: Final = bytes(1 << 20)
COMMITS: Final = 60
COMMIT_BYTES: Final = 250_000
TURN_MAX_S: Final = 0.25


@pytest.fixture(scope="module")
def broker(measured_broker: StartMeasured) -> MeasuredBroker:
    return measured_broker()


def text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def head(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, -1)


def array(items: list[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def alive(kind: type[Any]) -> int:
    """How many requests of this kind are in memory."""
    return sum(type(each) is kind for each in gc.get_objects())


def until(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + WAIT_MAX_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return condition()


def joining(group: bytes, member: bytes = b"") -> bytes:
    protocols = struct.pack(">i", 1) + text(b"range") + struct.pack(">i", 0)
    body = head(11, 2) + text(group) + struct.pack(">ii", 30_000, 30_000) + text(member)
    return framed(body + text(b"consumer") + protocols)


def member_of(response: memoryview) -> bytes:
    """The member's id in a JoinGroup response of version 2."""
    at = 4 + 4 + 2 + 4
    for _ in range(3):
        (size_bytes,) = struct.unpack_from(">h", response, at)
        at += 2 + size_bytes
    return bytes(response[at - size_bytes : at])


def test_a_member_that_waits_for_its_part_keeps_nothing_of_its_request(
    broker: MeasuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group has a thousand members, each of which may send 4 MB that nobody reads, and wait for weeks."""
    taken = threading.Event()
    sync = GroupCoordinator.sync

    def synced(*arguments: Any) -> None:
        sync(*arguments)
        taken.set()

    monkeypatch.setattr(GroupCoordinator, "sync", synced)
    with RawClient(broker.bootstrap) as leader, RawClient(broker.bootstrap) as other:
        leader.send(joining(b"parts"))
        other.send(joining(b"parts"))
        leader.receive()
        member = member_of(other.receive())
        given = struct.pack(">i", 1) + text(b"x") + struct.pack(">i", len(MUCH)) + MUCH
        other.send(framed(head(14, 0) + text(b"parts") + struct.pack(">i", 1) + text(member) + given))
        assert taken.wait(WAIT_MAX_S)
        assert until(lambda: not alive(SyncGroupRequest)), "it is in memory as long as it waits"


def test_commits_that_wait_for_zookeeper_take_bounded_memory(
    broker: MeasuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They counted as nothing: a connection had 256 of up to 4 MB, and left them behind when it closed."""
    hangs = threading.Event()
    write = offset_nodes.write

    def written(*arguments: Any) -> None:
        hangs.wait(WAIT_MAX_S)
        write(*arguments)

    with RawClient(broker.bootstrap) as client:
        client.create_topic("kept")
        monkeypatch.setattr(offset_nodes, "write", written)
        part = struct.pack(">iq", 0, 5) + text(bytes(4_000))
        count = COMMIT_BYTES // len(part)
        parts = struct.pack(">i", 1) + text(b"kept") + struct.pack(">i", count) + part * count
        frames = [
            framed(head(8, 2) + text(b"kept-%d" % number) + struct.pack(">ihq", -1, 0, -1) + parts)
            for number in range(COMMITS)
        ]
        sending = threading.Thread(target=client.send, args=(b"".join(frames),), daemon=True)
        sending.start()
        assert until(lambda: alive(OffsetCommitRequest) > 0)
        time.sleep(1.0)  # for more to come
        waiting = alive(OffsetCommitRequest)
        bound = broker._broker._server.connections.bound
        counted_bytes = bound.reserved_bytes
        hangs.set()
        codes = {bytes(client.receive()[-2:]) for _ in frames}
        sending.join(WAIT_MAX_S)
    assert waiting <= QUEUED_MAX_BYTES // COMMIT_BYTES + 2
    assert counted_bytes >= (waiting - 1) * COMMIT_BYTES
    assert codes == {struct.pack(">h", ErrorCode.NONE)}, "each is answered"
    assert until(lambda: bound.reserved_bytes == 0)


def offsets_of_groups(count: int) -> bytes:
    one = uvarint(2) + b"g" + b"\0" + b"\0"
    return head(9, 8) + b"\0" + uvarint(count + 1) + one * count + b"\0" + b"\0"


def test_a_group_that_is_named_often_tells_its_offsets_once(broker: MeasuredBroker) -> None:
    """A name takes two bytes, and a group may have megabytes: 40 kB asked for gigabytes."""
    part = struct.pack(">iq", 0, 5) + text(b"m" * 4_000)
    parts = array([text(b"told") + array([part])])
    with RawClient(broker.bootstrap) as client:
        client.create_topic("told")
        client.send(framed(head(8, 2) + text(b"g") + struct.pack(">ihq", -1, 0, -1) + parts))
        client.receive()
        client.send(framed(offsets_of_groups(1)))
        once = bytes(client.receive())
        assert b"m" * 4_000 in once
        client.send(framed(offsets_of_groups(1_000)))
        assert bytes(client.receive()) == once
        named = array([text(b"told") + array([struct.pack(">i", 0)] * 1_000)])
        client.send(framed(head(9, 1) + text(b"g") + named))
        assert len(client.receive()) < 2 * len(once)


def test_a_name_without_an_end_is_not_read(broker: MeasuredBroker) -> None:
    """Of 90 MB it took 0.7 s of the loop, for the name and for the message that repeats it."""
    name = b"x" * 30_000_000
    part = uvarint(2) + struct.pack(">i", 0) + b"\0" + b"\0"
    topics = uvarint(2) + uvarint(len(name) + 1) + name + part + b"\0"
    body = head(0, 9) + b"\0" + b"\0" + struct.pack(">hi", 1, 1_000) + topics + b"\0"
    with RawClient(broker.bootstrap) as client:
        broker.forget_turns()
        client.send(framed(body))
        with pytest.raises(EOFError):
            client.receive()
    assert broker.longest_turn_s < TURN_MAX_S


def test_a_large_request_that_cannot_be_read_is_freed_with_its_connection(broker: MeasuredBroker) -> None:
    """A thread reads it, and its error referred to itself: 4 MB a connection waited for the collector."""
    body = head(15, 0) + struct.pack(">i", 2) + text(b"g") + struct.pack(">h", -5) + MUCH
    gc.collect()
    before = alive(ClientConnection)  # such as a member's of a group, of another test
    gc.disable()
    try:
        for _ in range(10):
            with RawClient(broker.bootstrap) as client:
                client.send(framed(body))
                with pytest.raises(EOFError):
                    client.receive()
        assert until(lambda: alive(ClientConnection) <= before)
    finally:
        gc.enable()
