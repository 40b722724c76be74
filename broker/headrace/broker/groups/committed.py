"""A committed offset together with the words its client sent along, in ZooKeeper.

Owns the child `metadata` of an offset's node. The offset's own node stays decimal text, as all who read it
expect (the paper's consumers, `headrace groups`). Both are written in one transaction, so they carry one
zxid: whoever sets the offset alone, the paper's way, thereby makes the words void. Blocking calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.errors import BadVersionError, CorruptNodeError, NodeExistsError, NoNodeError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession

ATTEMPTS_MAX: Final = 5  # of a write or a read that somebody else's write came in between of

TopicPartition = tuple[str, int]


class Committed(NamedTuple):
    """The next address to read, and what the client wants to know when it asks for it; "" for nothing."""

    offset: int
    metadata: str = ""


Offsets = dict[TopicPartition, Committed]


def write(session: ZooKeeperSession, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
    """Store them, one after the other. Raises `CoordinationError`."""
    registry = ConsumerRegistry(session, group)
    for (topic, partition), committed in offsets.items():
        if committed.metadata:
            _write_both(session, group, topic, partition, committed)
        else:
            registry.commit(topic, partition, committed.offset)


def _write_both(
    session: ZooKeeperSession, group: str, topic: str, partition: int, committed: Committed
) -> None:
    path, beside = znodes.offset(group, topic, partition), _beside(group, topic, partition)
    for _ in range(ATTEMPTS_MAX):
        transaction = session.transaction()
        for each, data in ((path, str(committed.offset)), (beside, committed.metadata)):
            put = transaction.create if session.exists(each) is None else transaction.set
            put(each, data.encode())
        try:
            return transaction.commit()
        except NodeExistsError:
            continue
        except NoNodeError:
            session.ensure_path(znodes.offsets(group, topic))
    raise BadVersionError(f"{path}: others made or deleted it in each of {ATTEMPTS_MAX} attempts; try again")


def read(session: ZooKeeperSession, group: str, wanted: Iterable[TopicPartition] | None) -> Offsets:
    """What is stored for `wanted`, or all of the group's; what has none is left out.

    Raises `CoordinationError`.
    """
    left = list(ConsumerRegistry(session, group).all_offsets() if wanted is None else wanted)
    found: Offsets = {}
    for _ in range(ATTEMPTS_MAX):
        # The offset is read before the words: if those are the newer ones, a write came in between.
        paths = [path for key in left for path in (znodes.offset(group, *key), _beside(group, *key))]
        nodes = iter(session.get_many(paths))
        torn = []
        for key, node, words in zip(left, nodes, nodes, strict=True):
            if node is None and words is None:
                continue
            if node is None or (words is not None and words.stat.modified_zxid > node.stat.modified_zxid):
                torn.append(key)
            else:
                found[key] = Committed(_offset(group, key, node), _metadata(node, words))
        left = torn
        if not left:
            return found
    raise BadVersionError(f"offsets of group {group} changed in each of {ATTEMPTS_MAX} reads; try again")


def _beside(group: str, topic: str, partition: int) -> str:
    return f"{znodes.offset(group, topic, partition)}/metadata"


def _offset(group: str, key: TopicPartition, node: Node) -> int:
    try:
        return int(node.data)
    except ValueError:
        path = znodes.offset(group, *key)
        raise CorruptNodeError(
            f"{path}: an offset must be a decimal number, found {node.data[:40]!r}"
        ) from None


def _metadata(node: Node, words: Node | None) -> str:
    if words is None or words.stat.modified_zxid != node.stat.modified_zxid:
        return ""
    return words.data.decode(errors="replace")
