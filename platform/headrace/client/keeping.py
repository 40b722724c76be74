"""Which bytes of a fetch's answer a partition keeps: whole batches, up to the first that cannot be right."""

from __future__ import annotations

import math
from typing import Final

from headrace.client.partition_fetch import PartitionFetch, Piece, check_offsets
from headrace.client.placement import Misplaced, NotConfirmedError, find_misplaced
from headrace.wire.batch import hop
from headrace.wire.errors import CorruptBatchError

FETCH_SIZE_MAX_BYTES: Final = 128 * 1024 * 1024
"""Of one partition. A batch that seems to be longer has a damaged header."""


def keep(
    state: PartitionFetch,
    records: memoryview,
    high_watermark: int,
    *,
    has_addresses: bool,
    size_max_bytes: int,
) -> None:
    """Adds the complete batches to the partition's pieces; the next fetch begins behind them.

    Adds none, and doubles the size of the partition's next fetch, if not even one batch is complete, or if
    nothing confirms the place of the first one and a fetch may be larger (`size_max_bytes`).
    `has_addresses`: whether the broker's offsets are addresses.
    """
    end = 0
    next_offset = state.fetch_position
    is_longest = state.fetch_bytes >= size_max_bytes
    misplaced: Misplaced | None = None
    try:
        for at, header in hop(records):
            batch_end, size_bytes = header.next_offset, header.size_bytes
            is_confirmed = has_addresses
            if has_addresses and batch_end - size_bytes != next_offset:
                try:
                    misplaced = find_misplaced(
                        *(records, at, header, next_offset, high_watermark),
                        is_end=next_offset == state.batch_end,
                        is_longest=is_longest,
                    )
                except NotConfirmedError:
                    if not at and not is_longest:
                        break
                    is_confirmed = False
                if misplaced is not None:
                    raise CorruptBatchError(misplaced.problem)
            check_offsets(header, high_watermark)
            end, next_offset = at + size_bytes, batch_end
            state.batch_end = batch_end if is_confirmed else None
            state.lineage.note(header)
    except CorruptBatchError:
        end = len(records)  # `poll` raises the error once it arrives at this batch
        state.not_before_s = math.inf  # and until then there is nothing to fetch behind it
    if not end and state.fetch_bytes < FETCH_SIZE_MAX_BYTES:
        state.fetch_bytes *= 2
        return
    end = end or len(records)  # no batch is so long: its length is damaged
    state.pieces.append(Piece(records[:end], high_watermark, misplaced))
    state.fetch_position = max(next_offset, state.fetch_position)
