"""The persistent nodes of a whole ZooKeeper, read for a backup and written into an empty one.

Owns the order in which they are written: that of their transaction ids. Readers compare these ids (an offset
that is older than its topic belongs to a deleted one, an offset and its metadata were written together), so a
copy keeps which node is older, and which were written at once. Knows no path's meaning, except
`/brokers/topics` of each cluster, whose version tells whether a topic changed while the tree was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from headrace.coordination import znodes
from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import ZooKeeperSession

READS_MAX: Final = 20
"""A tree whose topics change during so many reads in a row is not read any more."""
NODES_MAX: Final = 5_000_000
CLUSTER_SEARCH_MAX: Final = 20_000
"""Nodes that are looked at in search of clusters."""
_ITS_OWN: Final = "/zookeeper"
_OF_A_CLUSTER: Final = frozenset(
    path.split("/")[1]
    for path in (znodes.TOPICS, znodes.TOPIC_CONFIGS, znodes.CONSUMERS, znodes.REGISTRY, znodes.CONTROLLER)
)


class TreeNode(NamedTuple):
    """A persistent node, and the transactions that created it and wrote its data last."""

    path: str
    data: bytes
    created_zxid: int
    modified_zxid: int


def read_tree(
    session: ZooKeeperSession, root: str = "/", *, chroots: Sequence[str] = ("",)
) -> list[TreeNode]:
    """Returns the persistent nodes at and below `root`, parents first; nothing if there is no such node.

    No topic of the clusters at `chroots` ("" or a path such as "/east") is read half: the read is repeated
    while one was created, changed or deleted. Everything else may have changed during the read. Raises
    `CoordinationError`.
    """
    for _ in range(READS_MAX):
        before = [_topics_version(session, chroot) for chroot in chroots]
        nodes = _read(session, root)
        if [_topics_version(session, chroot) for chroot in chroots] == before:
            return nodes
    raise CoordinationError(f"topics were created or deleted during {READS_MAX} reads of ZooKeeper; repeat")


class _Place(NamedTuple):
    """A chroot, and what is stored below it."""

    chroot: str
    has_topics: bool
    has_schemas: bool


def clusters_in(session: ZooKeeperSession) -> list[str]:
    """Returns the chroots below which a ZooKeeper has topics, or had: "", or a path such as "/east". Raises
    `CoordinationError`, also if it has too many nodes to look at.
    """
    return [place.chroot for place in _places_in(session) if place.has_topics]


def registries_in(session: ZooKeeperSession) -> list[str]:
    """Returns the chroots below which a schema registry has its store. Raises as `clusters_in`."""
    return [place.chroot for place in _places_in(session) if place.has_schemas]


def _places_in(session: ZooKeeperSession) -> list[_Place]:
    found: list[_Place] = []
    level, looked_at = [""], 0
    while level:
        looked_at += len(level)
        if looked_at > CLUSTER_SEARCH_MAX:
            raise CoordinationError(
                f"ZooKeeper {session.hosts} has more than {CLUSTER_SEARCH_MAX} nodes outside of its clusters"
            )
        below: list[str] = []
        topics = session.stat_many(chroot + znodes.TOPICS for chroot in level)
        schemas = session.stat_many(chroot + znodes.REGISTRY for chroot in level)
        children = session.children_many(chroot or "/" for chroot in level)
        for chroot, has_topics, has_schemas, names in zip(level, topics, schemas, children, strict=True):
            place = _Place(chroot, has_topics is not None, has_schemas is not None)
            if place.has_topics or place.has_schemas:
                found.append(place)
            own = _OF_A_CLUSTER if place.has_topics else ()
            below += [f"{chroot}/{name}" for name in names or () if name not in own]
        stores = {place.chroot + znodes.REGISTRY for place in found if place.has_schemas}
        level = [path for path in below if path != _ITS_OWN and path not in stores]
    return found


def _topics_version(session: ZooKeeperSession, chroot: str) -> tuple[int, int] | None:
    stat = session.exists(chroot + znodes.TOPICS)
    return None if stat is None else (stat.created_zxid, stat.version)


def _read(session: ZooKeeperSession, root: str) -> list[TreeNode]:
    found: list[TreeNode] = []
    level = [root]
    while level:
        if len(found) + len(level) > NODES_MAX:
            raise CoordinationError(f"ZooKeeper {session.hosts} has more than {NODES_MAX} nodes")
        below: list[str] = []
        nodes = session.get_many(level)
        children = session.children_many(level)
        for path, node, names in zip(level, nodes, children, strict=True):
            if node is None or node.stat.owner_session:
                continue
            found.append(TreeNode(path, node.data, node.stat.created_zxid, node.stat.modified_zxid))
            below += [f"{path.rstrip('/')}/{name}" for name in names or ()]
        level = [path for path in below if path != _ITS_OWN]
    return found


def write_tree(
    session: ZooKeeperSession,
    nodes: Iterable[TreeNode],
    observe: Callable[[int], None] = lambda count: None,
) -> None:
    """Writes nodes into a ZooKeeper that has none of them; calls `observe` with the number of transactions so
    far.

    A node without a parent is left out: it was deleted while the tree was read. Raises `CoordinationError`.
    """
    known = {node.path: node for node in nodes if node.path != "/"}
    kept = {path: node for path, node in known.items() if _has_parents(path, known)}
    steps = sorted(
        (zxid, path.count("/"), path, is_creation)
        for path, node in kept.items()
        for zxid, is_creation in {(node.created_zxid, True), (node.modified_zxid, False)}
        if is_creation or zxid > node.created_zxid
    )
    for count, (_, group) in enumerate(groupby(steps, key=lambda step: step[0]), start=1):
        change = session.transaction()
        for zxid, _, path, is_creation in group:
            node = kept[path]
            if not is_creation:
                change.set(path, node.data)
            else:
                change.create(path, node.data if zxid == node.modified_zxid else b"")
        change.commit()
        observe(count)


def _has_parents(path: str, known: dict[str, TreeNode]) -> bool:
    parent = path.rpartition("/")[0]
    while parent:
        if parent not in known:
            return False
        parent = parent.rpartition("/")[0]
    return True
