"""The generation of a group in ZooKeeper: the node `generation` of the group. Calls block.

Owns the node and its versions. Each write checks the version that this coordinator knows, and so does each
commit: if another broker has stored a generation since, even one whose coming and going was not seen here,
neither happens. The node of a group with offsets stays when its last member goes, without data: so its
version never comes again while there is an offset to guard.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from typing import Final, NamedTuple

from headrace.broker.groups.fencing import Coordinator, Fence, NotCoordinatorError
from headrace.broker.groups.generations import StoredGeneration, decode
from headrace.coordination import znodes
from headrace.coordination.errors import (
    BadVersionError,
    CorruptNodeError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from headrace.coordination.nodes import NodeStat
from headrace.coordination.session import ZooKeeperSession

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5  # of a write that others interrupt
NOBODY: Final = b""
"""The node's data while the group has no members, or more than is stored (`DOCUMENT_MAX_BYTES`)."""


class OtherGenerationError(NotCoordinatorError):
    """Another coordinator has stored a generation of the group: what this one knows of it is over."""


class Known(NamedTuple):
    """A node with members, as it was read or written last."""

    version: int
    data_bytes: int


class Generations:
    """The nodes of the groups that this broker coordinates, through one session.

    Called by one thread at a time for one group.
    """

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session
        self._fence = Fence(session)
        self._known: dict[str, Known] = {}

    def load(self, group: str) -> StoredGeneration | None:
        """Returns the generation that was stored last; None if the group has no members.

        Raises `CoordinationError`.
        """
        path = znodes.generation(group)
        node = self.session.get_or_none(path)
        if node is None or node.data == NOBODY:
            self._known.pop(group, None)
            return None
        self._known[group] = Known(node.stat.version, len(node.data))
        try:
            return decode(path, node.data)
        except CorruptNodeError as error:
            logger.warning("group %r: its members join again: %s", group, error)
            return None

    def store(self, group: str, data: bytes, coordinator: Coordinator) -> None:
        """Stores a generation, or that there is none (`NOBODY`).

        Raises `NotCoordinatorError`, `OtherGenerationError`, `CoordinationError`.
        """
        path = znodes.generation(group)
        for _ in range(ATTEMPTS_MAX):
            guarded = self._fence.guard(group, coordinator)
            stat = self._unchanged(group)
            if data == NOBODY and not self._has_offsets(group):
                try:
                    self._delete(group, path, stat, guarded)
                except BadVersionError:  # a broker has registered: the guard was of before
                    self._fence.anew(group, coordinator)
                    continue
                return
            written = 0 if stat is None else stat.version + 1
            transaction = self.session.transaction()
            for guarding, version in guarded.items():
                transaction.check(guarding, version=version)
            if stat is None:
                transaction.create(path, data)
            else:
                transaction.set(path, data, version=stat.version)
            try:
                transaction.commit()
            except (BadVersionError, NodeExistsError):  # a broker has registered, or the node has changed
                node = self.session.get_or_none(path)
                if node is not None and (node.stat.version, node.data) == (written, data):
                    self._note(group, data, written)  # by this very write: its answer was lost
                    return
                self._fence.anew(group, coordinator)
            except NoNodeError:
                self._fence.anew(group, coordinator)
                self.session.ensure_path(znodes.group(group))
            else:
                self._note(group, data, written)
                return
        raise BadVersionError(f"{path} changed concurrently in {ATTEMPTS_MAX} attempts; retry")

    def guard(self, group: str, coordinator: Coordinator) -> Mapping[str, int]:
        """Returns what a commit must check: as `Fence.guard`, and the members that are known, if any."""
        return {**self._fence.guard(group, coordinator), **self._node(group)}

    def anew(self, group: str, coordinator: Coordinator) -> Mapping[str, int]:
        """As `Fence.anew`. Raises `OtherGenerationError`, too."""
        if group in self._known:
            self._unchanged(group)
        return {**self._fence.anew(group, coordinator), **self._node(group)}

    def checked(self, group: str) -> Mapping[str, int]:
        """Reads the node; returns it with its version, if it is there. Raises `OtherGenerationError`."""
        stat = self._unchanged(group)
        return {} if stat is None else {znodes.generation(group): stat.version}

    def forget(self, groups: Iterable[str]) -> None:
        """Knows no version of these groups any more: others coordinate them, or they are read again."""
        for group in groups:
            self._known.pop(group, None)

    def known(self) -> list[str]:
        """Returns the groups of which it knows the members' node."""
        return list(self._known)

    def size_bytes(self) -> int:
        """Returns how much the nodes of all these groups hold. Any thread may call it."""
        return sum(known.data_bytes for known in list(self._known.values()))

    def _node(self, group: str) -> Mapping[str, int]:
        known = self._known.get(group)
        return {} if known is None else {znodes.generation(group): known.version}

    def _unchanged(self, group: str) -> NodeStat | None:
        """Returns the node's stat, if it is as this coordinator knows it."""
        stat, known = self.session.exists(znodes.generation(group)), self._known.get(group)
        is_same = stat is not None and known is not None and stat.version == known.version
        if known is None:
            is_same = stat is None or stat.data_bytes == 0
        if not is_same:
            raise OtherGenerationError(f"group {group!r}: another broker has stored its members since")
        return stat

    def _has_offsets(self, group: str) -> bool:
        return bool(self.session.children_or_empty(znodes.group_offsets(group)))

    def _delete(self, group: str, path: str, stat: NodeStat | None, guarded: Mapping[str, int]) -> None:
        if stat is not None:
            transaction = self.session.transaction()
            for guarding, version in guarded.items():
                transaction.check(guarding, version=version)
            with suppress(NoNodeError):
                transaction.delete(path, version=stat.version).commit()
            with suppress(NoNodeError, NotEmptyError):
                self.session.delete(znodes.group(group))
        self._note(group, NOBODY, 0)

    def _note(self, group: str, data: bytes, version: int) -> None:
        if data == NOBODY:
            self._known.pop(group, None)
        else:
            self._known[group] = Known(version, len(data))


def without_members(session: ZooKeeperSession, group: str) -> Mapping[str, int] | None:
    """Returns the group's node with its version, if there is one; None if members of it are stored."""
    path = znodes.generation(group)
    stat = session.exists(path)
    if stat is None:
        return {}
    return None if stat.data_bytes else {path: stat.version}


def with_members(session: ZooKeeperSession, groups: Iterable[str]) -> Set[str]:
    """Returns those of these groups whose members are stored."""
    names = list(groups)
    stats = session.stat_many(znodes.generation(name) for name in names)
    return {name for name, stat in zip(names, stats, strict=True) if stat is not None and stat.data_bytes}
