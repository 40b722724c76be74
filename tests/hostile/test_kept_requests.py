"""What a request keeps in memory while it waits: for ZooKeeper, or for other members of a group."""

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
from headrace.broker.core import QUEUED_MAX_BYTES
from headrace.broker.groups import offset_nodes
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.wire.errors import ErrorCode

WAIT_MAX_S: Final = 20.0
MUCH: Final = bytes(1 << 20)
COMMITS: Final = 60
COMMIT_BYTES: Final = 250_000


@pytest.fixture(scope="module")
def broker(measured_broker: StartMeasured) -> MeasuredBroker:
    return measured_broker()


def text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def head(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, -1)


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
