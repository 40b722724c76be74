"""A consumer group's registries: members (ephemeral), owners of partitions (ephemeral), offsets (persistent)
(paper §3.2).

Owns `/consumers/<group>`. Decides nothing: who should own what is `coordination.assignment`, and when to ask
again is the client's business. A rebalance goes: release what one owns, read members and partitions,
compute, claim, read the offsets, go on.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from headrace.coordination import documents, znodes
from headrace.coordination.errors import (
    CoordinationError,
    CorruptNodeError,
    NodeExistsError,
    NodeHeldError,
    NoNodeError,
)
from headrace.coordination.session import HeldNode, Node, Watch, ZooKeeperSession

CLAIM_POLL_S: Final = 0.05

TopicPartition = tuple[str, int]
Subscription = Mapping[str, int]
"""Topic → number of streams."""


class NotOwnerError(CoordinationError):
    """The partition belongs to somebody else by now: stop reading it, take part in the rebalance."""


class Owner(NamedTuple):
    """Who reads a partition, and the ZooKeeper session that keeps the claim alive."""

    name: str
    session_id: int


def check_group_name(group: str) -> None:
    """Raises `ValueError` for a name that cannot be one node."""
    if not group or "/" in group or group in {".", ".."} or any(ord(c) < 32 for c in group):
        raise ValueError(
            f"{group!r} is no group name: it must be one path element (no '/', no control characters)"
        )


def groups(session: ZooKeeperSession) -> list[str]:
    """All groups that ever stored anything here."""
    return session.children_or_empty(znodes.CONSUMERS)


class ConsumerRegistry:
    """The registries of one group."""

    def __init__(self, session: ZooKeeperSession, group: str) -> None:
        check_group_name(group)
        self._session = session
        self.group = group

    # members

    def join(self, member_id: str, subscription: Subscription) -> HeldNode:
        """Announces a member and what it wants; put back by itself after a session loss; `.release()` leaves
        the group."""
        data = documents.encode({"subscription": dict(subscription)})
        return self._session.hold_ephemeral(znodes.member(self.group, member_id), data)

    def members(self) -> dict[str, dict[str, int]]:
        """The members that are alive now, each with its subscription (topic → number of streams)."""
        return self._read_members(self._session.children_or_empty(znodes.members(self.group)))

    def watch_members(self, callback: Callable[[dict[str, dict[str, int]]], None]) -> Watch:
        """Calls `callback` in the session's callback thread with `members()`, now and after every change."""
        path = znodes.members(self.group)
        return self._session.watch_children(path, lambda names: callback(self._read_members(names)))

    # owners

    def claim(self, topic: str, partition: int, owner: str, *, wait_s: float) -> None:
        """Claims a partition for `owner`. A claim that somebody else still holds (he has not yet released,
        or died and his session lives on) is waited for, at most `wait_s`; then `NodeHeldError`. The claim
        dies with our session."""
        path = znodes.owner(self.group, topic, partition)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return self._session.create(path, owner.encode(), ephemeral=True, make_parents=True)
            except NodeExistsError:
                holder = self._owner(self._session.get_or_none(path))
            if holder == Owner(owner, self._session.session_id):
                return None
            if time.monotonic() >= deadline:
                name = holder.name if holder else "somebody"
                raise NodeHeldError(
                    f"{topic}-{partition} is still owned by {name} after {wait_s:g} s (group {self.group})"
                )
            time.sleep(CLAIM_POLL_S)

    def claim_all(self, claims: Mapping[TopicPartition, str], *, wait_s: float) -> None:
        """Claims several partitions (→ their owners) within one bound, all or none: on `NodeHeldError` what
        it got is given back."""
        deadline = time.monotonic() + wait_s
        got: list[TopicPartition] = []
        try:
            for (topic, partition), owner in sorted(claims.items()):
                self.claim(topic, partition, owner, wait_s=max(0.0, deadline - time.monotonic()))
                got.append((topic, partition))
        except NodeHeldError:
            for topic, partition in got:
                self.release(topic, partition, claims[topic, partition])
            raise

    def release(self, topic: str, partition: int, owner: str) -> None:
        """Gives a partition up; nothing happens if `owner` does not own it (any more)."""
        path = znodes.owner(self.group, topic, partition)
        if self._owner(self._session.get_or_none(path)) == Owner(owner, self._session.session_id):
            try:
                self._session.delete(path)
            except NoNodeError:
                return

    def owners(self, topic: str) -> dict[int, Owner]:
        """The partitions of a topic that somebody owns now."""
        partitions = self._numbers(znodes.owners(self.group, topic))
        nodes = self._session.get_many(znodes.owner(self.group, topic, partition) for partition in partitions)
        found = {p: self._owner(node) for p, node in zip(partitions, nodes, strict=True)}
        return {p: owner for p, owner in found.items() if owner is not None}

    # offsets

    def commit(self, topic: str, partition: int, offset: int, *, owner: str | None = None) -> None:
        """Stores the next address to read. With `owner`, only while he owns the partition by this session,
        else `NotOwnerError`: a member that was thought dead cannot set the group back."""
        path = znodes.offset(self.group, topic, partition)
        data = str(offset).encode()
        stored = self._session.exists(path)
        if owner is not None:
            holder = self._owner(self._session.get_or_none(znodes.owner(self.group, topic, partition)))
            if holder != Owner(owner, self._session.session_id):
                now = f"owned by {holder.name}" if holder else "owned by nobody"
                raise NotOwnerError(
                    f"{owner} may not commit {topic}-{partition} of group {self.group}: it is {now}"
                )
        if stored is None:
            try:
                return self._session.create(path, data, make_parents=True)
            except NodeExistsError:
                stored = None
        # With an owner the version seen before the check closes the gap between the check and the write.
        version = -1 if owner is None or stored is None else stored.version
        self._session.set(path, data, version=version)
        return None

    def offset(self, topic: str, partition: int) -> int | None:
        """The stored next address to read; None if nothing is stored."""
        return self.offsets([(topic, partition)])[topic, partition]

    def offsets(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        keys = list(wanted)
        paths = [znodes.offset(self.group, topic, partition) for topic, partition in keys]
        nodes = self._session.get_many(paths)
        return {
            key: None if node is None else _parse_offset(path, node.data)
            for key, path, node in zip(keys, paths, nodes, strict=True)
        }

    def all_offsets(self) -> dict[TopicPartition, int]:
        """Everything the group has stored."""
        keys = [
            (topic, partition)
            for topic in self._session.children_or_empty(znodes.group_offsets(self.group))
            for partition in self._numbers(znodes.offsets(self.group, topic))
        ]
        return {key: offset for key, offset in self.offsets(keys).items() if offset is not None}

    def delete(self) -> None:
        """Forgets the group, with all its offsets. Raises `CoordinationError` while it has members."""
        if self.members():
            raise CoordinationError(f"group {self.group} has members; stop them before deleting it")
        if self._session.exists(znodes.group(self.group)) is not None:
            self._session.delete(znodes.group(self.group), recursive=True)

    def _read_members(self, names: list[str]) -> dict[str, dict[str, int]]:
        paths = [znodes.member(self.group, name) for name in names]
        nodes = zip(names, paths, self._session.get_many(paths), strict=True)
        return {name: _parse_subscription(path, node.data) for name, path, node in nodes if node is not None}

    def _numbers(self, path: str) -> list[int]:
        return sorted(int(name) for name in self._session.children_or_empty(path) if name.isdecimal())

    @staticmethod
    def _owner(node: Node | None) -> Owner | None:
        return None if node is None else Owner(node.data.decode(), node.stat.owner_session)


def _parse_subscription(path: str, data: bytes) -> dict[str, int]:
    subscription = documents.decode(path, data).get("subscription")
    if not isinstance(subscription, dict) or not all(isinstance(n, int) for n in subscription.values()):
        raise CorruptNodeError(f"{path}: no subscription in {data[:80]!r}")
    return subscription


def _parse_offset(path: str, data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise CorruptNodeError(f"{path}: an offset must be a decimal number, found {data[:40]!r}") from None
