"""What a node looks like to us, and the ZooKeeper library's errors in our words."""

from typing import Any, NamedTuple

from kazoo import exceptions as kz

from headrace.coordination.errors import (
    BadVersionError,
    CoordinationError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)


class NodeStat(NamedTuple):
    """The part of ZooKeeper's Stat that we use; `owner_session` is 0 for a persistent node."""

    version: int
    created_zxid: int
    modified_zxid: int
    modified_ms: int
    owner_session: int


class Node(NamedTuple):
    data: bytes
    stat: NodeStat


def translate(error: Exception, what: str) -> CoordinationError:
    """The library's exception in our words."""
    for theirs, ours, saying in (
        (kz.NoNodeError, NoNodeError, "no such node"),
        (kz.NodeExistsError, NodeExistsError, "the node exists already"),
        (kz.BadVersionError, BadVersionError, "changed by somebody else since it was read"),
        (kz.NotEmptyError, NotEmptyError, "the node still has children"),
    ):
        if isinstance(error, theirs):
            return ours(f"{what}: {saying}")
    return CoordinationError(f"{what}: ZooKeeper refused: {type(error).__name__} {error}".rstrip())


def to_stat(stat: Any) -> NodeStat:
    """The library's Stat as ours."""
    return NodeStat(stat.version, stat.czxid, stat.mzxid, stat.mtime, stat.ephemeralOwner)
