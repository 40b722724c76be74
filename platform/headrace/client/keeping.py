"""Which bytes of a fetch's answer a partition keeps: whole batches, up to the first that cannot be right."""

from __future__ import annotations

import math
from typing import Final

from headrace.client.partition_fetch import MisplacedError, PartitionFetch, Piece, check_offsets
from headrace.wire.batch import HEADER_SIZE_BYTES, hop, read_header
from headrace.wire.errors import CorruptBatchError
from headrace.wire.fetch import FetchPartitionResult

FETCH_SIZE_MAX_BYTES: Final = 128 * 1024 * 1024
"""Of one partition. A batch that seems to be longer has a damaged header."""


def keep(state: PartitionFetch, result: FetchPartitionResult) -> None:
    """Adds the complete batches to the partition's pieces; the next fetch begins behind them.

    If not even one batch is complete, it adds none, and doubles the size of the partition's next fetch.
    """
    records, high_watermark = result.records, result.high_watermark
    if not isinstance(records, memoryview) or not len(records):
        return
    address = result.address if result.address >= 0 else None
    end = 0
    next_offset = state.fetch_position
    try:
        for at, header in hop(records):
            size_bytes, batch_end = header.size_bytes, header.next_offset
            if address is not None and batch_end - size_bytes != address + at:
                raise MisplacedError(header, address + at)
            check_offsets(header, high_watermark)
            end, next_offset = at + size_bytes, batch_end
            state.lineage.note(header)
        if not end and address is not None and len(records) >= HEADER_SIZE_BYTES:
            first = read_header(records)
            if first.address != address:  # its length may be wrong: more bytes would not help
                raise MisplacedError(first, address)
    except CorruptBatchError:
        end = len(records)  # `poll` raises the error once it arrives at this batch
        state.not_before_s = math.inf  # and until then there is nothing to fetch behind it
    if not end and state.fetch_bytes < FETCH_SIZE_MAX_BYTES:
        state.fetch_bytes *= 2  # not even one whole batch
        return
    end = end or len(records)  # no batch is so long: its length is damaged
    state.pieces.append(Piece(records[:end], high_watermark, address))
    state.fetch_position = max(next_offset, state.fetch_position)
