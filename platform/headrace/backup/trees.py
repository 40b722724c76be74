"""The tree of a datacenter's ZooKeeper: in a backup a file of JSON lines, one for each persistent node.

Owns that file's format, and how two reads of one ZooKeeper become the tree that fits the logs in between:
what must not be ahead of the logs is of the first read, what must not be behind them is of the second.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
# What ZooKeeper itself refuses in a path (PathUtils.validatePath).
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
# What logs refer to: a schema that an event names, an id that a producer wrote with.
_OF_SECOND_READ: Final = (znodes.REGISTRY, znodes.PRODUCER_ID_BLOCK)


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


def topic_ids(nodes: Iterable[TreeNode]) -> dict[str, str]:
    """Returns the ids of the topics of a tree, by name; topics whose node is damaged are left out."""
    found = {}
    for node in nodes:
        parent, _, name = node.path.rpartition("/")
        if parent == znodes.TOPICS:
            try:
                found[name] = str(json.loads(node.data)["topic_id"])
            except (ValueError, KeyError, TypeError):
                continue
    return found


def joined(first: Iterable[TreeNode], second: Iterable[TreeNode]) -> list[TreeNode]:
    """Returns the tree of the first read, without the topics that are gone in the second; schemas and the
    block of producer ids are those of the second.
    """
    first, second = list(first), list(second)
    later = topic_ids(second)
    gone = [name for name, topic_id in topic_ids(first).items() if later.get(name) != topic_id]
    left_out = [path for name in gone for path in (znodes.topic(name), znodes.topic_config(name))]
    kept = {node.path: node for node in first if not _is_below(node.path, (*_OF_SECOND_READ, *left_out))}
    for node in second:
        if _is_below(node.path, _OF_SECOND_READ):
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


__all__ = ["TREE", "decode", "encode", "joined", "read_tree", "session_of", "topic_ids"]
