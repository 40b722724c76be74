"""What a group's thread stores, and when, beside a scripted consumer: no ZooKeeper, no broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.client import ConsumerGroup, ConsumerRecord
from headrace.client.errors import GroupError, MetadataTimeoutError
from headrace.client.group_thread import GroupThread, MemberSettings
from headrace.client.streams import MessageStream
from headrace.coordination.assignment import StreamId
from headrace.coordination.consumers import NotOwnerError, OtherTopicError
from headrace.coordination.errors import ZooKeeperUnavailableError
from headrace.coordination.session import SessionState

FIRST, SECOND = ("t", 0), ("t", 1)
WAIT_S = 60


def record(key: tuple[str, int], offset: int) -> ConsumerRecord:
    return ConsumerRecord(*key, offset, 0, None, b"x", ())


class Registry:
    """ZooKeeper's registry of the group: the offsets that were stored, in order."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, int]] = []

    def created(self, topics: Any) -> dict[str, int]:
        return dict.fromkeys(topics, 1)

    def offsets(self, keys: Any) -> dict[tuple[str, int], int | None]:
        return {FIRST: 100, SECOND: None}

    def began(self, topics: Any) -> dict[str, int]:
        return {}

    def commit(self, topic: str, partition: int, offset: int, **_: Any) -> None:
        self.stored.append((partition, offset))

    def release(self, *_: Any) -> None:
        pass


class Consumer:
    """Polls by a script. `positions`: those that are known."""

    def __init__(self) -> None:
        self.positions: dict[tuple[str, int], int] = {}
        self.script: list[Callable[[], list[ConsumerRecord]]] = []

    def poll(self, _timeout_s: float) -> list[ConsumerRecord]:
        return self.script.pop(0)()

    def position(self, *key: Any, timeout_s: float = 30.0) -> int:
        if key not in self.positions:
            raise MetadataTimeoutError(f"no position after {timeout_s:g} s")
        return self.positions[key]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.positions[topic, partition] = offset

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


class Session:
    state = SessionState.CONNECTED
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Scene:
    """A member with a share of two partitions, and one stream."""

    def __init__(self, *, commit_interval_s: float | None = 0.0, grace_s: float = 5.0) -> None:
        self.consumer, self.registry, self.session = Consumer(), Registry(), Session()
        self.stream = MessageStream(0, wants_more=lambda: None)
        settings = MemberSettings("g", "m", ["t"], commit_interval_s, grace_s, begins_at_end=True)
        parts: Any = (self.session, self.registry, self.consumer)
        self.thread = GroupThread(settings, *parts, clock=time.monotonic, draw=lambda: 0.5)
        self.thread._streams = [self.stream]
        self.thread._owners = dict.fromkeys((FIRST, SECOND), StreamId("m", 0))
        self.thread._offsets.begin([FIRST, SECOND], {})

    def joined_group(self) -> ConsumerGroup:
        """What the application holds of this member, for `commit`."""
        group = ConsumerGroup("127.0.0.1:1", "127.0.0.1:1", "g", ["t"])
        group.close()
        group._thread, group._streams = self.thread, [self.stream]
        self.thread._thread = threading.current_thread()
        return group

    def polled(self, key: tuple[str, int], *offsets: int) -> list[ConsumerRecord]:
        self.consumer.positions[key] = offsets[-1] + 1
        return [record(key, offset) for offset in offsets]

    def consume(self) -> None:
        """The application asks for a message, and for the next one: so that one is consumed."""
        assert self.stream.get(1) is not None
        self.stream.get(0.0)

    def gives_up(self) -> None:
        """A rebalance takes the whole share away."""

        def rebalance() -> bool:
            self.thread._rebalance_wanted.clear()
            self.thread._release_share()
            return True

        self.thread._rebalance = rebalance  # type: ignore[method-assign]

    def end(self) -> list[ConsumerRecord]:
        self.thread._closing.set()
        return []


def test_a_beginning_that_becomes_known_stores_nothing_of_what_is_not_delivered() -> None:
    scene = Scene()

    def poll() -> list[ConsumerRecord]:
        scene.consume()
        scene.consumer.positions[SECOND] = 500
        return scene.polled(FIRST, *range(101, 111))

    scene.consumer.script = [lambda: scene.polled(FIRST, 100), poll, scene.end]
    scene.thread._loop()
    assert scene.registry.stored[0] == (1, 500), "the beginning is stored before anything is read there"
    assert [offset for partition, offset in scene.registry.stored if partition == 0] == [101]


def test_a_position_that_is_looked_up_anew_keeps_no_consumed_offset_from_its_store() -> None:
    scene = Scene()

    def out_of_range() -> list[ConsumerRecord]:
        scene.consume()
        del scene.consumer.positions[FIRST]
        return []

    scene.consumer.script = [lambda: scene.polled(FIRST, 100), out_of_range, scene.end]
    scene.thread._loop()
    assert scene.registry.stored == [(0, 101)]


def test_a_member_that_fails_and_cannot_even_commit_ends_its_streams() -> None:
    scene = Scene()

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    scene.consumer.script = [fail]
    scene.thread._offsets.to_store = fail  # type: ignore[method-assign]
    scene.thread._run()
    assert scene.session.is_closed
    with pytest.raises(GroupError, match="broken"):
        next(iter(scene.stream))


def committed_while(scene: Scene) -> str:
    """What `commit` says, called by another thread than the group's, which runs here."""
    said: list[str] = []
    group = scene.joined_group()

    def commit() -> None:
        try:
            group.commit()
            said.append("stored")
        except GroupError as error:
            said.append(str(error))

    thread = threading.Thread(target=commit)

    def call() -> list[ConsumerRecord]:
        thread.start()
        while not scene.thread.commits.requested:
            time.sleep(0.001)
        return []

    def end() -> list[ConsumerRecord]:
        thread.join(WAIT_S)
        return scene.end()

    def consume() -> list[ConsumerRecord]:
        scene.consume()
        return call()

    scene.consumer.script = [lambda: scene.polled(FIRST, 100), consume, list, end]
    scene.thread._loop()
    return said[0]


def test_commit_says_that_offsets_are_stored() -> None:
    scene = Scene(commit_interval_s=None)
    assert committed_while(scene) == "stored"
    assert (0, 101) in scene.registry.stored


@pytest.mark.parametrize(
    "error", [NotOwnerError("t-0: another member owns it"), OtherTopicError("t-0: it was made again")]
)
def test_commit_says_that_offsets_are_not_stored(error: Exception) -> None:
    """It returned as if they had been."""
    scene = Scene(commit_interval_s=None)

    def refuse(topic: str, partition: int, offset: int, **_: Any) -> None:
        raise error

    scene.registry.commit = refuse  # type: ignore[method-assign]
    scene.thread._rebalance = lambda: True  # type: ignore[method-assign]
    assert str(error) in committed_while(scene)


def test_commit_says_that_the_session_expired_before() -> None:
    scene = Scene(commit_interval_s=None)
    setattr(scene.consumer, "wakeup", scene.thread._session_lost.set)  # noqa: B010  # it has no such method
    scene.thread._rebalance = lambda: True  # type: ignore[method-assign]
    assert "was given up before the offset was stored" in committed_while(scene)
    assert (0, 101) not in scene.registry.stored


def test_commit_says_that_zookeeper_was_away_when_the_partition_was_given_up() -> None:
    """It returned as if the offset had been stored, when the member had its next share, or none."""
    scene = Scene(commit_interval_s=None, grace_s=0.0)

    def refuse(*_: Any, **__: Any) -> None:
        raise ZooKeeperUnavailableError("no answer")

    scene.gives_up()
    setattr(scene.consumer, "wakeup", scene.thread._rebalance_wanted.set)  # noqa: B010  # it has no such method
    scene.registry.commit = refuse  # type: ignore[method-assign]
    assert "was given up before the offset was stored" in committed_while(scene)


def test_commit_says_that_it_came_while_the_partition_was_given_up() -> None:
    """What was consumed before was being stored, and this message was not among it."""
    scene = Scene(commit_interval_s=None, grace_s=0.0)
    group = scene.joined_group()
    said: list[str] = []
    is_taken, may_commit = threading.Event(), threading.Event()

    def read() -> None:
        assert [scene.stream.get(WAIT_S) is not None for _ in range(2)] == [True, True]
        is_taken.set()
        may_commit.wait(WAIT_S)
        try:
            group.commit()
            said.append("stored")
        except GroupError as error:
            said.append(str(error))

    reader = threading.Thread(target=read)

    def store(topic: str, partition: int, offset: int, **_: Any) -> None:
        scene.registry.stored.append((partition, offset))
        may_commit.set()
        while not scene.thread.commits.requested:
            time.sleep(0.001)

    def give_up() -> list[ConsumerRecord]:
        assert is_taken.wait(WAIT_S)
        scene.thread._rebalance_wanted.set()
        return []

    def end() -> list[ConsumerRecord]:
        reader.join(WAIT_S)
        return scene.end()

    scene.gives_up()
    scene.registry.commit = store  # type: ignore[method-assign]
    scene.consumer.script = [lambda: scene.polled(FIRST, 100, 101), give_up, list, list, end]
    reader.start()
    scene.thread._loop()
    assert scene.registry.stored == [(0, 101)]
    assert "was given up before the offset was stored" in said[0]


def test_commit_of_a_message_that_was_not_finished_in_time_is_an_error() -> None:
    """Its partition has another owner by now, which gets it again."""
    scene = Scene(commit_interval_s=None)
    group = scene.joined_group()
    scene.stream.put([record(FIRST, 100)])
    assert scene.stream.get(1) is not None
    scene.stream.reset_positions(lambda *_: True)
    with pytest.raises(GroupError, match="was given up before the offset was stored"):
        group.commit()
    scene.stream.get(0.0)
    assert scene.stream.mark_consumed_by(threading.get_ident()), "the next message is another one"
