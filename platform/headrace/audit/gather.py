"""Reads evidence from the store: everything that the judge needs about one topic and some hours.

Only reads, in one transaction, so that all tiers are seen at the same moment. A *fact* is one kind of
statement in the store about an hour or a source partition, such as its heartbeats. Each fact has a method of
`_Gatherer`, which adds it to the hour's or the partition's builder.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, CursorResult, Table, func, select

from headrace.audit import tables
from headrace.audit.counting import SourcePartition
from headrace.audit.declarations import Incarnation, counted_from
from headrace.audit.evidence import (
    Claim,
    CorruptHere,
    CorruptRange,
    CountedSpan,
    Evidence,
    Handover,
    Heartbeat,
    PartitionEvidence,
    ReportedGap,
    TierEvidence,
    WrittenRows,
)
from headrace.audit.gather_corrupt import as_counted_now, corrupt_rows, hours_of
from headrace.audit.gather_publishers import latest_sequences, publisher_names, publishers
from headrace.audit.intervals import Interval, subtract, union
from headrace.audit.records import ANALYSIS_TIER, DATACENTER_TIER
from headrace.audit.recounts import Recount
from headrace.audit.tally import Span
from headrace.audit.times import HOUR_MS, OUTSIDE_MS, hour_start
from headrace.coordination.declared import Change

ANY_TIME_MS: Final = (-(2**63), 2**63 - 1)
_RANGE_COLUMNS: Final = ("tier", "datacenter", "partition", "from_address", "to_address")


def topics(connection: Connection) -> list[str]:
    """Returns every topic that any tier has reported on."""
    columns = (tables.hours.c.topic, tables.beats.c.topic, tables.load_ranges.c.topic)
    return sorted({row[0] for column in columns for row in connection.execute(select(column).distinct())})


def hours(connection: Connection, topic: str, from_ms: int | None, to_ms: int | None) -> list[int]:
    """Returns the hours of `topic` that overlap [from_ms, to_ms) and that any tier has reported on."""
    found: set[int] = set()
    for table in (tables.hours, tables.load_rows):
        query = select(table.c.hour_ms).where(table.c.topic == topic).distinct()
        if from_ms is not None:
            query = query.where(table.c.hour_ms > from_ms - HOUR_MS)
        if to_ms is not None:
            query = query.where(table.c.hour_ms < to_ms)
        found.update(hour_start(row[0]) for row in connection.execute(query))
    return sorted(found)


def evidence(connection: Connection, topic: str, hours_ms: list[int]) -> Iterator[Evidence]:
    """Yields the evidence of every (hour, datacenter), by hour, then datacenter.

    The loads that count are those of the warehouse that loaded the topic last.
    """
    if not hours_ms:
        return
    from_ms, to_ms = min(hours_ms), max(hours_ms) + HOUR_MS
    if OUTSIDE_MS in hours_ms:
        from_ms, to_ms = ANY_TIME_MS  # a store that older versions filled holds such times as they are
    facts = _Gatherer(connection, topic, from_ms, to_ms)
    datacenters = _datacenters(connection, topic)
    partitions = facts.partition_evidence()
    states = {name: publishers(connection, name) for name in datacenters}
    names = {name: publisher_names(connection, name) for name in datacenters}
    latest = {name: latest_sequences(connection, topic, name) for name in datacenters}
    declared = _incarnations(connection, topic)
    for hour_ms in hours_ms:
        for datacenter in datacenters:
            hour = facts.hours[datacenter, hour_ms]
            yield Evidence(
                topic=topic,
                datacenter=datacenter,
                hour_ms=hour_ms,
                claims=tuple(hour.claims),
                handovers=tuple(hour.handovers),
                datacenter_spans=tuple(hour.spans[DATACENTER_TIER]),
                analysis_spans=tuple(hour.spans[ANALYSIS_TIER]),
                partitions=partitions[datacenter],
                rows=hour.rows,
                publishers=states[datacenter],
                publisher_names=names[datacenter],
                latest=latest[datacenter],
                touched_ms=hour.touched_ms,
                corrupt=tuple(hour.corrupt),
                counted_from=counted_from(declared[datacenter], hour_ms),
            )


@dataclass(slots=True)
class _HourFacts:
    """The facts about one hour of the topic from one datacenter. `spans` are by tier, `rows` by partition."""

    claims: list[Claim] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)
    spans: defaultdict[str, list[CountedSpan]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[int, WrittenRows] = field(default_factory=dict)
    touched_ms: int = 0
    corrupt: list[CorruptHere] = field(default_factory=list)


@dataclass(slots=True)
class _TierFacts:
    """What one tier reported about one source partition."""

    ranges: list[Interval] = field(default_factory=list)
    heartbeat: Heartbeat | None = None
    gaps: list[ReportedGap] = field(default_factory=list)
    corrupt: list[CorruptRange] = field(default_factory=list)
    recounts: list[Recount] = field(default_factory=list)

    def evidence(self) -> TierEvidence:
        parts = (tuple(self.gaps), tuple(self.corrupt), tuple(self.recounts))
        return TierEvidence(tuple(union(self.ranges)), self.heartbeat, *parts)


@dataclass(slots=True)
class _PartitionFacts:
    """The facts about one source partition of the topic."""

    log_partition: int | None = None
    datacenter: _TierFacts = field(default_factory=_TierFacts)
    analysis: _TierFacts = field(default_factory=_TierFacts)
    warehouse: _TierFacts = field(default_factory=_TierFacts)
    contradictions: list[str] = field(default_factory=list)

    def of_auditor(self, tier: str) -> _TierFacts:
        """Returns the facts of a tier that an auditor counts."""
        return self.analysis if tier == ANALYSIS_TIER else self.datacenter

    def evidence(self) -> PartitionEvidence:
        return PartitionEvidence(
            self.log_partition,
            self.datacenter.evidence(),
            self.analysis.evidence(),
            self.warehouse.evidence(),
            tuple(self.contradictions),
        )


class _Gatherer:
    """Collects all facts about the hours in [from_ms, to_ms) of a topic, and about its partitions."""

    def __init__(self, connection: Connection, topic: str, from_ms: int, to_ms: int) -> None:
        self.hours: defaultdict[tuple[str, int], _HourFacts] = defaultdict(_HourFacts)
        self._connection = connection
        self._topic = topic
        self._from_ms, self._to_ms = from_ms, to_ms
        self._warehouse = _last_warehouse(connection, topic)
        self._partitions: defaultdict[SourcePartition, _PartitionFacts] = defaultdict(_PartitionFacts)
        # Loads report on partitions of the analysis cluster: analysis partition → source partition.
        self._sources: dict[int, SourcePartition] = {}
        # `_add_rows`, `_add_loads` and `_add_load_gaps` look up `_sources`; the others need no order.
        self._add_sources()
        self._add_handovers()
        self._add_spans()
        self._add_rows()
        self._add_touched()
        self._add_counted_ranges()
        self._add_contradictions()
        self._add_corrupt()  # after the counted ranges
        self._add_heartbeats()
        self._add_gaps()
        self._add_recounts()
        self._add_loads()
        self._add_load_gaps()

    def partition_evidence(self) -> defaultdict[str, dict[int, PartitionEvidence]]:
        """Returns datacenter → source partition → evidence."""
        found: defaultdict[str, dict[int, PartitionEvidence]] = defaultdict(dict)
        for source, facts in self._partitions.items():
            found[source.datacenter][source.partition] = facts.evidence()
        return found

    def _hour(self, datacenter: str, time_ms: int) -> _HourFacts:
        return self.hours[datacenter, hour_start(time_ms)]

    def _in_window(self, column: Column[int]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return column >= self._from_ms, column < self._to_ms

    # --- facts about hours ---

    def _add_handovers(self) -> None:
        table = tables.handovers
        query = select(table).where(table.c.topic == self._topic, *self._in_window(table.c.bucket_start_ms))
        for row in self._connection.execute(query):
            hour = self._hour(row.datacenter, row.bucket_start_ms)
            ranges = json.loads(row.ranges)
            sequenced = sum(last - first + 1 for *_, first, last in ranges)
            hour.handovers.append(
                Handover(row.publisher, row.handed_over_count, sequenced, row.final, row.reported_ms)
            )
            withdrawn = _withdrawn(json.loads(row.ever), ranges)
            for is_withdrawn, claimed in ((False, ranges), (True, withdrawn)):
                for partition, producer_id, epoch, first, last in claimed:
                    identity = (row.publisher, partition, producer_id, epoch)
                    hour.claims.append(Claim(*identity, first, last, is_withdrawn, row.reported_ms))

    def _add_spans(self) -> None:
        span, tally = tables.spans, tables.tallies
        span_columns = [span.c[name] for name in Span._fields]
        query = (
            select(tally.c.tier, tally.c.datacenter, tally.c.partition, tally.c.counted_ms, *span_columns)
            .join(tally, tally.c.id == span.c.tally_id)
            .where(tally.c.topic == self._topic, tally.c.chosen, *self._in_window(span.c.bucket_start_ms))
            .order_by(tally.c.from_address, span.c.first_address)
        )
        for tier, datacenter, partition, counted_ms, *values in self._connection.execute(query):
            counted = CountedSpan(partition, Span(*values), counted_ms)
            self._hour(datacenter, counted.span.bucket_start_ms).spans[tier].append(counted)

    def _add_rows(self) -> None:
        table = tables.load_rows
        group = (table.c.log_partition, table.c.hour_ms)
        sums = (func.sum(table.c[name]) for name in WrittenRows._fields)
        query = select(*group, *sums).where(*self._where_loads(table), *self._in_window(table.c.hour_ms))
        for log_partition, hour_ms, *counts in self._connection.execute(query.group_by(*group)):
            if source := self._sources.get(log_partition):
                rows = WrittenRows(*(int(count) for count in counts))
                self._hour(source.datacenter, hour_ms).rows[source.partition] = rows

    def _add_touched(self) -> None:
        table = tables.hours
        query = select(table).where(table.c.topic == self._topic, *self._in_window(table.c.hour_ms))
        for row in self._connection.execute(query):
            self._hour(row.datacenter, row.hour_ms).touched_ms = row.touched_ms

    # --- facts about partitions ---

    def _add_sources(self) -> None:
        for row in self._rows_of_topic(tables.attributions):
            source = SourcePartition(row.datacenter, row.partition)
            self._sources[row.log_partition] = source
            self._partitions[source].log_partition = row.log_partition

    def _add_counted_ranges(self) -> None:
        table = tables.tallies
        columns = [table.c[name] for name in _RANGE_COLUMNS]
        query = select(*columns).where(table.c.topic == self._topic, table.c.chosen)
        for tier, datacenter, partition, start, end in self._connection.execute(query):
            facts = self._partitions[SourcePartition(datacenter, partition)]
            facts.of_auditor(tier).ranges.append((start, end))

    def _add_contradictions(self) -> None:
        table = tables.tallies
        group = [table.c[name] for name in _RANGE_COLUMNS]
        several_digests = func.count(table.c.digest.distinct()) > 1
        query = select(*group).where(table.c.topic == self._topic).group_by(*group).having(several_digests)
        for tier, datacenter, partition, start, end in self._connection.execute(query.order_by(*group)):
            problem = (
                f"addresses {start} to {end} of {self._topic}, partition {partition} of {datacenter}, were "
                f"counted twice in tier {tier} with different results: the log changed, or the topic was "
                "deleted and created again"
            )
            self._partitions[SourcePartition(datacenter, partition)].contradictions.append(problem)

    def _add_corrupt(self) -> None:
        for row, reported in corrupt_rows(self._connection, self._topic):
            facts = self._partitions[SourcePartition(row.datacenter, row.partition)].of_auditor(row.tier)
            corrupt = as_counted_now(reported, facts.ranges)
            if corrupt is None:
                continue
            facts.corrupt.append(corrupt)
            here = CorruptHere(row.tier, row.partition, corrupt)
            for hour_ms in hours_of(self._connection, row):
                self.hours[row.datacenter, hour_ms].corrupt.append(here)

    def _add_heartbeats(self) -> None:
        for row in self._rows_of_topic(tables.beats):
            facts = self._partitions[SourcePartition(row.datacenter, row.partition)]
            heartbeat = Heartbeat(row.at_ms, row.counted_to_address, row.end_address)
            facts.of_auditor(row.tier).heartbeat = heartbeat

    def _add_gaps(self) -> None:
        for row in self._rows_of_topic(tables.gaps):
            facts = self._partitions[SourcePartition(row.datacenter, row.partition)]
            gap = ReportedGap(row.from_address, row.to_address, row.reason)
            facts.of_auditor(row.tier).gaps.append(gap)

    def _add_recounts(self) -> None:
        for row in self._rows_of_topic(tables.recounts):
            facts = self._partitions[SourcePartition(row.datacenter, row.partition)].of_auditor(row.tier)
            facts.recounts.append(Recount(row.from_address, row.to_address, row.said_ms, row.cause))

    def _add_loads(self) -> None:
        table = tables.load_ranges
        for row in self._connection.execute(select(table).where(*self._where_loads(table))):
            if source := self._sources.get(row.log_partition):
                self._partitions[source].warehouse.ranges.append((row.from_address, row.to_address))

    def _add_load_gaps(self) -> None:
        table = tables.load_gaps
        for row in self._connection.execute(select(table).where(*self._where_loads(table))):
            if source := self._sources.get(row.log_partition):
                gap = ReportedGap(row.from_address, row.to_address, row.reason)
                self._partitions[source].warehouse.gaps.append(gap)

    def _rows_of_topic(self, table: Table) -> CursorResult[Any]:
        return self._connection.execute(select(table).where(table.c.topic == self._topic))

    def _where_loads(self, table: Table) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        """Returns the condition that selects this topic's loads into its warehouse."""
        return table.c.warehouse == self._warehouse, table.c.topic == self._topic


def _incarnations(connection: Connection, topic: str) -> defaultdict[str, list[Incarnation]]:
    """Returns datacenter → what the topic declares there, from its creation to each deletion."""
    table = tables.declarations
    found: defaultdict[str, list[Incarnation]] = defaultdict(list)
    for row in connection.execute(select(table).where(table.c.topic == topic)):
        changes = tuple(Change(*change) for change in json.loads(row.changes))
        found[row.datacenter].append(Incarnation(row.first_said_ms, changes))
    return found


def _datacenters(connection: Connection, topic: str) -> list[str]:
    found: set[str] = set()
    for table in (tables.hours, tables.beats):
        query = select(table.c.datacenter).where(table.c.topic == topic).distinct()
        found.update(row[0] for row in connection.execute(query))
    return sorted(found)


def _last_warehouse(connection: Connection, topic: str) -> str | None:
    """Returns the warehouse that loaded `topic` last."""
    table = tables.load_ranges
    query = select(table.c.warehouse).where(table.c.topic == topic).order_by(table.c.committed_ms.desc())
    return connection.execute(query.limit(1)).scalar()


def _withdrawn(
    ever_claimed_ranges: list[list[int]], ranges: list[list[int]]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields ranges that an earlier report claimed and the newest one dropped (renumbered batches)."""
    current: defaultdict[tuple[int, ...], list[Interval]] = defaultdict(list)
    for *identity, first, last in ranges:
        current[tuple(identity)].append((first, last + 1))
    for partition, producer_id, epoch, first, last in ever_claimed_ranges:
        for start, end in subtract([(first, last + 1)], current[partition, producer_id, epoch]):
            yield partition, producer_id, epoch, start, end - 1
