"""Reads from the store what loads said of what they read, and which reports of loads may be missing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, func, select

from headrace.audit.counting.partition_counter import SourcePartition
from headrace.audit.evidence import LoadedContent, ReportedGap, WrittenRows
from headrace.audit.intervals import Interval, union
from headrace.audit.store import tables

_KEY: Final = ("warehouse", "topic", "load_sequence", "log_partition")
_LOAD: Final = ("warehouse", "topic", "load_sequence")


class LoadedRanges(NamedTuple):
    """The addresses of a partition that loads consumed; of these, what they took from the source's own log;
    and between two loads, what another one may have consumed whose report is missing.
    """

    cover: list[Interval]
    taken: list[Interval]
    unreported: list[Interval]


class TopicLoads:
    """The loads of a topic into one warehouse, by the source partition of what they read.

    `sources`: (partition of the analysis cluster, id of its topic there, or "") → source partition. An
    analysis topic that was made again is another one: its addresses are other records'.
    """

    def __init__(
        self,
        connection: Connection,
        warehouse: str | None,
        topic: str,
        sources: Mapping[tuple[int, str], SourcePartition],
    ) -> None:
        self._connection = connection
        self._warehouse, self._topic = warehouse, topic
        self._sources = sources
        self._named = {partition for partition, topic_id in sources if topic_id}
        named = tables.load_topics
        query = select(named.c.load_sequence, named.c.log_topic_id).where(*self._where(named))
        self._topic_ids: dict[int, str] = dict(connection.execute(query).tuples().all())
        # Loads of an older headrace name no topic: it is the one that the next load went on with.
        self._first_id = self._topic_ids[min(self._topic_ids)] if self._topic_ids else ""

    def rows(self, *where: ColumnElement[bool]) -> dict[tuple[SourcePartition, int], WrittenRows]:
        """Returns the rows by source and hour (ms). `where`: conditions on `load_rows`."""
        table, named = tables.load_rows, tables.load_topics
        group = (table.c.log_partition, named.c.log_topic_id, table.c.hour_ms)
        sums = (func.sum(table.c[name]) for name in WrittenRows._fields)
        same = and_(*(table.c[name] == named.c[name] for name in _LOAD))
        query = select(*group, *sums).join(named, same, isouter=True).where(*self._where(table), *where)
        found: dict[tuple[SourcePartition, int], WrittenRows] = {}
        for log_partition, topic_id, hour_ms, *counts in self._connection.execute(query.group_by(*group)):
            if source := self._source(log_partition, topic_id):
                known = found.get((source, hour_ms), WrittenRows())
                added = (int(count) + before for count, before in zip(counts, known, strict=True))
                found[source, hour_ms] = WrittenRows(*added)
        return found

    def contents(self, *where: ColumnElement[bool]) -> Iterator[tuple[SourcePartition, int, LoadedContent]]:
        """Yields (source, hour in ms, content) of each load. `where`: conditions on `load_rows`."""
        rows, ranges = tables.load_rows, tables.load_ranges
        columns = (
            rows.c.log_partition,
            rows.c.load_sequence,
            rows.c.hour_ms,
            ranges.c.from_address,
            ranges.c.to_address,
            rows.c.distinct_offsets + rows.c.dead_lettered,
            rows.c.content,
        )
        same = and_(*(rows.c[name] == ranges.c[name] for name in _KEY))
        query = select(*columns).join(ranges, same).where(*self._where(rows), *where)
        for log_partition, sequence, hour_ms, *values in self._connection.execute(query):
            if source := self._source(log_partition, self._topic_ids.get(sequence)):
                yield source, hour_ms, LoadedContent(*values)

    def ranges(self) -> Iterator[tuple[SourcePartition, LoadedRanges]]:
        """Yields (source, ranges)."""
        table = tables.load_ranges
        names = ("log_partition", "load_sequence", "from_address", "to_address", "from_source")
        # Of a year: thousands of rows, of which tuples are read much faster.
        query = select(*(table.c[name] for name in names)).where(*self._where(table))
        by_source: defaultdict[SourcePartition, list[tuple[int, int, int, bool]]] = defaultdict(list)
        known: set[int] = set()
        for log_partition, sequence, *load in self._connection.execute(query).all():
            known.add(sequence)
            if source := self._source(log_partition, self._topic_ids.get(sequence)):
                by_source[source].append((sequence, *load))
        numbers = sorted(known)
        for source, loads in by_source.items():
            cover = union([(start, end) for _, start, end, _ in loads])
            found = LoadedRanges(cover, [(start, end) for _, start, end, taken in loads if taken], [])
            if len(cover) > 1:
                of_copy = (load[:3] for load in loads if not load[3])
                found.unreported.extend(unreported_between(of_copy, numbers))
            yield source, found

    def gaps(self) -> Iterator[tuple[SourcePartition, ReportedGap]]:
        """Yields (source, addresses that an operator let a load skip)."""
        for table in (tables.load_gaps, tables.load_topic_gaps):
            for row in self._connection.execute(select(table).where(*self._where(table))):
                topic_id = getattr(row, "log_topic_id", None)
                if source := self._source(row.log_partition, topic_id):
                    yield source, ReportedGap(row.from_address, row.to_address, row.reason)

    def _where(self, table: Table) -> tuple[ColumnElement[bool], ...]:
        return table.c.warehouse == self._warehouse, table.c.topic == self._topic

    def _source(self, log_partition: int, topic_id: str | None) -> SourcePartition | None:
        """Returns the source of what a load read from a partition; None if no auditor has named it yet."""
        named = self._sources.get((log_partition, topic_id or self._first_id))
        if named or (log_partition in self._named and (topic_id or self._first_id)):
            return named
        return self._sources.get((log_partition, ""))


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
