"""A ZooKeeper node and its stat, and the translation of the library's errors."""

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
    """The fields of ZooKeeper's Stat that headrace uses; `owner_session` is 0 for a persistent node,
    `modified_ms` and `created_ms` the time of day of ZooKeeper's leader, `data_bytes` the length of the
    node's data. A ZooKeeper that has lost its data counts transactions from 1 again: `created_zxid` may be
    that of another node of before, and `created_ms` is not.
    """

    version: int
    created_zxid: int
    modified_zxid: int
    owner_session: int
    modified_ms: int
    data_bytes: int
    created_ms: int = 0


class Node(NamedTuple):
    data: bytes
    stat: NodeStat


def translate(error: Exception, path: str) -> CoordinationError:
    """Converts the library's exception."""
    for theirs, ours, problem in (
        (kz.NoNodeError, NoNodeError, "no such node"),
        (kz.NodeExistsError, NodeExistsError, "the node exists already"),
        (kz.BadVersionError, BadVersionError, "the node changed since it was read"),
        (kz.NotEmptyError, NotEmptyError, "the node still has children"),
    ):
        if isinstance(error, theirs):
            return ours(f"{path}: {problem}")
    if isinstance(error, kz.UnimplementedError):
        return CoordinationError(f"{path}: this ZooKeeper is too old: headrace needs version 3.6 or later")
    return CoordinationError(f"{path}: ZooKeeper refused: {type(error).__name__} {error}".rstrip())


def to_stat(stat: Any) -> NodeStat:
    """Converts the library's Stat."""
    return NodeStat(
        stat.version,
        stat.czxid,
        stat.mzxid,
        stat.ephemeralOwner,
        stat.mtime,
        stat.dataLength,
        stat.ctime,
    )
