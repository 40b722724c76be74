"""Reads from the store what each load said of the content that it read, and which reports of loads may be
missing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, select

from headrace.audit.evidence import LoadedContent
from headrace.audit.intervals import Interval, union
from headrace.audit.store import tables

_KEY: Final = ("warehouse", "topic", "load_sequence", "log_partition")


def loaded_contents(
    connection: Connection, *where: ColumnElement[bool]
) -> Iterator[tuple[int, int, LoadedContent]]:
    """Yields (analysis partition, hour in ms, content) of each load. `where`: conditions on `load_rows`."""
    rows, ranges = tables.load_rows, tables.load_ranges
    columns = (
        rows.c.log_partition,
        rows.c.hour_ms,
        ranges.c.from_address,
        ranges.c.to_address,
        rows.c.distinct_offsets + rows.c.dead_lettered,
        rows.c.content,
    )
    same = and_(*(rows.c[name] == ranges.c[name] for name in _KEY))
    for log_partition, hour_ms, *values in connection.execute(
        select(*columns).join(ranges, same).where(*where)
    ):
        yield log_partition, hour_ms, LoadedContent(*values)


class LoadedRanges(NamedTuple):
    """The addresses of a partition that loads consumed; of these, what they took from the source's own log;
    and between two loads, what another one may have consumed whose report is missing.
    """

    cover: list[Interval]
    taken: list[Interval]
    unreported: list[Interval]


def loaded_ranges(connection: Connection, *where: ColumnElement[bool]) -> Iterator[tuple[int, LoadedRanges]]:
    """Yields (analysis partition, ranges). `where`: conditions on `load_ranges` that select one table."""
    table = tables.load_ranges
    names = ("log_partition", "load_sequence", "from_address", "to_address", "from_source")
    # Of a year: thousands of rows, of which tuples are read much faster.
    loads = connection.execute(select(*(table.c[name] for name in names)).where(*where)).all()
    ranges: defaultdict[int, list[Interval]] = defaultdict(list)
    taken: defaultdict[int, list[Interval]] = defaultdict(list)
    for log_partition, _, start, end, is_from_source in loads:
        ranges[log_partition].append((start, end))
        if is_from_source:
            taken[log_partition].append((start, end))
    known = sorted({number for _, number, *_ in loads})
    for log_partition, all_ranges in ranges.items():
        cover = union(all_ranges)
        found = LoadedRanges(cover, taken[log_partition], [])
        if len(cover) > 1:
            of_copy = (each[1:4] for each in loads if each[0] == log_partition and not each[4])
            found.unreported.extend(unreported_between(of_copy, known))
        yield log_partition, found


def unreported_between(loads: Iterable[tuple[int, int, int]], known: Sequence[int]) -> Iterator[Interval]:
    """Yields the addresses between two loads that another one may have consumed whose report is missing.

    Each change of a table has a number of its own, and each load begins where the one before it ended.
    `loads`: the number and the addresses of each load. `known`: the numbers of all changes that were
    reported, in order.
    """
    last, reach = -1, -1
    reads = (load for load in loads if load[1] < load[2])
    for number, start, end in sorted(reads, key=lambda load: load[1:]):
        between = max(0, number - last - 1)
        if 0 <= reach < start and bisect_left(known, number) - bisect_right(known, last) < between:
            yield reach, start
        if end > reach:
            last, reach = number, end
