"""Reads from the store what loads said of what they read, and which reports of loads may be missing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, inspect, select

from headrace.audit.counting.partition_counter import SourcePartition
from headrace.audit.evidence import LoadedContent, ReportedGap, WrittenRows
from headrace.audit.intervals import Interval, union
from headrace.audit.store import load_tables


class LoadedRanges(NamedTuple):
    """The addresses of a partition that loads consumed; of these, what they took from the source's own log;
    and between two loads, what another one may have consumed whose report is missing.
    """

    cover: list[Interval]
    taken: list[Interval]
    unreported: list[Interval]


class _Load(NamedTuple):
    """What a load consumed of a partition of the analysis cluster."""

    sequence: int
    start: int
    end: int
    from_source: bool


class TopicLoads:
    """The loads of a topic into one warehouse, by the source partition of what they read.

    `sources`: (partition of the analysis cluster, id of its topic there, or "") → source partition. An
    analysis topic that was made again is another one: its addresses are other records'. A load that says that
    it begins another log takes the place of earlier loads of the same source behind that address.
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
        self._named: defaultdict[int, set[str]] = defaultdict(set)
        for partition, topic_id in sources:
            if topic_id:
                self._named[partition].add(topic_id)
        self._has_ids = inspect(connection).has_table(load_tables.load_topics.name)  # an older store has none
        named, begins = load_tables.load_topics, load_tables.load_begins
        query = select(named.c.load_sequence, named.c.log_topic_id).where(*self._where(named))
        self._topic_ids: dict[int, str] = {}
        for row in connection.execute(query) if self._has_ids else ():
            self._topic_ids[row.load_sequence] = row.log_topic_id
        self._begun: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        query_begun = select(begins).where(*self._where(begins))
        for row in connection.execute(query_begun) if self._has_ids else ():
            self._begun[row.log_partition].append((row.load_sequence, row.begins_at))
        self._loads = self._read()
        self._sources_of_loads: dict[tuple[int, int], SourcePartition | None] = {}

    def rows(self, *where: ColumnElement[bool]) -> dict[tuple[SourcePartition, int], WrittenRows]:
        """Returns the rows by source and hour (ms). `where`: conditions on `load_rows`."""
        table = load_tables.load_rows
        group = (table.c.log_partition, table.c.load_sequence, table.c.hour_ms)
        values = (table.c[name] for name in WrittenRows._fields)
        query = select(*group, *values).where(*self._where(table), *where)
        found: dict[tuple[SourcePartition, int], WrittenRows] = {}
        for row in self._connection.execute(query):
            if source := self._counted(row.log_partition, row.load_sequence):
                known = found.get((source, row.hour_ms), WrittenRows())
                added = (getattr(row, name) + getattr(known, name) for name in WrittenRows._fields)
                found[source, row.hour_ms] = WrittenRows(*added)
        return found

    def contents(self, *where: ColumnElement[bool]) -> Iterator[tuple[SourcePartition, int, LoadedContent]]:
        """Yields (source, hour in ms, content) of each load. `where`: conditions on `load_rows`."""
        rows = load_tables.load_rows
        names = ("log_partition", "load_sequence", "hour_ms")
        columns: list[ColumnElement[Any]] = [rows.c[name] for name in names]
        columns += [rows.c.distinct_offsets + rows.c.dead_lettered, rows.c.content]
        query = select(*columns).where(*self._where(rows), *where)
        for log_partition, sequence, hour_ms, count, content in self._connection.execute(query):
            if source := self._counted(log_partition, sequence):
                load = self._loads[log_partition][sequence]
                yield source, hour_ms, LoadedContent(load.start, load.end, count, content)

    def ranges(self) -> Iterator[tuple[SourcePartition, LoadedRanges]]:
        """Yields (source, ranges)."""
        by_source: defaultdict[SourcePartition, list[_Load]] = defaultdict(list)
        for log_partition, loads in self._loads.items():
            for load in loads.values():
                if source := self._counted(log_partition, load.sequence):
                    by_source[source].append(load)
        numbers = sorted({sequence for loads in self._loads.values() for sequence in loads})
        for source, found in by_source.items():
            cover = union([(load.start, load.end) for load in found])
            ranges = LoadedRanges(cover, [(load.start, load.end) for load in found if load.from_source], [])
            if len(cover) > 1:
                of_copy = (load[:3] for load in found if not load.from_source)
                ranges.unreported.extend(unreported_between(of_copy, numbers))
            yield source, ranges

    def gaps(self) -> Iterator[tuple[SourcePartition, ReportedGap]]:
        """Yields (source, addresses that an operator let a load skip)."""
        table = load_tables.load_gaps
        for row in self._connection.execute(select(table).where(*self._where(table))):
            if source := self._source(row.log_partition, self._earlier_id(row.log_partition)):
                yield source, ReportedGap(row.from_address, row.to_address, row.reason)
        table = load_tables.load_topic_gaps
        query = select(table).where(*self._where(table))
        for row in self._connection.execute(query) if self._has_ids else ():
            if source := self._remaining(row.log_partition, row.load_sequence, row.from_address):
                yield source, ReportedGap(row.from_address, row.to_address, row.reason)

    def _read(self) -> dict[int, dict[int, _Load]]:
        """Returns log partition → number of the load → what it consumed."""
        table = load_tables.load_ranges
        names = ("log_partition", "load_sequence", "from_address", "to_address", "from_source")
        query = select(*(table.c[name] for name in names)).where(*self._where(table))
        found: defaultdict[int, dict[int, _Load]] = defaultdict(dict)
        # Of a year: thousands of rows, of which tuples are read much faster.
        for row in self._connection.execute(query).all():
            found[row[0]][row[1]] = _Load(*row[1:])
        return found

    def _where(self, table: Table) -> tuple[ColumnElement[bool], ...]:
        return table.c.warehouse == self._warehouse, table.c.topic == self._topic

    def _counted(self, log_partition: int, sequence: int) -> SourcePartition | None:
        """Returns the source of what a load read from a partition; None if no auditor has named it yet, and
        if a later load begins another log of the same source there.
        """
        key = (log_partition, sequence)
        if key not in self._sources_of_loads:
            self._sources_of_loads[key] = self._count(log_partition, sequence)
        return self._sources_of_loads[key]

    def _count(self, log_partition: int, sequence: int) -> SourcePartition | None:
        load = self._loads.get(log_partition, {}).get(sequence)
        return None if load is None else self._remaining(log_partition, sequence, load.start)

    def _remaining(self, log_partition: int, sequence: int, start: int) -> SourcePartition | None:
        """Returns the source of what a load says of addresses from `start` on; None if it counts no more."""
        source = self._source(log_partition, self._topic_id(log_partition, sequence))
        if source is None:
            return None
        for later, begins_at in self._begun.get(log_partition, ()):
            if sequence < later and start >= begins_at:
                same = self._source(log_partition, self._topic_id(log_partition, later))
                if same == source:
                    return None
        return source

    def _topic_id(self, log_partition: int, sequence: int) -> str:
        return self._topic_ids.get(sequence) or self._earlier_id(log_partition)

    def _earlier_id(self, log_partition: int) -> str:
        """Returns the topic's id for loads of an older headrace, which name none: that of the next load,
        which went on with their log. If that one begins another log, theirs is of the only other topic that
        an auditor has named; "?" if there is none, or several.
        """
        if not self._topic_ids:
            return ""
        first = min(self._topic_ids)
        begun = [sequence for sequence, _ in self._begun.get(log_partition, ())]
        in_between = [
            each for each in self._loads.get(log_partition, {}) if first <= each < min(begun, default=0)
        ]
        if not begun or in_between:
            return self._topic_ids[first]
        others = self._named.get(log_partition, set()) - set(self._topic_ids.values())
        return others.pop() if len(others) == 1 else "?"

    def _source(self, log_partition: int, topic_id: str) -> SourcePartition | None:
        """Returns the source of a partition of the analysis cluster's topic with this id."""
        source = self._sources.get((log_partition, topic_id))
        if source or (topic_id and self._named.get(log_partition)):
            return source
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
