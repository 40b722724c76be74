"""The tree of a datacenter's ZooKeeper: in a backup a file of JSON lines, one for each persistent node.

Owns that file's format, and how two reads of one ZooKeeper become the tree that fits the logs in between:
what must not be ahead of the logs is of the first read, what must not be behind them is of the second. A
ZooKeeper may have several clusters, each below a *chroot*, such as `/east`, or "" for the whole tree.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from headrace.agent.configuration import ZooKeeperConfiguration
from headrace.backup import servers
from headrace.backup.errors import DamagedBackupError
from headrace.backup.manifest import CAUSE_MAX_CHARS, UNREADABLE, cause_of
from headrace.backup.units import HomeUnit
from headrace.coordination import znodes
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.tree import TreeNode, read_tree

TREE: Final = "tree.jsonl"
LINE_MAX_BYTES: Final = 4 << 20
CALL_TIMEOUT_S: Final = 30.0
LEADER_EPOCHS_SKIPPED: Final = 100_000
"""Reigns that may have begun after the backup: none of their numbers is given to another leader."""
LEADER_EPOCH_MAX: Final = 2**31 - 1
# What ZooKeeper itself refuses in a path (PathUtils.validatePath).
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_DISK: Final = re.compile(rf"(?:/.+)?{znodes.DISKS}/.*")
_STATE: Final = re.compile(rf"(?:/.+)?{znodes.TOPICS}/[^/]+/partitions/[0-9]+/state")
# What logs refer to: a schema that an event names, an id that a producer wrote with.
_OF_SECOND_READ: Final = (znodes.REGISTRY, znodes.PRODUCER_ID_BLOCK)


class Topic(NamedTuple):
    """A topic in a tree: its id, the numbers of its partitions, and which brokers have a replica of each."""

    topic_id: str
    partitions: frozenset[int]
    replicas: Mapping[int, Collection[int]] = MappingProxyType({})


DAMAGED: Final = Topic("", frozenset())
"""A topic that is there, and of which its node does not tell more: its logs are not known to be deleted."""


@contextmanager
def session_of(unit: HomeUnit, scratch: Path, home: Path) -> Iterator[ZooKeeperSession]:
    """Yields a session with a unit's ZooKeeper, or, if that is stopped, with one on a copy of its files.

    Raises `UnitUnreachableError`, `BackupError`, `CoordinationError`.
    """
    assert isinstance(unit.configuration, ZooKeeperConfiguration)
    if unit.is_asked():
        with ZooKeeperSession(
            str(unit.configuration.listen), call_timeout_s=CALL_TIMEOUT_S, name="backup"
        ) as session:
            yield session
        return
    try:
        if (unit.directory / "data").exists():
            shutil.copytree(unit.directory / "data", scratch / "data", dirs_exist_ok=True)
        with (
            servers.zookeeper(scratch, home) as address,
            ZooKeeperSession(address, call_timeout_s=CALL_TIMEOUT_S, name="backup") as session,
        ):
            yield session
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def chroot_in(hosts: str) -> str:
    """Returns the chroot of the option `zookeeper` of a unit."""
    path = hosts.partition("/")[2].strip("/")
    return f"/{path}" if path else ""


def chroots_in(nodes: Iterable[TreeNode]) -> list[str]:
    """Returns the chroots below which a tree has topics."""
    return [node.path.removesuffix(znodes.TOPICS) for node in nodes if node.path.endswith(znodes.TOPICS)]


def topics_of(nodes: Iterable[TreeNode], chroot: str) -> dict[str, Topic]:
    """Returns the topics of a cluster, by name; one whose node is damaged is `DAMAGED`."""
    found = {}
    for node in nodes:
        parent, _, name = node.path.rpartition("/")
        if parent == chroot + znodes.TOPICS:
            try:
                values = json.loads(node.data)
                replicas = {int(number): tuple(each) for number, each in values["partitions"].items()}
                found[name] = Topic(str(values["topic_id"]), frozenset(replicas), replicas)
            except (ValueError, KeyError, TypeError, AttributeError):
                found[name] = DAMAGED
    return found


def in_later_epochs(nodes: Iterable[TreeNode]) -> list[TreeNode]:
    """Returns the nodes with each partition's leader epoch raised by `LEADER_EPOCHS_SKIPPED`.

    An address and a leader epoch name one batch for ever. Mirrors' copies, other hosts' replicas, and logs
    that were copied after the tree may have batches of reigns that began after it: a leader of the restored
    site that reigned by such a number again would write others under their names.
    """
    return [
        node._replace(data=_in_later_epoch(node.data)) if _STATE.fullmatch(node.path) else node
        for node in nodes
    ]


def without_disk_ages(nodes: Iterable[TreeNode]) -> list[TreeNode]:
    """Returns the nodes without what ZooKeeper knows of the age of brokers' disks: logs were copied after the
    tree, and a broker that finds a ZooKeeper older than its disk does not start.
    """
    return [node for node in nodes if not _DISK.fullmatch(node.path)]


def _in_later_epoch(data: bytes) -> bytes:
    try:
        values = json.loads(data)
        later = int(values["leader_epoch"]) + LEADER_EPOCHS_SKIPPED
    except UNREADABLE:
        return data  # damaged: the brokers say so
    values["leader_epoch"] = min(later, LEADER_EPOCH_MAX)
    return json.dumps(values, separators=(",", ":"), sort_keys=True).encode()


def joined(first: Iterable[TreeNode], second: Iterable[TreeNode]) -> list[TreeNode]:
    """Returns the tree of the first read, without the topics that are gone in the second; schemas and the
    block of producer ids are those of the second.
    """
    first, second = list(first), list(second)
    chroots = {"", *chroots_in(first), *chroots_in(second)}
    of_second = [chroot + path for chroot in chroots for path in _OF_SECOND_READ]
    left_out: list[str] = []
    for chroot in chroots:
        later = topics_of(second, chroot)
        for name, topic in topics_of(first, chroot).items():
            now = later.get(name)
            if now is None or (DAMAGED not in (now, topic) and now.topic_id != topic.topic_id):
                left_out += (chroot + znodes.topic(name), chroot + znodes.topic_config(name))
    kept = {node.path: node for node in first if not _is_below(node.path, (*of_second, *left_out))}
    for node in second:
        if _is_below(node.path, of_second):
            kept[node.path] = node
    parents = {node.path: node for node in second}
    for path in list(kept):
        while (path := path.rpartition("/")[0]) and path not in kept and path in parents:
            kept[path] = parents[path]
    return sorted(kept.values())


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _is_node(path: str) -> bool:
    """Whether ZooKeeper takes a node of this path, and it is none of its own."""
    path.encode()  # raises UnicodeEncodeError, a ValueError
    parts = path.split("/")
    if parts[0] or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]):
        return path == "/"
    return not _CONTROL.search(path) and parts[1] != "zookeeper"


def encode(nodes: Iterable[TreeNode]) -> bytes:
    return b"".join(_line(node) for node in nodes)


def _line(node: TreeNode) -> bytes:
    values: dict[str, object] = {
        "path": node.path,
        "created": node.created_zxid,
        "modified": node.modified_zxid,
    }
    try:
        values["text"] = node.data.decode()
    except UnicodeDecodeError:
        values["base64"] = base64.b64encode(node.data).decode()
    return json.dumps(values, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def decode(path: Path) -> list[TreeNode]:
    """Reads the file. Raises `DamagedBackupError`, `OSError`."""
    found = []
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(LINE_MAX_BYTES), b""), start=1):
            try:
                values = json.loads(line)
                text = values.get("text")
                data = base64.b64decode(values["base64"], validate=True) if text is None else text.encode()
                node = TreeNode(str(values["path"]), data, int(values["created"]), int(values["modified"]))
                if not _is_node(node.path):
                    raise ValueError(f"{node.path[:CAUSE_MAX_CHARS]!r} is no path of a node")
                found.append(node)
            except UNREADABLE as error:
                problem = f"{path}: line {number} is no node of ZooKeeper ({cause_of(error)})"
                raise DamagedBackupError(problem) from None
    return found


__all__ = [
    "TREE",
    "Topic",
    "chroot_in",
    "chroots_in",
    "decode",
    "encode",
    "in_later_epochs",
    "joined",
    "read_tree",
    "session_of",
    "topics_of",
    "without_disk_ages",
]
