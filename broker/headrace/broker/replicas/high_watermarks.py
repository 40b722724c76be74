"""The high watermarks that this broker knew, in a file: after a start a log would know none.

A new leader begins with what it knew. With less it is right, too, but shows consumers nothing until enough
replicas are in sync again. The file may be missing, damaged or old: then less is known. It must never say
more: a new leader would show what it alone has. So it has a checksum, and each high watermark names the
leader epoch of the batch that ends there. An address and its epoch name one batch for ever: if the log was
cut since, as after an unclean election, and has other batches there now, the old address says nothing of
them.

Format: one line with the CRC-32C of the rest in hex, then JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from headrace.log.directory import PartitionName
from headrace.log.epochs import NO_EPOCH
from headrace.log.files import replace_file
from headrace.log.partition import PartitionLog

logger = logging.getLogger(__name__)

FILE_NAME: Final = "high-watermarks.json"
SIZE_MAX_BYTES: Final = 16 * 1024 * 1024


class HighWatermark(NamedTuple):
    """What was known of one log: everything below `address` was on every in-sync replica. `epoch`: that of
    the last batch below it, `NO_EPOCH` if there is none.
    """

    topic_id: UUID
    address: int
    epoch: int


Known = Mapping[PartitionName, HighWatermark]


def of(topic_id: UUID, log: PartitionLog, address: int) -> HighWatermark:
    """Returns what is known of a log up to `address`."""
    return HighWatermark(topic_id, address, log.epochs.at(address - 1))


def still_known(known: HighWatermark, topic_id: UUID, log: PartitionLog) -> int:
    """Returns how far a log is still known to be on every in-sync replica: its start, if nobody can tell.

    What an epoch's batches were up to an address they still are; what lies behind that epoch's end here was
    written by a later leader.
    """
    if known.topic_id != topic_id or known.epoch == NO_EPOCH:
        return log.start_address
    found = log.epochs.end_of(known.epoch, log.end_address)
    if found.epoch != known.epoch:
        return log.start_address
    return max(log.start_address, min(known.address, found.end_address))


def load(directory: Path) -> dict[PartitionName, HighWatermark]:
    """Returns the high watermark of each partition."""
    path = directory / FILE_NAME
    try:
        if path.stat().st_size > SIZE_MAX_BYTES:
            raise ValueError(f"it has more than {SIZE_MAX_BYTES} bytes")
        checksum, _, body = path.read_bytes().partition(b"\n")
        if int(checksum, 16) != crc32c(body):
            raise ValueError("its checksum is wrong")
        entries = json.loads(body)
        return {
            PartitionName(str(topic), int(index)): HighWatermark(UUID(topic_id), int(address), int(epoch))
            for topic, index, topic_id, address, epoch in entries
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        logger.warning("%s is not used: %s", path, error)
        return {}


def save(directory: Path, known: Known) -> None:
    """Any thread. Raises `OSError`."""
    entries = [
        [name.topic, name.partition, str(each.topic_id), each.address, each.epoch]
        for name, each in known.items()
    ]
    body = json.dumps(entries, separators=(",", ":")).encode()
    replace_file(directory / FILE_NAME, b"%08x\n" % crc32c(body) + body)
