"""The leader epochs of what lies below a log's recovery point: taken from the checkpoint, and checked against
the batches; read from all batches where the two do not fit, or the checkpoint has none.

Only headers are read. A batch that cannot be read is for its readers to find; here it says nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

from headrace.log import scan
from headrace.log.epochs import EpochStart, LeaderEpochs
from headrace.log.errors import LogError
from headrace.log.segment import Segment
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, read_header
from headrace.wire.errors import WireError

logger = logging.getLogger(__name__)

# One batch's epoch may have rotted, since it is not under the checksum: the next one is asked, too.
ASKED_MAX: Final = 2


def epochs_below(segments: Sequence[Segment], point: int, saved: Sequence[EpochStart] | None) -> LeaderEpochs:
    """Returns the epochs of the batches below `point`. `saved`: what the checkpoint says."""
    first = segments[0].base_address
    if point <= first:
        return LeaderEpochs()
    below = [segment for segment in segments if segment.base_address < point and segment.size_bytes]
    try:
        if saved is not None:
            found = LeaderEpochs(saved)
            found.forget_before(first)
            fits = _fits(found, below, point)
            if fits is None:
                # No batch begins where the list says: it lies, or that batch is damaged. The batches know.
                read, is_whole = _read_all(below, point)
                return read if is_whole else found
            if fits:
                return found
            logger.warning(
                "%s: the checkpoint's leader epochs do not fit the batches: all headers are read",
                segments[0].path.parent,
            )
    except (ValueError, TypeError) as error:
        logger.warning("%s: the checkpoint's leader epochs: %s", segments[0].path.parent, error)
    return _read_all(below, point)[0]


def _fits(epochs: LeaderEpochs, below: Sequence[Segment], point: int) -> bool | None:
    """Whether the first batch of each epoch, and of each segment, has the epoch that it should have. None if
    they have, as far as there are batches.
    """
    if epochs.starts() and epochs.starts()[-1].address >= point:
        return False
    starts = {start.address for start in epochs}
    asked = starts | {segment.base_address for segment in below}
    at = 0
    is_known = True
    for address in sorted(asked):
        while below[at].end_address <= address and at + 1 < len(below):
            at += 1
        if not below[at].base_address <= address < below[at].end_address:
            continue  # deleted, or set aside: there is a gap
        if not _has_epoch(below[at], address, epochs):
            return False
        if address in starts and _header_at(below[at], address) is None:
            is_known = False
    return True if is_known else None


def _has_epoch(segment: Segment, address: int, epochs: LeaderEpochs) -> bool:
    for _ in range(ASKED_MAX):
        header = _header_at(segment, address)
        if header is None or header.partition_leader_epoch == epochs.at(address):
            return True
        address += header.size_bytes
        if address >= segment.end_address:
            return True  # one batch alone says too little
    return False


def _header_at(segment: Segment, address: int) -> BatchHeader | None:
    """Returns the header of the batch at `address`; None if there is no whole one."""
    was_open = segment.is_open
    try:
        content = os.pread(segment.file.fd, HEADER_SIZE_BYTES, address - segment.base_address)
        header = read_header(content)
        return header if header.is_stored_at(address) else None
    except (OSError, WireError):
        return None
    finally:
        if not was_open:
            segment.release()


def _read_all(below: Sequence[Segment], point: int) -> tuple[LeaderEpochs, bool]:
    """Returns the epochs of all headers, and whether all could be read."""
    found, is_whole = LeaderEpochs(), True
    for segment in below:
        end = min(point, segment.end_address)
        try:
            for header in scan.headers(segment.file, segment.base_address, segment.base_address, end):
                found.note(header.partition_leader_epoch, header.address)
        except LogError as error:
            logger.warning("%s: the leader epochs behind that are not known: %s", segment.path, error)
            is_whole = False
    return found, is_whole
