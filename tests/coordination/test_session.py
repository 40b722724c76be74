"""The session on a real ZooKeeper: calls, watches, held nodes, and what survives expiry, a hung server and
a restart."""

import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fix_ports import free_port
from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.errors import (
    BadVersionError,
    NodeExistsError,
    NodeHeldError,
    NoNodeError,
    NotEmptyError,
    SessionClosedError,
    ZooKeeperUnavailableError,
)
from headrace.coordination.nodes import Node
from headrace.coordination.session import SessionState, ZooKeeperSession


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_calls_and_their_errors(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        with pytest.raises(NoNodeError, match=r"/a: no such node"):
            session.get("/a")
        with pytest.raises(NoNodeError):
            session.create("/a/b", b"1")
        session.create("/a/b", b"1", make_parents=True)
        with pytest.raises(NodeExistsError):
            session.create("/a/b")
        version = session.get("/a/b").stat.version
        assert session.set("/a/b", b"2", version=version).version == version + 1
        with pytest.raises(BadVersionError):
            session.set("/a/b", b"3", version=version)
        with pytest.raises(NotEmptyError):
            session.delete("/a")
        assert session.children("/a") == ["b"]
        assert session.children_or_empty("/nothing") == []
        assert session.get_or_none("/nothing") is None
        assert session.exists("/nothing") is None
        found = session.get_many(["/a/b", "/nothing", "/a"])
        assert [node and node.data for node in found] == [b"2", None, b""]
        assert [stat is not None for stat in session.stat_many(["/nothing", "/a"])] == [False, True]
        session.delete("/a", recursive=True)
        assert session.exists("/a") is None


def test_transaction_is_all_or_nothing(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        session.create("/taken")
        with pytest.raises(NodeExistsError, match=r"/taken \(create\)"):
            session.transaction().create("/new").create("/taken").commit()
        assert session.exists("/new") is None
        session.transaction().create("/new", b"x").set("/taken", b"y", version=0).commit()
        assert session.get("/new").data == b"x"
        with pytest.raises(BadVersionError):
            session.transaction().set("/taken", b"z", version=0).delete("/new").commit()
        assert session.exists("/new") is not None


def test_a_missing_server_is_reported_within_the_timeout() -> None:
    session = ZooKeeperSession(f"127.0.0.1:{free_port()}", name="lonely")
    started = time.monotonic()
    with pytest.raises(
        ZooKeeperUnavailableError, match=r"no ZooKeeper answered at 127\.0\.0\.1:\d+ within 0\.5 s"
    ):
        session.start(connect_timeout_s=0.5)
    assert time.monotonic() - started < 20


def test_a_server_that_accepts_and_never_answers_is_reported_within_the_timeout() -> None:
    """The library's attempt lasts for a session's timeout, and neither start nor end waits for it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        session = ZooKeeperSession(address, timeout_s=120.0, name="beside-a-hung-server")
        started = time.monotonic()
        with pytest.raises(ZooKeeperUnavailableError, match=f"no ZooKeeper answered at {address} within"):
            session.start(connect_timeout_s=0.3)
        session.close()
        assert time.monotonic() - started < 20


def test_calls_on_a_closed_session_raise(zookeeper: ZooKeeperRoom) -> None:
    session = zookeeper.session()
    session.create("/mine", ephemeral=True)
    session.close()
    session.close()
    assert session.state is SessionState.CLOSED
    with pytest.raises(SessionClosedError):
        session.get("/mine")
    with zookeeper.session() as other:
        assert other.exists("/mine") is None, "closing ends ephemeral nodes at once"


def test_watches_always_report_the_last_state(zookeeper: ZooKeeperRoom) -> None:
    names: list[list[str]] = []
    values: list[Node | None] = []
    with zookeeper.session() as session, zookeeper.session() as writer:
        session.watch_children("/room", names.append)
        session.watch_data("/room/x", values.append)
        wait_for(lambda: names == [[]] and values == [None])
        writer.create("/room/x", b"0", make_parents=True)
        for i in range(200):
            writer.set("/room/x", str(i).encode())
            writer.create(f"/room/n{i}")
        wait_for(lambda: len(names[-1]) == 201 and values[-1] is not None and values[-1].data == b"199")
        writer.delete("/room", recursive=True)
        wait_for(lambda: names[-1] == [] and values[-1] is None)
        writer.create("/room/x", b"again", make_parents=True)
        wait_for(lambda: names[-1] == ["x"] and values[-1] is not None and values[-1].data == b"again")


def test_cancelled_watch_is_silent(zookeeper: ZooKeeperRoom) -> None:
    seen: list[list[str]] = []
    with zookeeper.session() as session:
        watch = session.watch_children("/", seen.append)
        wait_for(lambda: len(seen) == 1)
        watch.cancel()
        session.create("/later")
        other: list[list[str]] = []
        session.watch_children("/", other.append)
        wait_for(lambda: other == [["later"]])
        assert len(seen) == 1


def test_a_failing_callback_stops_no_other_and_retriable_ones_run_again(
    zookeeper: ZooKeeperRoom,
) -> None:
    attempts: list[int] = []

    def wobbly(_: object) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise BadVersionError("not yet")

    def broken(names: list[str]) -> None:
        raise ZeroDivisionError(f"planted: {names}")

    with zookeeper.session() as session:
        session.watch_children("/", broken)
        session.watch_data("/w", wobbly)
        wait_for(lambda: len(attempts) == 3)
        seen: list[list[str]] = []
        session.watch_children("/", seen.append)
        wait_for(lambda: seen == [[]])


def test_expiry_brings_back_nodes_callbacks_and_watches(zookeeper: ZooKeeperRoom) -> None:
    order: list[str] = []
    states: list[SessionState] = []
    with zookeeper.session(timeout_s=2) as session, zookeeper.session() as other:
        session.hold_ephemeral("/ids/1", b"me")
        session.on_restored(lambda: order.append("restored" if session.exists("/ids/1") else "too early"))
        session.watch_children("/ids", lambda names: order.append(f"watch {names}"))
        session.on_state(states.append)
        wait_for(lambda: order == ["watch ['1']"])
        before = other.exists("/ids/1")
        zookeeper.expire(session)
        wait_for(lambda: "restored" in order)
        after = other.exists("/ids/1")
        assert before is not None and after is not None
        assert before.owner_session != after.owner_session == session.session_id
        assert SessionState.LOST in states and states[-1] is SessionState.CONNECTED
        other.create("/ids/2")
        wait_for(lambda: order[-1] == "watch ['1', '2']")
        assert "too early" not in order


def test_watches_converge_through_changes_and_expiries_at_once(zookeeper: ZooKeeperRoom) -> None:
    """Updates may be merged, but the last one reported is the present state."""
    chance = random.Random(20110612)
    names: list[list[str]] = []
    values: list[Node | None] = []
    with zookeeper.session(timeout_s=2) as session, zookeeper.session() as writer:
        session.watch_children("/room", names.append)
        session.watch_data("/room/x", values.append)
        writer.create("/room/x", b"", make_parents=True)
        for step in range(300):
            child = f"/room/n{chance.randrange(8)}"
            if writer.exists(child) is None:
                writer.create(child)
            else:
                writer.delete(child)
            writer.set("/room/x", str(step).encode())
            if step % 75 == 40:
                zookeeper.expire(session)
        there = writer.children("/room")
        wait_for(lambda: names[-1] == there and values[-1] is not None and values[-1].data == b"299")


def test_a_held_node_waits_for_a_dead_predecessor_within_a_bound(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session(timeout_s=2) as session, zookeeper.session() as living:
        living.create("/ids", b"")
        living.create("/ids/1", b"old", ephemeral=True)
        with pytest.raises(NodeHeldError, match=r"/ids/1 is held by another live session \(waited 0\.3 s\)"):
            session.hold_ephemeral("/ids/1", b"new", wait_s=0.3)
        threading.Timer(0.4, living.close).start()
        held = session.hold_ephemeral("/ids/1", b"new", wait_s=10)
        assert session.get("/ids/1").data == b"new"
        held.release()
        assert session.exists("/ids/1") is None
        states: list[SessionState] = []
        session.on_state(states.append)
        zookeeper.expire(session)
        wait_for(lambda: SessionState.LOST in states and states[-1] is SessionState.CONNECTED)
        assert session.exists("/ids/1") is None, "a released node must not come back"


def test_a_session_that_expires_as_a_node_is_first_held_brings_it_back(zookeeper: ZooKeeperRoom) -> None:
    """A broker would not be registered, and a group's member be in no group, as long as they run."""
    with zookeeper.session(timeout_s=2) as session:
        create, before = session.create, session.session_id

        def expires(*arguments: Any, **options: Any) -> None:
            create(*arguments, **options)
            if session.session_id == before:
                zookeeper.expire(session)
                wait_for(lambda: session.session_id != before and session.state is SessionState.CONNECTED)

        session.create = expires  # type: ignore[method-assign]
        held = session.hold_ephemeral("/ids/1", b"me")
        wait_for(lambda: session.exists("/ids/1") is not None, 20)
        held.release()
        assert session.exists("/ids/1") is None


def test_a_node_that_could_not_be_held_is_not_created_later(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as other, zookeeper.session(timeout_s=2) as session:
        other.hold_ephemeral("/ids/1", b"other")
        with pytest.raises(NodeHeldError):
            session.hold_ephemeral("/ids/1", b"me", wait_s=0.0)
        restored = threading.Event()
        session.on_restored(restored.set)
        other.delete("/ids/1")
        zookeeper.expire(session)
        assert restored.wait(60)
        assert session.exists("/ids/1") is None


def test_survives_a_server_that_is_killed_restarted_and_hangs(private_zookeeper: ZooKeeperRoom) -> None:
    seen: list[list[str]] = []
    answers: list[bytes] = []
    server = private_zookeeper.server
    with private_zookeeper.session(timeout_s=6) as session:
        session.hold_ephemeral("/ids/1", b"me")
        session.watch_children("/ids", seen.append)
        wait_for(lambda: bool(seen) and seen[-1] == ["1"])
        server.kill()
        wait_for(lambda: session.state is SessionState.SUSPENDED)
        reader = threading.Thread(target=lambda: answers.append(session.get("/ids/1").data))
        reader.start()
        time.sleep(0.3)
        server.start()
        reader.join()
        assert answers == [b"me"], "a call waits for the server to come back"
        session.create("/ids/2")
        wait_for(lambda: seen[-1] == ["1", "2"])
        server.pause()
        threading.Timer(1.0, server.resume).start()
        session.create("/ids/3")
        wait_for(lambda: seen[-1] == ["1", "2", "3"])


def test_a_call_ends_within_its_bound_when_no_server_is_left(
    private_zookeeper: ZooKeeperRoom, tmp_path: Path
) -> None:
    with private_zookeeper.session(timeout_s=2, call_timeout_s=1.0) as session:
        private_zookeeper.server.kill()
        started = time.monotonic()
        with pytest.raises(ZooKeeperUnavailableError, match="did not answer within 1 s"):
            session.get("/")
        assert time.monotonic() - started < 20
