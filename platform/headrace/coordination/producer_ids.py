"""Blocks of producer ids, each allocated once: `/latest_producer_id_block`, as in Kafka (compare KIP-730).

The first block of a ZooKeeper begins at the time, in milliseconds, and not at 0 as Apache Kafka's. A cluster
that is lost and made again under its name has an empty ZooKeeper, and producers outside live on with the ids
of the one before. If another producer got such an id, records of one could pass for repetitions of the
other's, be acknowledged and not stored; and the audit, which compares by producer ids, would take the events
of one for those of the other.
"""

import contextlib
from typing import Final

from headrace.coordination import documents, znodes
from headrace.coordination.errors import BadVersionError, CoordinationError, CorruptNodeError, NodeExistsError
from headrace.coordination.session import ZooKeeperSession
from headrace.process.clock import now_ms

PRODUCER_ID_MAX: Final = 2**63 - 1
DEFAULT_BLOCK_SIZE: Final = 1000


def allocate_block(session: ZooKeeperSession, size: int = DEFAULT_BLOCK_SIZE) -> range:
    """Returns `size` producer ids that no other call on this ZooKeeper returns, nor one on a ZooKeeper that
    was in its place before, unless that one gave more than a thousand ids a second.

    A crash may waste a block but never allocates it twice. Raises `CoordinationError` if all ids (int64) are
    used up.
    """
    if size < 1:
        raise ValueError(f"a block of producer ids needs at least one id, not {size}")
    while True:
        node = session.get_or_none(znodes.PRODUCER_ID_BLOCK)
        first = _first_of_all(size) if node is None else _block_end(node.data) + 1
        last = first + size - 1
        if last > PRODUCER_ID_MAX:
            raise CoordinationError(
                f"{znodes.PRODUCER_ID_BLOCK}: all producer ids up to {PRODUCER_ID_MAX} are used up"
            )
        data = documents.encode({"block_start": str(first), "block_end": str(last)})
        try:
            if node is None:
                session.create(znodes.PRODUCER_ID_BLOCK, data)
            else:
                session.set(znodes.PRODUCER_ID_BLOCK, data, version=node.stat.version)
        except (BadVersionError, NodeExistsError):
            continue
        return range(first, last + 1)


def skip_ids(session: ZooKeeperSession, count: int) -> int:
    """Never allocates the next `count` ids; returns the first one that may be allocated then.

    For a restored ZooKeeper: producers may still have ids that it allocated after it was copied.
    """
    return allocate_block(session, count)[-1] + 1


def _first_of_all(size: int) -> int:
    time_ms = now_ms()
    return time_ms - time_ms % size


def _block_end(data: bytes) -> int:
    fields = documents.decode(znodes.PRODUCER_ID_BLOCK, data)
    with contextlib.suppress(KeyError, ValueError, TypeError):
        block_end = int(fields["block_end"])
        if block_end >= -1:
            return block_end
    raise CorruptNodeError(f"{znodes.PRODUCER_ID_BLOCK}: no usable block_end in {data[:80]!r}")
