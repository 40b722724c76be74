"""The registries of a consumer group: members (ephemeral), owners of partitions (ephemeral), offsets
(persistent) (paper §3.2).

An offset goes with its topic: one that was stored before the topic of that name was created belongs to a
deleted topic, and is not read. ZooKeeper's transaction ids tell which came first.

Owns `/consumers/<group>`. `coordination.assignment` computes which member owns what; the client decides when
to rebalance: release its partitions, read members and partitions, compute, claim, read the offsets, resume.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from headrace.coordination import documents, znodes
from headrace.coordination.errors import (
    BadVersionError,
    CoordinationError,
    CorruptNodeError,
    NodeExistsError,
    NodeHeldError,
    NoNodeError,
    NotEmptyError,
)
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch
from headrace.wire.topic_names import TopicPartition, is_topic_name

logger = logging.getLogger(__name__)

CLAIM_POLL_S: Final = 0.05
STREAMS_MAX: Final = 10_000  # of one member and topic: each member makes a list of those of all
GROUP_NAME_MAX_BYTES: Final = 1024
COMMITS_MAX: Final = 5  # attempts to store an offset whose node others create or delete meanwhile

Subscription = Mapping[str, int]  # topic → number of streams


class OtherTopicError(CoordinationError):
    """The topic of an offset was deleted; another one may have its name."""


class NotOwnerError(CoordinationError):
    """Another member owns the partition now. Stop reading it and rebalance."""


class Owner(NamedTuple):
    """The member that reads a partition, and the ZooKeeper session that holds its claim."""

    name: str
    session_id: int


def check_group_name(group: str) -> None:
    """Raises `ValueError` for an empty or too long name."""
    if not is_group_name(group):
        raise ValueError(
            f"{group[:80]!r} is not a group name: it must have 1 to {GROUP_NAME_MAX_BYTES} bytes of UTF-8"
        )


def check_member_id(member_id: str) -> None:
    """Raises `ValueError` for what cannot be the name of a member's node in ZooKeeper."""
    if not is_group_name(member_id) or znodes.group_element(member_id) != member_id:
        raise ValueError(
            f"{member_id[:80]!r} is not a member's id: it must have 1 to {GROUP_NAME_MAX_BYTES} bytes of"
            " UTF-8, and nothing that ZooKeeper refuses in the name of a node, such as / or a line's end"
        )


def is_group_name(group: str) -> bool:
    """Whether a group of this name can have members and offsets."""
    try:
        return 0 < len(group.encode()) <= GROUP_NAME_MAX_BYTES
    except UnicodeEncodeError:
        return False


def groups(session: ZooKeeperSession) -> list[str]:
    """Returns all groups that have stored anything."""
    return [znodes.group_name(element) for element in session.children_or_empty(znodes.CONSUMERS)]


def registering_here(session: ZooKeeperSession, names: Iterable[str]) -> set[str]:
    """Returns those groups whose members register in ZooKeeper, or once did: the paper's kind.

    Groups of Kafka's own protocol have only their offsets here.
    """
    wanted = list(names)
    stats = session.stat_many(znodes.members(name) for name in wanted)
    return {name for name, stat in zip(wanted, stats, strict=True) if stat is not None}


def stored_topics(session: ZooKeeperSession, names: Iterable[str]) -> dict[str, set[str]]:
    """Returns the present topics for which each group has stored something."""
    stored = {name: set(session.children_or_empty(znodes.group_offsets(name))) for name in names}
    present = topics_created(session, (topic for topics in stored.values() for topic in topics)).keys()
    return {name: topics & present for name, topics in stored.items()}


def topics_created(session: ZooKeeperSession, topics: Iterable[str]) -> dict[str, int]:
    """Returns when each topic was created, as a transaction id; topics that do not exist are left out.

    Read it before the offsets: an offset that is older than its topic belongs to a deleted one.
    """
    names = sorted({name for name in topics if is_topic_name(name)})
    stats = session.stat_many(znodes.topic(name) for name in names)
    return {name: stat.created_zxid for name, stat in zip(names, stats, strict=True) if stat is not None}


def forget_topic(session: ZooKeeperSession, topic: str) -> int:
    """Deletes the offsets that groups stored for a deleted topic of this name; returns how many."""
    names = groups(session)
    stats = session.stat_many(znodes.offsets(group, topic) for group in names)
    return sum(
        _forget(session, group, topic) for group, stat in zip(names, stats, strict=True) if stat is not None
    )


def _forget(session: ZooKeeperSession, group: str, topic: str) -> int:
    path = znodes.offsets(group, topic)
    forgotten = 0
    for element in session.children_or_empty(path):
        offset = f"{path}/{element}"
        stat = session.exists(offset)
        created_zxid = topics_created(session, [topic]).get(topic)
        if stat is None or (created_zxid is not None and stat.modified_zxid > created_zxid):
            continue
        change = session.transaction()
        for child in session.children_or_empty(offset):
            change.delete(f"{offset}/{child}")
        try:
            # The version makes this fail if the group has just stored an offset of a new topic.
            change.delete(offset, version=stat.version).commit()
            forgotten += 1
        except (BadVersionError, NoNodeError, NotEmptyError):
            continue
    with contextlib.suppress(NoNodeError, NotEmptyError):
        session.delete(path)
    return forgotten


class ConsumerRegistry:
    """The registries of one group."""

    def __init__(self, session: ZooKeeperSession, group: str) -> None:
        check_group_name(group)
        self._session = session
        self.group = group
        self._claimed: dict[TopicPartition, str] = {}  # by `claim_all`, and perhaps not released since

    # --- members ---

    def join(self, member_id: str, subscription: Subscription) -> HeldNode:
        """Registers a member and its subscription; survives session losses. `.release()` leaves the group."""
        data = documents.encode({"subscription": dict(subscription)})
        return self._session.hold_ephemeral(znodes.member(self.group, member_id), data)

    def members(self) -> dict[str, dict[str, int]]:
        """Returns the live members, each with its subscription."""
        return self._read_members(self._session.children_or_empty(znodes.members(self.group)))

    def watch_members(self, callback: Callable[[dict[str, dict[str, int]]], None]) -> Watch:
        """Calls `callback` with `members()`, now and after every change; runs in the session's callback
        thread."""
        path = znodes.members(self.group)
        return self._session.watch_children(path, lambda names: callback(self._read_members(names)))

    # --- owners ---

    def claim(self, topic: str, partition: int, owner: str, *, wait_s: float) -> None:
        """Claims a partition for `owner`; the claim ends with this session.

        Waits, at most `wait_s`, for another owner that has not released it yet, or that died and whose
        session has not expired; then raises `NodeHeldError`.
        """
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
                name = holder.name if holder else "another member"
                raise NodeHeldError(
                    f"{topic}-{partition} is still owned by {name} after {wait_s:g} s (group {self.group})"
                )
            time.sleep(CLAIM_POLL_S)

    def claim_all(self, claims: Mapping[TopicPartition, str], *, wait_s: float) -> None:
        """Claims these partitions (→ their owners), and no others, within `wait_s`; releases all of them on
        `NodeHeldError`. What earlier calls claimed is released, too: its release may have failed, or its
        owner have given it up as if its session were the one that ended."""
        self._release_unwanted(claims)
        deadline = time.monotonic() + wait_s
        try:
            for (topic, partition), owner in sorted(claims.items()):
                self._claimed[topic, partition] = owner
                self.claim(topic, partition, owner, wait_s=max(0.0, deadline - time.monotonic()))
        except NodeHeldError:
            self._release_unwanted({})
            raise

    def _release_unwanted(self, claims: Mapping[TopicPartition, str]) -> None:
        """Releases what earlier calls of `claim_all` may have left claimed, except `claims`."""
        for key, owner in list(self._claimed.items()):
            if claims.get(key) != owner:
                self.release(*key, owner)

    def release(self, topic: str, partition: int, owner: str) -> None:
        """Releases a partition; does nothing if `owner` does not own it in this session."""
        path = znodes.owner(self.group, topic, partition)
        if self._owner(self._session.get_or_none(path)) == Owner(owner, self._session.session_id):
            with suppress(NoNodeError):
                self._session.delete(path)
        if self._claimed.get((topic, partition)) == owner:
            del self._claimed[topic, partition]

    def owners(self, topic: str) -> dict[int, Owner]:
        """Returns the owners of a topic's partitions; partitions without an owner are left out."""
        partitions = self._numbers(znodes.owners(self.group, topic))
        nodes = self._session.get_many_small(
            znodes.owner(self.group, topic, partition) for partition in partitions
        )
        found = {p: self._owner(node) for p, node in zip(partitions, nodes, strict=True)}
        return {p: owner for p, owner in found.items() if owner is not None}

    # --- offsets ---

    def commit(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        owner: str | None = None,
        created_zxid: int | None = None,
    ) -> None:
        """Stores the next offset to read.

        With `owner`, raises `NotOwnerError` unless this session holds that owner's claim: a member that was
        declared dead cannot reset the group's offset. With `created_zxid`, raises `OtherTopicError` unless
        the topic was created then: an offset of a deleted topic is none of the one that has its name now.
        """
        path = znodes.offset(self.group, topic, partition)
        data = str(offset).encode()
        for _ in range(COMMITS_MAX):
            stored = self._session.exists(path)
            if owner is not None:
                self._check_owner(topic, partition, owner)
            if created_zxid not in (None, topics_created(self._session, [topic]).get(topic)):
                raise OtherTopicError(
                    f"offset {offset} of {topic}-{partition} is not stored for group {self.group}: the topic "
                    "was deleted since it was read"
                )
            try:
                if stored is None:
                    self._session.create(path, data, make_parents=True)
                else:
                    # Read before the owner check: the write fails if another owner has committed since.
                    self._session.set(path, data, version=-1 if owner is None else stored.version)
                return
            except (NodeExistsError, NoNodeError):
                continue  # another one has created it, or its topic was deleted: is it the owner's still?
        raise BadVersionError(f"{path} was created or deleted concurrently in {COMMITS_MAX} attempts; retry")

    def _check_owner(self, topic: str, partition: int, owner: str) -> None:
        """Raises `NotOwnerError` unless this session holds `owner`'s claim."""
        holder = self._owner(self._session.get_or_none(znodes.owner(self.group, topic, partition)))
        if holder != Owner(owner, self._session.session_id):
            problem = f"{holder.name} owns it" if holder else "it has no owner"
            raise NotOwnerError(
                f"{owner} may not commit {topic}-{partition} of group {self.group}: {problem}"
            )

    def created(self, topics: Iterable[str]) -> dict[str, int]:
        """See `topics_created`."""
        return topics_created(self._session, topics)

    def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Returns the stored next offsets to read; None where nothing is stored for the present topic, or a
        negative one, by which clients of Kafka's protocol say the same.
        """
        keys = list(partitions)
        created = topics_created(self._session, (topic for topic, _ in keys))
        live = [key for key in keys if key[0] in created]
        paths = [znodes.offset(self.group, topic, partition) for topic, partition in live]
        nodes = self._session.get_many_small(paths)
        found: dict[TopicPartition, int | None] = dict.fromkeys(keys)
        for key, path, node in zip(live, paths, nodes, strict=True):
            if node is not None and node.stat.modified_zxid > created[key[0]]:
                offset = _parse_offset(path, node.data)
                found[key] = offset if offset >= 0 else None
        return found

    def began(self, topics: Iterable[str]) -> dict[str, int]:
        """Returns since which transaction the group is known to read each topic: that in which its first live
        member subscribed to it, or its first offset of the present topic was stored. Others are left out."""
        found: dict[str, list[int]] = {topic: [] for topic in topics}
        names = self._session.children_or_empty(znodes.members(self.group))
        paths = [znodes.member(self.group, name) for name in names]
        for path, node in zip(paths, self._session.get_many(paths), strict=True):
            if node is not None:
                with suppress(CorruptNodeError):
                    for topic in found.keys() & _parse_subscription(path, node.data).keys():
                        found[topic].append(node.stat.created_zxid)
        for topic, created_zxid in topics_created(self._session, found).items():
            partitions = self._numbers(znodes.offsets(self.group, topic))
            stats = self._session.stat_many(znodes.offset(self.group, topic, each) for each in partitions)
            zxids = (stat.created_zxid for stat in stats if stat is not None)
            found[topic] += [zxid for zxid in zxids if zxid > created_zxid]
        return {topic: min(zxids) for topic, zxids in found.items() if zxids}

    def all_offsets(self) -> dict[TopicPartition, int]:
        """Returns all offsets that the group has stored for present topics."""
        keys = [
            (topic, partition)
            for topic in self._session.children_or_empty(znodes.group_offsets(self.group))
            for partition in self._numbers(znodes.offsets(self.group, topic))
        ]
        return {key: offset for key, offset in self.offsets(keys).items() if offset is not None}

    def _read_members(self, names: list[str]) -> dict[str, dict[str, int]]:
        paths = [znodes.member(self.group, name) for name in names]
        nodes = zip(names, paths, self._session.get_many(paths), strict=True)
        found: dict[str, dict[str, int]] = {}
        for name, path, node in nodes:
            if node is None:
                continue
            try:
                found[name] = _parse_subscription(path, node.data)
            except CorruptNodeError as error:
                # It would stop all others: no member could share the partitions out any more.
                logger.error("group %s: a member is left out: %s", self.group, error)
        return found

    def _numbers(self, path: str) -> list[int]:
        return documents.numbers(self._session.children_or_empty(path))

    @staticmethod
    def _owner(node: Node | None) -> Owner | None:
        return None if node is None else Owner(node.data.decode(errors="replace"), node.stat.owner_session)


def _parse_subscription(path: str, data: bytes) -> dict[str, int]:
    subscription = documents.decode(path, data).get("subscription")
    if not isinstance(subscription, dict) or not all(
        isinstance(count, int) and 0 <= count <= STREAMS_MAX for count in subscription.values()
    ):
        raise CorruptNodeError(f"{path}: no subscription in {data[:80]!r}")
    return subscription


def _parse_offset(path: str, data: bytes) -> int:
    with contextlib.suppress(ValueError):
        offset = int(data)
        if abs(offset) <= documents.INT64_MAX:
            return offset
    raise CorruptNodeError(f"{path}: an offset must be a decimal number, found {data[:40]!r}")
