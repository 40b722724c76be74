"""How far a micro-batch of a stream reads that has a limit of records.

Offsets are addresses, so only the batches' headers say how many records a range has: they are read once more,
for as many batches as the limit allows. A limit is a maximum: less may be read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from headrace.warehouse.source.connection import Address
from headrace.warehouse.source.examining import Batch
from headrace.warehouse.source.options import Partition, SourceOptions
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reading import read_batches

LOOKED_AT_MAX_BYTES: Final = 64 << 20
"""Of a partition, for one micro-batch."""
FETCH_SIZE_BYTES: Final = 1 << 20

Batches = Callable[[Range], Iterator[Batch]]


def batches_of(options: SourceOptions, leaders: Mapping[Partition, Address]) -> Batches:
    """Returns a function that reads a range's batches, also those that cannot be decoded."""
    small = replace(
        options, on_corrupt="keep", fetch_size_bytes=min(options.fetch_size_bytes, FETCH_SIZE_BYTES)
    )
    return lambda range_: read_batches(range_, small, leaders.get((range_.topic, range_.partition)))


def ends_within(
    start: Mapping[Partition, int], latest: Mapping[Partition, int], records: int, batches: Batches
) -> dict[Partition, int]:
    """Returns end offsets with at most so many records, shared in proportion to the addresses left."""
    left = {partition: max(0, end - start[partition]) for partition, end in latest.items()}
    total = sum(left.values())
    ends = dict(start)
    # The largest first: it gets what division leaves over, so that no limit is too small for progress.
    for partition, size in sorted(left.items(), key=lambda each: (-each[1], each[0])):
        share = min(records, -(-records * size // total)) if size else 0
        if share:
            end, count = _end_of(Range(*partition, start[partition], latest[partition]), share, batches)
            ends[partition] = end
            records -= count
            total -= size
    return {partition: ends[partition] for partition in latest}


def _end_of(range_: Range, records: int, batches: Batches) -> tuple[int, int]:
    """Returns where a range with at most so many records ends, and how many it has."""
    end, count, looked_at = range_.from_offset, 0, 0
    for batch in batches(range_):
        header = batch.header
        # A batch has its records at the last of its addresses (at Apache Kafka: all of its offsets).
        first = max(header.next_offset - header.record_count, header.base_offset, range_.from_offset)
        last = min(header.next_offset, range_.to_offset)
        held = max(0, last - first)
        if count + held > records:
            return first + records - count, records
        end, count = last, count + held
        looked_at += header.size_bytes
        if count == records or looked_at >= LOOKED_AT_MAX_BYTES:
            return end, count
    return range_.to_offset, count
