"""A group's registries: members, claims that wait for dead owners, offsets that no dead member resets."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fix_zookeeper import ZooKeeperRoom, has_topics
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry, NotOwnerError, groups
from headrace.coordination.errors import (
    CorruptNodeError,
    NodeHeldError,
    ZooKeeperUnavailableError,
)


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_members_join_leave_and_come_back(zookeeper: ZooKeeperRoom) -> None:
    seen: list[dict[str, dict[str, int]]] = []
    with zookeeper.session(timeout_s=2) as one, zookeeper.session() as two:
        registry = ConsumerRegistry(one, "g")
        ConsumerRegistry(two, "g").watch_members(seen.append)
        held = registry.join("a", {"t": 2})
        ConsumerRegistry(two, "g").join("b", {"t": 1, "u": 1})
        wait_for(lambda: seen[-1:] == [{"a": {"t": 2}, "b": {"t": 1, "u": 1}}])
        assert groups(one) == ["g"]
        zookeeper.expire(one)
        wait_for(lambda: one.wait_connected(0) and registry.members().keys() == {"a", "b"})
        held.release()
        wait_for(lambda: seen[-1] == {"b": {"t": 1, "u": 1}})


def test_a_claim_waits_for_the_previous_owner(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as one, zookeeper.session() as two:
        first, second = ConsumerRegistry(one, "g"), ConsumerRegistry(two, "g")
        first.claim("t", 0, "a-0", wait_s=0)
        first.claim("t", 0, "a-0", wait_s=0)  # the same owner again
        with pytest.raises(NodeHeldError, match=r"t-0 is still owned by a-0 after 0\.2 s \(group g\)"):
            second.claim("t", 0, "b-0", wait_s=0.2)
        with pytest.raises(NodeHeldError):
            second.claim("t", 0, "a-0", wait_s=0)  # the same name in another session is another owner
        threading.Timer(0.3, first.release, ("t", 0, "a-0")).start()
        second.claim("t", 0, "b-0", wait_s=10)
        owner = first.owners("t")[0]
        assert (owner.name, owner.session_id) == ("b-0", two.session_id)
        first.release("t", 0, "a-0")
        assert first.owners("t").keys() == {0}, "releasing another owner's partition does nothing"


def test_claims_of_a_dead_session_are_taken_over(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session(timeout_s=1) as dead, zookeeper.session() as living:
        ConsumerRegistry(dead, "g").claim("t", 1, "a-0", wait_s=0)
        threading.Timer(0.3, zookeeper.expire, (dead,)).start()
        ConsumerRegistry(living, "g").claim_all({("t", 0): "b-0", ("t", 1): "b-0"}, wait_s=10)
        assert {p: o.name for p, o in ConsumerRegistry(living, "g").owners("t").items()} == {
            0: "b-0",
            1: "b-0",
        }


def test_claiming_all_or_none(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as one, zookeeper.session() as two:
        ConsumerRegistry(one, "g").claim("t", 2, "a-0", wait_s=0)
        second = ConsumerRegistry(two, "g")
        with pytest.raises(NodeHeldError):
            second.claim_all({("t", p): "b-0" for p in range(4)}, wait_s=0.2)
        assert second.owners("t").keys() == {2}


def test_claims_that_a_failure_left_behind_are_released_by_the_next_try(
    zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other member could ever have claimed them: this member's session lives on."""
    with zookeeper.session() as one, zookeeper.session() as two:
        registry, other = ConsumerRegistry(one, "g"), ConsumerRegistry(two, "g")
        create = one.create
        calls: list[object] = []

        def fails_once(*arguments: Any, **options: Any) -> None:
            calls.append(arguments)
            create(*arguments, **options)
            if len(calls) == 2:
                raise ZooKeeperUnavailableError("no answer")  # although it was done

        monkeypatch.setattr(one, "create", fails_once)
        with pytest.raises(ZooKeeperUnavailableError):
            registry.claim_all({("t", p): "a-0" for p in range(3)}, wait_s=1)
        assert registry.owners("t").keys() == {0, 1}
        registry.claim_all({("t", 1): "a-0"}, wait_s=1)
        other.claim_all({("t", 0): "b-0", ("t", 2): "b-0"}, wait_s=1)
        assert {p: o.name for p, o in other.owners("t").items()} == {0: "b-0", 1: "a-0", 2: "b-0"}


def test_offsets_are_text_and_kept(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        has_topics(session, "t", "u")
        registry = ConsumerRegistry(session, "g")
        assert registry.offsets([("t", 0)]) == {("t", 0): None}
        registry.commit("t", 0, 4711)
        registry.commit("t", 0, 2**40)
        registry.commit("u", 3, 5)
        assert session.get("/consumers/g/offsets/t/0").data == b"1099511627776"
        assert registry.offsets([("t", 0), ("t", 1)]) == {("t", 0): 2**40, ("t", 1): None}
        assert registry.all_offsets() == {("t", 0): 2**40, ("u", 3): 5}
        session.set(znodes.offset("g", "u", 3), b"many")
        with pytest.raises(
            CorruptNodeError, match=r"offsets/u/3: an offset must be a decimal number, found b'many'"
        ):
            registry.all_offsets()


def test_only_the_owner_commits(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session(timeout_s=2) as one, zookeeper.session() as two:
        has_topics(one, "t")
        zombie, heir = ConsumerRegistry(one, "g"), ConsumerRegistry(two, "g")
        zombie.claim("t", 0, "a-0", wait_s=0)
        zombie.commit("t", 0, 10, owner="a-0")
        zombie.commit("t", 0, 20, owner="a-0")
        zookeeper.expire(one)
        heir.claim("t", 0, "b-0", wait_s=10)
        with pytest.raises(NotOwnerError, match=r"a-0 may not commit t-0 of group g: b-0 owns it"):
            zombie.commit("t", 0, 30, owner="a-0")
        assert heir.offsets([("t", 0)]) == {("t", 0): 20}
        with pytest.raises(NotOwnerError, match="it has no owner"):
            heir.commit("t", 1, 1, owner="b-0")


@pytest.mark.parametrize("name", ["", "a" * 1025, "ä" * 513, "\ud800"], ids=["none", "long", "wide", "half"])
def test_names_that_no_group_may_have(zookeeper: ZooKeeperRoom, name: str) -> None:
    with zookeeper.session() as session, pytest.raises(ValueError, match="is not a group name"):
        ConsumerRegistry(session, name)
