"""A committed offset and its metadata in ZooKeeper.

Owns the child `metadata` of an offset's node. The offset's own node stays decimal text, as its other readers
expect (the paper's consumers, `headrace groups`). Both are written in one transaction; the metadata is valid
only if its zxid equals the offset's. So a paper-style commit, of the offset alone, invalidates it.
Calls block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple

from headrace.broker.groups.fencing import Coordinator, Guards
from headrace.broker.groups.room import GroupRoom, NoRoomError
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry, topics_created
from headrace.coordination.documents import INT64_MAX
from headrace.coordination.errors import BadVersionError, CorruptNodeError, NodeExistsError, NoNodeError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession
from headrace.wire.topic_names import TopicPartition

ATTEMPTS_MAX: Final = 5  # of a write, or of a read, that another write interrupts
AT_ONCE_MAX: Final = 100
"""Offsets in one transaction, which no other write to ZooKeeper comes between."""
AT_ONCE_MAX_BYTES: Final = 512 << 10  # ZooKeeper takes 1 MiB in one request
NODE_BYTES: Final = 128  # of a step, besides its path and data


class Committed(NamedTuple):
    """The next address to read, and the client's own metadata string; "" for none."""

    offset: int
    metadata: str = ""


Offsets = dict[TopicPartition, Committed]


def write(
    fence: Guards,
    group: str,
    offsets: Mapping[TopicPartition, Committed],
    coordinator: Coordinator,
    room: GroupRoom | None = None,
) -> None:
    """Stores offsets in their order, many in one transaction, as long as `coordinator` coordinates the group.
    If it fails, those before are stored. Raises `NotCoordinatorError`, `CoordinationError`, and in the end
    `NoRoomError`, if `room` had none for some of them: the others are stored.
    """
    guarded = fence.guard(group, coordinator)
    refused: set[TopicPartition] = set()
    refusal: NoRoomError | None = None
    for several in in_transactions(group, offsets):
        some = several
        if room is not None:
            try:
                room.take(group, _nodes(group, some))
            except NoRoomError as error:
                refusal = error
                some = _apart_from(error.nodes, group, some)
                refused |= several.keys() - some.keys()
                if not some:
                    continue
        try:
            guarded = _write(fence, group, some, coordinator, guarded)
        except BadVersionError:
            # Others create and delete one of these nodes again and again: it takes no other's offset along.
            for key, committed in some.items():
                guarded = _write(fence, group, {key: committed}, coordinator, guarded)
    if refusal is not None:
        raise NoRoomError(str(refusal), refusal.nodes, refused)


def _apart_from(nodes: Set[str], group: str, offsets: Offsets) -> Offsets:
    return {key: each for key, each in offsets.items() if not nodes & _nodes(group, {key: each}).keys()}


def in_transactions(group: str, offsets: Mapping[TopicPartition, Committed]) -> Iterator[Offsets]:
    """Yields the offsets in groups, each small enough for one transaction."""
    some: Offsets = {}
    size_bytes = 0
    for key, committed in offsets.items():
        nodes = _nodes(group, {key: committed})
        needed_bytes = sum(NODE_BYTES + len(path.encode()) + len(data) for path, data in nodes.items())
        if some and (len(some) == AT_ONCE_MAX or size_bytes + needed_bytes > AT_ONCE_MAX_BYTES):
            yield some
            some, size_bytes = {}, 0
        some[key] = committed
        size_bytes += needed_bytes
    if some:
        yield some


def _nodes(group: str, offsets: Mapping[TopicPartition, Committed]) -> dict[str, bytes]:
    """Returns the nodes to write; an offset's own comes before its metadata's, which is its child."""
    nodes = {}
    for key, committed in offsets.items():
        nodes[znodes.offset(group, *key)] = str(committed.offset).encode()
        if committed.metadata:
            nodes[_metadata_path(group, *key)] = committed.metadata.encode()
    return nodes


def _write(
    fence: Guards,
    group: str,
    offsets: Mapping[TopicPartition, Committed],
    coordinator: Coordinator,
    guarded: Mapping[str, int],
) -> Mapping[str, int]:
    """Stores offsets in one transaction; returns the guard that held, for the next one."""
    session, nodes = fence.session, _nodes(group, offsets)
    there: Collection[str] = nodes  # most commits are not a group's first
    for _ in range(ATTEMPTS_MAX):
        transaction = session.transaction()
        for guarding, version in guarded.items():
            transaction.check(guarding, version=version)
        for path, data in nodes.items():
            put = transaction.set if path in there else transaction.create
            put(path, data)
        try:
            transaction.commit()
            return guarded
        except BadVersionError:  # a broker has registered: the group may be its own now
            guarded = fence.anew(group, coordinator)
            continue
        except NodeExistsError:
            pass
        except NoNodeError:
            guarded = fence.anew(group, coordinator)
            for topic in dict.fromkeys(topic for topic, _ in offsets):
                session.ensure_path(znodes.offsets(group, topic))
        stats = zip(nodes, session.stat_many(nodes), strict=True)
        there = {path for path, stat in stats if stat is not None}
    raise BadVersionError(
        f"{next(iter(nodes))} was created or deleted concurrently in {ATTEMPTS_MAX} attempts; retry"
    )


def read(session: ZooKeeperSession, group: str, wanted: Iterable[TopicPartition] | None) -> Offsets:
    """Returns the offsets of `wanted` (None: all of the group's); partitions without one are left out, and
    those of topics that were deleted.

    Raises `CoordinationError`.
    """
    if wanted is None:
        wanted = ConsumerRegistry(session, group).all_offsets()
    wanted = list(wanted)
    created = topics_created(session, (topic for topic, _ in wanted))
    left = [key for key in wanted if key[0] in created and key[1] >= 0]
    found: Offsets = {}
    for _ in range(ATTEMPTS_MAX):
        # Offsets are read before their metadata: if the metadata is newer, a write came in between.
        paths = [path for key in left for path in (znodes.offset(group, *key), _metadata_path(group, *key))]
        nodes = iter(session.get_many_small(paths))
        torn = []
        for key, node, metadata in zip(left, nodes, nodes, strict=True):
            if node is None and metadata is None:
                continue
            if node is None or (metadata and metadata.stat.modified_zxid > node.stat.modified_zxid):
                torn.append(key)
            elif node.stat.modified_zxid > created[key[0]]:
                found[key] = Committed(_offset(group, key, node), _metadata(node, metadata))
        left = torn
        if not left:
            return found
    raise BadVersionError(f"offsets of group {group} changed concurrently in {ATTEMPTS_MAX} reads; retry")


def _metadata_path(group: str, topic: str, partition: int) -> str:
    return f"{znodes.offset(group, topic, partition)}/metadata"


def _offset(group: str, key: TopicPartition, node: Node) -> int:
    with contextlib.suppress(ValueError):
        offset = int(node.data)
        if abs(offset) <= INT64_MAX:
            return offset
    path = znodes.offset(group, *key)
    raise CorruptNodeError(f"{path}: an offset must be a decimal number, found {node.data[:40]!r}")


def _metadata(node: Node, metadata: Node | None) -> str:
    if metadata is None or metadata.stat.modified_zxid != node.stat.modified_zxid:
        return ""
    return metadata.data.decode(errors="replace")
