"""Reading evidence out of the store: for one topic and a window of hours, everything the judge needs.

Only reads, in one transaction, so that all tiers are seen as of one moment.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from headrace.audit import tables
from headrace.audit.cover import Candidate, contradictions
from headrace.audit.evidence import (
    Beat,
    Claim,
    Counted,
    Evidence,
    Handover,
    Hole,
    PartitionEvidence,
    PublisherLife,
    Rows,
)
from headrace.audit.intervals import subtract, union
from headrace.audit.records import ANALYSIS_TIER, DATACENTER_TIER
from headrace.audit.tally import HOUR_MS, Span

_SourcePartition = tuple[str, int]  # (datacenter, partition)


class _HourParts(NamedTuple):
    """What is collected for one (datacenter, hour)."""

    claims: list[Claim]
    handovers: list[Handover]
    spans: dict[str, list[Counted]]
    rows: dict[int, Rows]


def topics(connection: Connection) -> list[str]:
    """Every topic that any tier has said anything about."""
    columns = (tables.hours.c.topic, tables.beats.c.topic, tables.load_ranges.c.topic)
    return sorted({row[0] for column in columns for row in connection.execute(select(column).distinct())})


def datacenters(connection: Connection, topic: str) -> list[str]:
    """Every datacenter that has said anything about `topic`."""
    found: set[str] = set()
    for table in (tables.hours, tables.beats):
        query = select(table.c.datacenter).where(table.c.topic == topic).distinct()
        found.update(row[0] for row in connection.execute(query))
    return sorted(found)


def hours(connection: Connection, topic: str, from_ms: int | None, to_ms: int | None) -> list[int]:
    """The hours of `topic` that overlap [from_ms, to_ms) and that anything is known about."""
    found: set[int] = set()
    for table in (tables.hours, tables.load_rows):
        query = select(table.c.hour_ms).where(table.c.topic == topic).distinct()
        if from_ms is not None:
            query = query.where(table.c.hour_ms > from_ms - HOUR_MS)
        if to_ms is not None:
            query = query.where(table.c.hour_ms < to_ms)
        found.update(row[0] for row in connection.execute(query))
    return sorted(found)


def warehouse_of(connection: Connection, topic: str) -> str | None:
    """The warehouse that loaded `topic` last."""
    table = tables.load_ranges
    query = select(table.c.warehouse).where(table.c.topic == topic).order_by(table.c.committed_ms.desc())
    return connection.execute(query.limit(1)).scalar()


def evidence(
    connection: Connection, topic: str, hours_ms: list[int], warehouse: str | None = None
) -> Iterator[Evidence]:
    """The evidence of every (datacenter, hour) of `hours_ms`, by hour, then datacenter.

    `warehouse`: whose loads count; the one that loaded the topic last if not said.
    """
    if not hours_ms:
        return
    dcs = datacenters(connection, topic)
    warehouse = warehouse if warehouse is not None else warehouse_of(connection, topic)
    window = (min(hours_ms), max(hours_ms) + HOUR_MS)
    attribution = _attribution(connection, topic)
    parts: defaultdict[tuple[str, int], _HourParts] = defaultdict(
        lambda: _HourParts([], [], {DATACENTER_TIER: [], ANALYSIS_TIER: []}, {})
    )
    _collect_handovers(connection, topic, window, parts)
    _collect_spans(connection, topic, window, parts)
    _collect_rows(connection, topic, window, warehouse, attribution, parts)
    touched_ms = _touched(connection, topic, window)
    partitions = _partitions(connection, topic, warehouse, attribution)
    publishers = {dc: _publishers(connection, dc) for dc in dcs}
    owners = {dc: _publisher_of(connection, dc) for dc in dcs}
    latest = {dc: _latest(connection, topic, dc) for dc in dcs}
    for hour_ms in hours_ms:
        for dc in dcs:
            part = parts[dc, hour_ms]
            yield Evidence(
                topic=topic,
                datacenter=dc,
                hour_ms=hour_ms,
                claims=tuple(part.claims),
                handovers=tuple(part.handovers),
                datacenter_spans=tuple(part.spans[DATACENTER_TIER]),
                analysis_spans=tuple(part.spans[ANALYSIS_TIER]),
                partitions=partitions.get(dc, {}),
                rows=part.rows,
                publishers=publishers[dc],
                publisher_of=owners[dc],
                latest=latest[dc],
                touched_ms=touched_ms.get((dc, hour_ms), 0),
            )


def _collect_handovers(
    connection: Connection, topic: str, window: tuple[int, int], parts: dict[tuple[str, int], _HourParts]
) -> None:
    table = tables.handovers
    query = select(table).where(
        table.c.topic == topic, table.c.bucket_start_ms >= window[0], table.c.bucket_start_ms < window[1]
    )
    for row in connection.execute(query):
        part = parts[row.datacenter, row.bucket_start_ms - row.bucket_start_ms % HOUR_MS]
        ranges = json.loads(row.ranges)
        sequenced = sum(last - first + 1 for *_, first, last in ranges)
        part.handovers.append(
            Handover(row.publisher, row.handed_over_count, sequenced, row.final, row.reported_ms)
        )
        part.claims.extend(
            Claim(row.publisher, partition, producer_id, epoch, first, last, False, row.reported_ms)
            for partition, producer_id, epoch, first, last in ranges
        )
        part.claims.extend(
            Claim(row.publisher, *each, True, row.reported_ms)
            for each in _withdrawn(json.loads(row.ever), ranges)
        )


def _withdrawn(ever: list[list[int]], ranges: list[list[int]]) -> Iterator[tuple[int, int, int, int, int]]:
    """What was claimed once and is no more."""
    now: defaultdict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    for *identity, first, last in ranges:
        now[tuple(identity)].append((first, last + 1))
    for partition, producer_id, epoch, first, last in ever:
        for start, end in subtract([(first, last + 1)], now[partition, producer_id, epoch]):
            yield partition, producer_id, epoch, start, end - 1


def _collect_spans(
    connection: Connection, topic: str, window: tuple[int, int], parts: dict[tuple[str, int], _HourParts]
) -> None:
    table, tally = tables.spans, tables.tallies
    span_columns = [table.c[name] for name in Span._fields]
    query = (
        select(tally.c.tier, tally.c.datacenter, tally.c.partition, tally.c.counted_ms, *span_columns)
        .join(tally, tally.c.id == table.c.tally_id)
        .where(
            tally.c.topic == topic,
            tally.c.chosen,
            table.c.bucket_start_ms >= window[0],
            table.c.bucket_start_ms < window[1],
        )
        .order_by(tally.c.from_address, table.c.first_address)
    )
    for tier, dc, partition, counted_ms, *values in connection.execute(query):
        span = Span(*values)
        part = parts[dc, span.bucket_start_ms - span.bucket_start_ms % HOUR_MS]
        part.spans[tier].append(Counted(partition, span, counted_ms))


def _collect_rows(
    connection: Connection,
    topic: str,
    window: tuple[int, int],
    warehouse: str | None,
    attribution: dict[int, _SourcePartition],
    parts: dict[tuple[str, int], _HourParts],
) -> None:
    table = tables.load_rows
    query = (
        select(
            table.c.log_partition,
            table.c.hour_ms,
            func.sum(table.c.rows),
            func.sum(table.c.distinct_offsets),
            func.sum(table.c.dead_lettered),
        )
        .where(
            table.c.warehouse == warehouse,
            table.c.topic == topic,
            table.c.hour_ms >= window[0],
            table.c.hour_ms < window[1],
        )
        .group_by(table.c.log_partition, table.c.hour_ms)
    )
    for log_partition, hour_ms, *sums in connection.execute(query):
        if log_partition in attribution:
            dc, partition = attribution[log_partition]
            parts[dc, hour_ms].rows[partition] = Rows(*(int(value) for value in sums))


def _touched(connection: Connection, topic: str, window: tuple[int, int]) -> dict[tuple[str, int], int]:
    table = tables.hours
    query = select(table.c.datacenter, table.c.hour_ms, table.c.touched_ms).where(
        table.c.topic == topic, table.c.hour_ms >= window[0], table.c.hour_ms < window[1]
    )
    return {(dc, hour_ms): at_ms for dc, hour_ms, at_ms in connection.execute(query)}


def _attribution(connection: Connection, topic: str) -> dict[int, _SourcePartition]:
    table = tables.attributions
    query = select(table.c.log_partition, table.c.datacenter, table.c.partition).where(table.c.topic == topic)
    return {log_partition: (dc, partition) for log_partition, dc, partition in connection.execute(query)}


def _partitions(
    connection: Connection, topic: str, warehouse: str | None, attribution: dict[int, _SourcePartition]
) -> dict[str, dict[int, PartitionEvidence]]:
    """Per datacenter and source partition: covers, heartbeats, gaps, contradictions."""
    facts: defaultdict[_SourcePartition, dict[str, Any]] = defaultdict(dict)
    for log_partition, source in attribution.items():
        facts[source]["log_partition"] = log_partition
    _add_covers(connection, topic, facts)
    _add_contradictions(connection, topic, facts)
    for row in connection.execute(select(tables.beats).where(tables.beats.c.topic == topic)):
        beat = Beat(row.at_ms, row.counted_to_address, row.end_address)
        facts[row.datacenter, row.partition][f"{row.tier}_beat"] = beat
    for row in connection.execute(select(tables.gaps).where(tables.gaps.c.topic == topic)):
        holes = facts[row.datacenter, row.partition].setdefault(f"{row.tier}_gaps", ())
        hole = Hole(row.from_address, row.to_address, row.reason)
        facts[row.datacenter, row.partition][f"{row.tier}_gaps"] = (*holes, hole)
    _add_loads(connection, topic, warehouse, attribution, facts)
    out: defaultdict[str, dict[int, PartitionEvidence]] = defaultdict(dict)
    for (dc, partition), values in facts.items():
        out[dc][partition] = PartitionEvidence(**values)
    return out


def _add_covers(
    connection: Connection, topic: str, facts: defaultdict[_SourcePartition, dict[str, Any]]
) -> None:
    table = tables.tallies
    columns = (table.c.tier, table.c.datacenter, table.c.partition, table.c.from_address, table.c.to_address)
    ranges: defaultdict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for tier, dc, partition, start, end in connection.execute(
        select(*columns).where(table.c.topic == topic, table.c.chosen)
    ):
        ranges[tier, dc, partition].append((start, end))
    for (tier, dc, partition), intervals in ranges.items():
        facts[dc, partition][f"{tier}_cover"] = tuple(union(intervals))


def _add_contradictions(
    connection: Connection, topic: str, facts: defaultdict[_SourcePartition, dict[str, Any]]
) -> None:
    """Only ranges that do not count can contradict ones that do, and they are few."""
    table = tables.tallies
    same = [table.c[name] for name in ("tier", "datacenter", "partition", "from_address", "to_address")]
    twice = select(*same).where(table.c.topic == topic).group_by(*same).having(func.count() > 1)
    for tier, dc, partition, start, end in connection.execute(twice):
        query = select(table.c.digest, table.c.id).where(
            table.c.topic == topic,
            table.c.tier == tier,
            table.c.datacenter == dc,
            table.c.partition == partition,
            table.c.from_address == start,
            table.c.to_address == end,
        )
        candidates = [Candidate(start, end, digest, row) for digest, row in connection.execute(query)]
        for low, high in contradictions(candidates):
            text = (
                f"addresses {low} to {high} of {topic}, partition {partition} of {dc}, were counted twice "
                "in tier "
                f"{tier} with different results: the log changed, or was deleted and made again"
            )
            said = facts[dc, partition].get("conflicts", ())
            facts[dc, partition]["conflicts"] = (*said, text)


def _add_loads(
    connection: Connection,
    topic: str,
    warehouse: str | None,
    attribution: dict[int, _SourcePartition],
    facts: defaultdict[_SourcePartition, dict[str, Any]],
) -> None:
    ranges: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    table = tables.load_ranges
    query = select(table.c.log_partition, table.c.from_address, table.c.to_address).where(
        table.c.warehouse == warehouse, table.c.topic == topic
    )
    for log_partition, start, end in connection.execute(query):
        ranges[log_partition].append((start, end))
    skipped = tables.load_gaps
    for row in connection.execute(
        select(skipped).where(skipped.c.warehouse == warehouse, skipped.c.topic == topic)
    ):
        if row.log_partition in attribution:
            values = facts[attribution[row.log_partition]]
            hole = Hole(row.from_address, row.to_address, row.reason)
            values["warehouse_gaps"] = (*values.get("warehouse_gaps", ()), hole)
    for log_partition, intervals in ranges.items():
        if log_partition in attribution:
            facts[attribution[log_partition]]["warehouse_cover"] = tuple(union(intervals))


def _publishers(connection: Connection, dc: str) -> dict[str, PublisherLife]:
    table = tables.publishers
    return {
        row.publisher: PublisherLife(row.service, row.server, row.started_ms, row.last_ms, row.closed)
        for row in connection.execute(select(table).where(table.c.datacenter == dc))
    }


def _publisher_of(connection: Connection, dc: str) -> dict[int, str]:
    table = tables.producer_ids
    query = select(table.c.producer_id, table.c.publisher).where(table.c.datacenter == dc)
    return {row.producer_id: row.publisher for row in connection.execute(query)}


def _latest(connection: Connection, topic: str, dc: str) -> dict[tuple[int, int], tuple[int, int]]:
    table, tally = tables.spans, tables.tallies
    columns = (tally.c.partition, table.c.producer_id, table.c.producer_epoch)
    query = (
        select(*columns, func.max(table.c.last_sequence))
        .join(tally, tally.c.id == table.c.tally_id)
        .where(
            tally.c.topic == topic,
            tally.c.datacenter == dc,
            tally.c.tier == DATACENTER_TIER,
            tally.c.chosen,
            table.c.producer_id >= 0,
        )
        .group_by(*columns)
    )
    latest: dict[tuple[int, int], tuple[int, int]] = {}
    for partition, producer_id, epoch, sequence in connection.execute(query):
        key = (partition, producer_id)
        latest[key] = max(latest.get(key, (-1, -1)), (epoch, sequence))
    return latest
