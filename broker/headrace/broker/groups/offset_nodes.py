"""A committed offset and its metadata in ZooKeeper.

Owns the child `metadata` of an offset's node. The offset's own node stays decimal text, as its other readers
expect (the paper's consumers, `headrace groups`). Both are written in one transaction; the metadata is valid
only if its zxid equals the offset's. So a paper-style commit, of the offset alone, invalidates it.
Calls block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from headrace.broker.groups.fencing import Coordinator, guard
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry, topics_created
from headrace.coordination.documents import INT64_MAX
from headrace.coordination.errors import BadVersionError, CorruptNodeError, NodeExistsError, NoNodeError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession

ATTEMPTS_MAX: Final = 5  # of a write, or of a read, that another write interrupts

TopicPartition = tuple[str, int]


class Committed(NamedTuple):
    """The next address to read, and the client's own metadata string; "" for none."""

    offset: int
    metadata: str = ""


Offsets = dict[TopicPartition, Committed]


def write(
    session: ZooKeeperSession,
    group: str,
    offsets: Mapping[TopicPartition, Committed],
    coordinator: Coordinator,
) -> None:
    """Stores offsets, one after the other, as long as `coordinator` coordinates the group. Raises
    `NotCoordinatorError`, `CoordinationError`.
    """
    guarded = guard(session, group, coordinator)
    for key, committed in offsets.items():
        guarded = _write(session, group, key, committed, coordinator, guarded)


def _write(
    session: ZooKeeperSession,
    group: str,
    key: TopicPartition,
    committed: Committed,
    coordinator: Coordinator,
    guarded: Mapping[str, int],
) -> Mapping[str, int]:
    """Stores one offset; returns the guard that held, for the next one."""
    topic, partition = key
    path = znodes.offset(group, topic, partition)
    nodes = {path: str(committed.offset)}
    if committed.metadata:
        nodes[_metadata_path(group, topic, partition)] = committed.metadata
    for _ in range(ATTEMPTS_MAX):
        transaction = session.transaction()
        for guarding, version in guarded.items():
            transaction.check(guarding, version=version)
        for node_path, data in nodes.items():
            put = transaction.create if session.exists(node_path) is None else transaction.set
            put(node_path, data.encode())
        try:
            transaction.commit()
            return guarded
        except NodeExistsError:
            continue
        except BadVersionError:  # a broker has registered: the group may be its own now
            guarded = guard(session, group, coordinator)
        except NoNodeError:
            guarded = guard(session, group, coordinator)
            session.ensure_path(znodes.offsets(group, topic))
    raise BadVersionError(f"{path} was created or deleted concurrently in {ATTEMPTS_MAX} attempts; retry")


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
