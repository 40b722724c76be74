"""Deletes a group with its offsets, or some of them, as long as this broker coordinates it (`fencing`).

Each offset is deleted only as it was read: a coordinator that hangs, and was replaced, deletes nothing that
was stored since. All other nodes are deleted one by one, and only empty ones: what comes meanwhile stays.
Calls block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Set
from typing import Final

from headrace.broker.groups.fencing import Coordinator, guard
from headrace.broker.groups.generation_nodes import without_members
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.errors import BadVersionError, CoordinationError, NoNodeError, NotEmptyError
from headrace.coordination.nodes import NodeStat
from headrace.coordination.session import ZooKeeperSession

ATTEMPTS_MAX: Final = 5  # of a deletion that others' writes interrupt
OFFSETS_PER_TRANSACTION_MAX: Final = 100
"""Of the longest group's and topic's name these are 0.7 MB; ZooKeeper takes 1 MB at once."""


class NoGroupError(CoordinationError):
    """Nothing is stored of this group."""


def delete(session: ZooKeeperSession, group: str, coordinator: Coordinator) -> bool:
    """Deletes a group; False if there is none.

    Raises `NotCoordinatorError`, and `CoordinationError` while members are known in ZooKeeper.
    """
    for _ in range(ATTEMPTS_MAX):
        if session.exists(znodes.group(group)) is None:
            return False
        if ConsumerRegistry(session, group).members() or without_members(session, group) is None:
            raise CoordinationError(f"group {group} has members; stop them before deleting it")
        if delete_unchanged(session, group, coordinator, stored(session, group)):
            return True
    raise BadVersionError(f"group {group} changed concurrently in {ATTEMPTS_MAX} attempts; retry")


def delete_offsets(
    session: ZooKeeperSession,
    group: str,
    keys: Iterable[tuple[str, int]],
    coordinator: Coordinator,
    members: Mapping[str, int],
) -> Set[str]:
    """Deletes the offsets of these partitions; returns the topics whose offsets stay, because members that
    are registered in ZooKeeper read them. An offset that is not there counts as deleted. `members`: the
    versions of the nodes from which it is known what members of Kafka's protocol read.

    Raises `NoGroupError`, `NotCoordinatorError`, `CoordinationError`.
    """
    if session.exists(znodes.group(group)) is None:
        raise NoGroupError(f"there is no group {group!r}")
    registered = ConsumerRegistry(session, group).members()
    read = {topic for subscription in registered.values() for topic in subscription}
    unread = [key for key in keys if key[0] not in read]
    for _ in range(ATTEMPTS_MAX):
        found = _present(session, [znodes.offset(group, *key) for key in unread])
        if _delete_offsets(session, group, coordinator, found, members):
            break
    else:
        raise BadVersionError(
            f"offsets of group {group} changed concurrently in {ATTEMPTS_MAX} attempts; retry"
        )
    for topic in {topic for topic, _ in unread}:
        _delete_empty(session, znodes.offsets(group, topic))
    return read


def stored(session: ZooKeeperSession, group: str) -> dict[str, NodeStat]:
    """Returns the nodes of a group's offsets."""
    topics = _children(session, znodes.group_offsets(group))
    found = zip(topics, session.children_many(topics), strict=True)
    paths = [f"{topic}/{element}" for topic, elements in found for element in elements or ()]
    return _present(session, paths)


def _present(session: ZooKeeperSession, paths: list[str]) -> dict[str, NodeStat]:
    """Returns those of these nodes that are there."""
    stats = zip(paths, session.stat_many(paths), strict=True)
    return {path: stat for path, stat in stats if stat is not None}


def delete_unchanged(
    session: ZooKeeperSession, group: str, coordinator: Coordinator, offsets: Mapping[str, NodeStat]
) -> bool:
    """Deletes a group whose offsets are still as they were read; False if somebody has changed them, or if
    members are stored.
    """
    node = without_members(session, group)
    if node is None or not _delete_offsets(session, group, coordinator, offsets, node):
        return False
    for path, version in node.items():
        with contextlib.suppress(NoNodeError, BadVersionError):  # a member that has joined since stays
            session.delete(path, version=version)
    for parent in (znodes.group_offsets(group), znodes.group_owners(group)):
        for path in (*_children(session, parent), parent):
            _delete_empty(session, path)
    for path in (znodes.members(group), znodes.idle(group), znodes.group(group)):
        _delete_empty(session, path)
    return True


def _delete_offsets(
    session: ZooKeeperSession,
    group: str,
    coordinator: Coordinator,
    offsets: Mapping[str, NodeStat],
    members: Mapping[str, int],
) -> bool:
    """Deletes the nodes of offsets that are still as they were read; False if somebody has changed one, or
    one of `members`.
    """
    paths = list(offsets)
    try:
        for at in range(0, len(paths), OFFSETS_PER_TRANSACTION_MAX):
            chunk = paths[at : at + OFFSETS_PER_TRANSACTION_MAX]
            transaction = session.transaction()
            for guarding, version in {**guard(session, group, coordinator), **members}.items():
                transaction.check(guarding, version=version)
            for path, children in zip(chunk, session.children_many(chunk), strict=True):
                for child in children or ():
                    transaction.delete(f"{path}/{child}")
                transaction.delete(path, version=offsets[path].version)
            transaction.commit()
    except (BadVersionError, NoNodeError, NotEmptyError):
        return False
    return True


def _children(session: ZooKeeperSession, path: str) -> list[str]:
    return [f"{path}/{element}" for element in session.children_or_empty(path)]


def _delete_empty(session: ZooKeeperSession, path: str) -> None:
    with contextlib.suppress(NoNodeError, NotEmptyError):  # a commit that came since keeps its nodes
        session.delete(path)
