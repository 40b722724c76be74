"""Reads evidence from the store: everything that the judge needs about one topic and some hours.

Only reads, in one transaction, so that all tiers are seen at the same moment. A *fact* is one kind of
statement in the store about an hour or a source partition, such as its heartbeats. Each fact has a method of
`_Gatherer`, which adds it to a builder (`audit.gathering.facts`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, CursorResult, Table, func, select

from headrace.audit.batches.tally import Span
from headrace.audit.counting.partition_counter import SourcePartition
from headrace.audit.evidence import (
    Claim,
    CorruptHere,
    CountedSpan,
    Evidence,
    Handover,
    Heartbeat,
    PartitionEvidence,
    ReportedGap,
)
from headrace.audit.gathering.corrupt import as_counted_now, corrupt_rows, hours_of
from headrace.audit.gathering.facts import HourFacts, LogFacts, PartitionFacts
from headrace.audit.gathering.frontiers import frontiers, gap_times
from headrace.audit.gathering.loads import TopicLoads
from headrace.audit.gathering.publishers import (
    KnownPublishers,
    Numbers,
    ahead_ms,
    clock_skews,
    lost_logs,
    missing_reports,
    unclosed,
    withdrawn,
)
from headrace.audit.gathering.repairs import acceptances_of, moved_claims, resent_rows, with_numbers
from headrace.audit.gathering.reported import ANY_TIME_MS, datacenters_of
from headrace.audit.gathering.tests import doubled_rows, unsound_files
from headrace.audit.gathering.topics import (
    NamedTopics,
    declared_partitions,
    deletions_of,
    incarnations_of,
    needed_numbers,
    repeated_tallies,
    share_claims,
)
from headrace.audit.intervals import Interval, union
from headrace.audit.store import load_tables, tables
from headrace.audit.store.forgotten import ForgottenHours
from headrace.audit.store.kept import last_warehouse
from headrace.audit.times import HOUR_MS, OUTSIDE_MS, hour_start
from headrace.audit.topic.declarations import counted_from
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER
from headrace.audit.topic.recounts import Recount, is_precaution
from headrace.audit.topic.resent import NO_NUMBER
from headrace.wire.content import from_hex

_RANGE_COLUMNS: Final = ("tier", *SourcePartition._fields, "from_address", "to_address")


def evidence(
    connection: Connection, topic: str, hours_ms: list[int], known: KnownPublishers | None = None
) -> Iterator[Evidence]:
    """Yields the evidence of every (hour, datacenter), by hour, then datacenter.

    The loads that count are those of the warehouse that loaded the topic last. `known`: of this transaction,
    for several topics.
    """
    if not hours_ms:
        return
    from_ms, to_ms = min(hours_ms), max(hours_ms) + HOUR_MS
    if OUTSIDE_MS in hours_ms:
        from_ms, to_ms = ANY_TIME_MS  # a store that older versions filled holds such times as they are
    facts = _Gatherer(connection, topic, from_ms, to_ms)
    datacenters = datacenters_of(connection, topic)
    partitions = facts.partition_evidence()
    known = known or KnownPublishers(connection)
    states = {name: known.states(name) for name in datacenters}
    open_ones = {name: unclosed(connection, topic, name) for name in datacenters}
    names = {name: known.names(name) for name in datacenters}
    numbers = {
        name: needed_numbers(connection, topic, name, facts.named, facts.hours, facts.logs)
        for name in datacenters
    }
    declared, deleted_ms = incarnations_of(connection, topic), deletions_of(connection, topic)
    counts = declared_partitions(connection, topic)
    accepted = acceptances_of(connection, topic, from_ms, to_ms)
    warehouse = last_warehouse(connection, topic)
    unsound = unsound_files(connection, topic, warehouse)
    doubled = doubled_rows(connection, topic, warehouse)
    missing = {name: missing_reports(connection, topic, name) for name in datacenters}
    lost = {name: lost_logs(connection, name) for name in datacenters}
    ahead = {name: ahead_ms(connection, name) for name in datacenters}
    forgotten = ForgottenHours(connection, topic)
    for hour_ms in hours_ms:
        for datacenter in datacenters:
            common: dict[str, Any] = {
                "topic": topic,
                "datacenter": datacenter,
                "hour_ms": hour_ms,
                "publishers": states[datacenter],
                "publisher_names": names[datacenter],
                "counted_from": counted_from(declared[datacenter], hour_ms),
                "acceptances": accepted,
                "is_forgotten": forgotten.has(datacenter, hour_ms),
            }
            found = _evidence(facts, common, partitions, numbers[datacenter])
            yield replace(
                found,
                unclosed=open_ones[datacenter],
                ahead_ms=ahead[datacenter],
                deleted_ms=deleted_ms.get((datacenter, found.topic_id)),
                declared=counts.get((datacenter, found.topic_id)),
                missing_reports=missing[datacenter],
                lost_logs=lost[datacenter],
                unsound_files=unsound[hour_ms],
                doubled=doubled[hour_ms],
            )


def _evidence(
    facts: _Gatherer,
    common: dict[str, Any],
    partitions: Mapping[tuple[str, str], dict[int, PartitionEvidence]],
    numbers: Numbers,
) -> Evidence:
    """Returns the evidence of one hour and datacenter; that of each deleted topic of the name within it."""
    datacenter, hour_ms = common["datacenter"], common["hour_ms"]
    named, hour = facts.named.of(datacenter), facts.hours[datacenter, hour_ms]
    logs = [facts.logs[datacenter, each.topic_id, hour_ms] for each in named]
    spans = (log.spans[DATACENTER_TIER] for log in logs)
    shares = share_claims(hour.claims, named, spans, numbers, common["publishers"])
    found: list[Evidence] = []
    for each, log, claims in zip(named, logs, shares.of_topics, strict=True):
        of_log = Evidence(
            **common,
            topic_id=each.topic_id,
            claims=tuple(claims),
            datacenter_spans=tuple(log.spans[DATACENTER_TIER]),
            analysis_spans=tuple(log.spans[ANALYSIS_TIER]),
            partitions=partitions[datacenter, each.topic_id],
            rows=log.rows,
            loads={partition: tuple(loads) for partition, loads in log.loads.items()},
            latest=numbers.latest.get(each.topic_id, {}),
            corrupt=tuple(log.corrupt),
            is_deleted=each is not named[-1],
        )
        if not of_log.is_deleted or log or any(not claim.withdrawn for claim in claims):
            found.append(of_log)
    return replace(
        found[-1],
        handovers=tuple(hour.handovers),
        touched_ms=hour.touched_ms,
        earlier=tuple(found[:-1]),
        between=tuple(shares.between),
        made_again_ms=named[-1].first_ms if len(named) > 1 else None,
    )


class _Gatherer:
    """Collects all facts about the hours in [from_ms, to_ms) of a topic, and about its partitions."""

    def __init__(self, connection: Connection, topic: str, from_ms: int, to_ms: int) -> None:
        self.named = NamedTopics(connection, topic)
        self.hours: defaultdict[tuple[str, int], HourFacts] = defaultdict(HourFacts)
        self.logs: defaultdict[tuple[str, str, int], LogFacts] = defaultdict(LogFacts)
        self._connection = connection
        self._topic = topic
        self._from_ms, self._to_ms = from_ms, to_ms
        self._partitions: defaultdict[SourcePartition, PartitionFacts] = defaultdict(PartitionFacts)
        self._repeated = repeated_tallies(connection, topic, self.named)
        # Loads report on partitions of the analysis cluster: (partition, id of its topic) → source partition.
        self._sources: dict[tuple[int, str], SourcePartition] = {}
        self._add_sources()
        self._loads = TopicLoads(connection, last_warehouse(connection, topic), topic, self._sources)
        self._add_handovers()
        self._add_resent()  # after the handovers
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

    def partition_evidence(self) -> defaultdict[tuple[str, str], dict[int, PartitionEvidence]]:
        """Returns (datacenter, topic's id) → source partition → evidence."""
        found: defaultdict[tuple[str, str], dict[int, PartitionEvidence]] = defaultdict(dict)
        for source, facts in self._partitions.items():
            found[source.datacenter, source.topic_id][source.partition] = facts.evidence()
        return found

    def _hour(self, datacenter: str, time_ms: int) -> HourFacts:
        return self.hours[datacenter, hour_start(time_ms)]

    def _log(self, source: SourcePartition, time_ms: int) -> LogFacts:
        return self.logs[source.datacenter, source.topic_id, hour_start(time_ms)]

    def _source(self, datacenter: str, partition: int, topic_id: str) -> SourcePartition:
        return SourcePartition(datacenter, partition, self.named.meant(datacenter, topic_id))

    def _facts_of(self, row: Any) -> PartitionFacts:
        return self._partitions[self._source(row.datacenter, row.partition, row.topic_id)]

    def _in_window(self, column: Column[int]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return column >= self._from_ms, column < self._to_ms

    # --- facts about hours ---

    def _add_handovers(self) -> None:
        table = tables.handovers
        query = select(table).where(table.c.topic == self._topic, *self._in_window(table.c.bucket_start_ms))
        skews = clock_skews(self._connection)
        for row in self._connection.execute(query):
            hour = self._hour(row.datacenter, row.bucket_start_ms)
            ranges, reported_ms = (
                json.loads(row.ranges),
                row.reported_ms - skews[row.datacenter, row.publisher],
            )
            sequenced = sum(last - first + 1 for *_, first, last in ranges)
            hour.handovers.append(
                Handover(row.publisher, row.handed_over_count, sequenced, row.final, reported_ms)
            )
            for numbers, content in zip(ranges, json.loads(row.contents), strict=True):
                partition, producer_id, epoch, first, last = numbers
                identity = (row.publisher, partition, producer_id, epoch)
                hour.claims.append(Claim(*identity, first, last, False, reported_ms, from_hex(content)))
            for range_ in withdrawn(json.loads(row.ever), ranges):
                hour.claims.append(Claim(row.publisher, *range_, True, reported_ms))

    def _add_resent(self) -> None:
        table = tables.resent
        of_topic = (table.c.topic == self._topic, *self._in_window(table.c.bucket_start_ms))
        for row in resent_rows(self._connection, *of_topic):
            hour = self._hour(row.datacenter, row.bucket_start_ms)
            hour.claims += moved_claims(row)
            if row.old_producer_id == NO_NUMBER:
                count = row.last_sequence - row.first_sequence + 1
                hour.handovers = with_numbers(hour.handovers, row.publisher, count)

    def _add_spans(self) -> None:
        span, tally = tables.spans, tables.tallies
        span_columns = [span.c[name] for name in Span._fields]
        columns = [tally.c[name] for name in ("id", "tier", *SourcePartition._fields, "counted_ms")]
        query = (
            select(*columns, *span_columns)
            .join(tally, tally.c.id == span.c.tally_id)
            .where(tally.c.topic == self._topic, tally.c.chosen, *self._in_window(span.c.bucket_start_ms))
            .order_by(tally.c.from_address, span.c.first_address)
        )
        for row, tier, *place, counted_ms, values in _with_rest(
            self._connection.execute(query), len(columns)
        ):
            if row not in self._repeated:
                source = self._source(*place)
                counted = CountedSpan(source.partition, Span(*values), counted_ms)
                self._log(source, counted.span.bucket_start_ms).spans[tier].append(counted)

    def _add_rows(self) -> None:
        window = self._in_window(load_tables.load_rows.c.hour_ms)
        for (source, hour_ms), rows in self._loads.rows(*window).items():
            self._log(source, hour_ms).rows[source.partition] = rows
        for source, hour_ms, loaded in self._loads.contents(*window):
            self._log(source, hour_ms).loads[source.partition].append(loaded)

    def _add_touched(self) -> None:
        table = tables.hours
        query = select(table).where(table.c.topic == self._topic, *self._in_window(table.c.hour_ms))
        for row in self._connection.execute(query):
            self._hour(row.datacenter, row.hour_ms).touched_ms = row.touched_ms

    # --- facts about partitions ---

    def _add_sources(self) -> None:
        for row in self._rows_of_topic(tables.attributions):
            source = self._source(row.datacenter, row.partition, row.topic_id)
            self._sources[row.log_partition, row.log_topic_id] = source
            self._partitions[source].log_partition = row.log_partition

    def _add_counted_ranges(self) -> None:
        table = tables.tallies
        columns = [table.c[name] for name in _RANGE_COLUMNS]
        query = select(table.c.id, *columns, table.c.counted_ms).where(
            table.c.topic == self._topic, table.c.chosen
        )
        for row, tier, *place, start, end, counted_ms in self._connection.execute(query):
            if row in self._repeated:
                continue
            facts = self._partitions[self._source(*place)].of_auditor(tier)
            facts.ranges.append((start, end))
            facts.counted.append((end, counted_ms))
            facts.first = min(facts.first or (start, counted_ms), (start, counted_ms))

    def _add_contradictions(self) -> None:
        table = tables.tallies
        group = [table.c[name] for name in _RANGE_COLUMNS]
        several_digests = func.count(table.c.digest.distinct()) > 1
        query = select(*group).where(table.c.topic == self._topic).group_by(*group).having(several_digests)
        for tier, *place, start, end in self._connection.execute(query.order_by(*group)):
            source = self._source(*place)
            problem = (
                f"addresses {start} to {end} of {self._topic}, partition {source.partition} of "
                f"{source.datacenter}, were counted twice in tier {tier} with different results: the log "
                "changed"
            )
            self._partitions[source].contradictions.append(problem)

    def _add_corrupt(self) -> None:
        counted: dict[int, list[Interval]] = {}
        for row, reported in corrupt_rows(self._connection, self._topic):
            facts = self._facts_of(row).of_auditor(row.tier)
            if id(facts) not in counted:
                counted[id(facts)] = union(facts.ranges)
            corrupt = as_counted_now(reported, counted[id(facts)])
            if corrupt is None:
                continue
            facts.corrupt.append(corrupt)
            here = CorruptHere(row.tier, row.partition, corrupt)
            topic_id = self.named.meant(row.datacenter, row.topic_id)
            for hour_ms in hours_of(self._connection, row):
                self.logs[row.datacenter, topic_id, hour_ms].corrupt.append(here)

    def _add_heartbeats(self) -> None:
        for row in self._rows_of_topic(tables.beats):
            heartbeat = Heartbeat(row.at_ms, row.counted_to_address, row.end_address)
            facts = self._facts_of(row).of_auditor(row.tier)
            if facts.heartbeat is None or facts.heartbeat.at_ms < heartbeat.at_ms:
                facts.heartbeat = heartbeat

        for datacenter, partition, topic_id, time_ms in frontiers(self._connection, self._topic):
            self._partitions[self._source(datacenter, partition, topic_id)].datacenter.frontier_ms = time_ms

    def _add_gaps(self) -> None:
        for row, first_ms, last_ms in gap_times(self._connection, self._topic):
            gap = ReportedGap(row.from_address, row.to_address, row.reason, first_ms, last_ms)
            self._facts_of(row).of_auditor(row.tier).gaps.append(gap)

    def _add_recounts(self) -> None:
        for row in self._rows_of_topic(tables.recounts):
            if is_precaution(row.cause):
                continue  # it took tallies back, and says nothing about the log
            facts = self._facts_of(row).of_auditor(row.tier)
            facts.recounts.append(Recount(row.from_address, row.to_address, row.said_ms, row.cause))

    def _add_loads(self) -> None:
        for source, loaded in self._loads.ranges():
            facts = self._partitions[source]
            facts.warehouse.ranges += loaded.cover
            facts.taken += loaded.taken
            facts.unreported += loaded.unreported

    def _add_load_gaps(self) -> None:
        for source, gap in self._loads.gaps():
            self._partitions[source].warehouse.gaps.append(gap)

    def _rows_of_topic(self, table: Table) -> CursorResult[Any]:
        return self._connection.execute(select(table).where(table.c.topic == self._topic))


def _with_rest(rows: Iterable[Any], count: int) -> Iterator[tuple[Any, ...]]:
    """Yields the first `count` values of each row, and the others as one."""
    for row in rows:
        yield (*row[:count], row[count:])
