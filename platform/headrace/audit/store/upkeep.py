"""Keeping the store small: merges adjacent old tallies, forgets old hours.

Changes no verdict on an hour that is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, delete, exists, func, insert, select, update

from headrace.audit.batches.tally import BUCKET_DEFAULT_MS, RunningTally, Span
from headrace.audit.store import kept, load_tables, measured_tables, tables
from headrace.audit.store.fold import digest_of
from headrace.audit.store.forgotten import note_forgotten
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS, NEXT_REPORT_MS
from headrace.audit.topic.records import DATACENTER_TIER

MERGED_SPANS_MAX: Final = 5_000
MERGED_TALLIES_MAX: Final = 1_000
MERGE_AGE_DEFAULT_MS: Final = HOUR_MS
KEEP_DEFAULT_MS: Final = 30 * 24 * HOUR_MS


class _TallyRow(NamedTuple):
    """A row of `tables.tallies`. `mergeable`: it counts, and no other tally overlaps it."""

    row: int
    source: tuple[str, str, str, int, str]  # tier, datacenter, topic, partition, topic's id
    start: int
    end: int
    counted_ms: int
    mergeable: bool


def merge(store: AuditStore, before_ms: int) -> int:
    """Merges adjacent tallies that were reported before `before_ms`; returns how many rows it removed.

    Overlapping tallies are not merged, because the choice among them may still change.
    """
    with store.writing() as connection:
        kept.take_turn(connection)
        runs = list(_runs(_old_tallies(connection, before_ms)))
        return sum(_merge_run(connection, run) for run in runs)


def forget(store: AuditStore, before_ms: int) -> int:
    """Forgets every hour that no tier has reported on since `before_ms`; returns how many hours.

    Their ranges stay known as counted, so that an old tally that is repeated late is not taken for a new one.
    """
    hours = tables.hours
    with store.writing() as connection:
        kept.take_turn(connection)
        old = connection.execute(select(hours).where(hours.c.touched_ms < before_ms)).all()
        for row in old:
            _forget_hour(connection, row.topic, row.datacenter, row.hour_ms)
        note_forgotten(connection, ((row.topic, row.datacenter, row.hour_ms) for row in old))
        connection.execute(delete(hours).where(hours.c.touched_ms < before_ms))
        _forget_publishers(connection, before_ms)
    return len(old)


def present_ms(store: AuditStore, own_ms: int, own_datacenter: str) -> int:
    """Returns the earlier of two clocks, `own_ms` and that of the newest heartbeat of another datacenter's
    auditor about its own logs: one clock that is ahead makes nothing old. `own_ms` where there is no other.

    A topic that was deleted, or whose datacenter has ended, gets no more heartbeats: the last is no clock.
    """
    beats, said = tables.beats, tables.declarations
    is_deleted = exists().where(
        *(said.c[name] == beats.c[name] for name in ("datacenter", "topic", "topic_id")),
        said.c.deleted_ms >= beats.c.at_ms,
    )
    others = select(func.max(beats.c.at_ms)).where(
        beats.c.tier == DATACENTER_TIER, beats.c.datacenter != own_datacenter, ~is_deleted
    )
    with store.reading() as connection:
        heard_ms: int | None = connection.execute(others).scalar()
    return own_ms if heard_ms is None else min(own_ms, heard_ms)


def _old_tallies(connection: Connection, before_ms: int) -> Iterator[_TallyRow]:
    table = tables.tallies
    other = table.alias()
    names = ("topic", "datacenter", "tier", "partition", "topic_id")
    same = [table.c[name] == other.c[name] for name in names]
    overlapping = select(other.c.id).where(
        *same,
        other.c.id != table.c.id,
        other.c.from_address < table.c.to_address,
        other.c.to_address > table.c.from_address,
    )
    query = (
        select(table, overlapping.exists().label("overlapped"))
        .where(table.c.counted_ms < before_ms)
        .order_by(
            *(table.c[name] for name in ("tier", "datacenter", "topic", "partition", "topic_id")),
            table.c.from_address,
        )
    )
    for row in connection.execute(query):
        source = (row.tier, row.datacenter, row.topic, row.partition, row.topic_id)
        yield _TallyRow(
            row.id,
            source,
            row.from_address,
            row.to_address,
            row.counted_ms,
            row.chosen and not row.overlapped,
        )


def _runs(old: Iterable[_TallyRow]) -> Iterator[list[_TallyRow]]:
    """Yields groups of adjacent tallies, each of 2 to `MERGED_TALLIES_MAX`."""
    for _source, members in groupby(old, key=lambda tally: tally.source):
        run: list[_TallyRow] = []
        for tally in members:
            if run and (not tally.mergeable or run[-1].end != tally.start or len(run) == MERGED_TALLIES_MAX):
                if len(run) > 1:
                    yield run
                run = []
            if tally.mergeable:
                run.append(tally)
        if len(run) > 1:
            yield run


def _merge_run(connection: Connection, run: list[_TallyRow]) -> int:
    """Merges a run into tallies of at most `MERGED_SPANS_MAX` spans; returns how many rows it removed."""
    removed = 0
    together = RunningTally(BUCKET_DEFAULT_MS)
    merged: list[_TallyRow] = []
    for tally in run:
        spans = _spans_of(connection, tally.row)
        if merged and len(together) + len(spans) > MERGED_SPANS_MAX:
            removed += _write_merged(connection, merged, together)
            together, merged = RunningTally(BUCKET_DEFAULT_MS), []
        together.add_spans(spans)
        merged.append(tally)
    return removed + _write_merged(connection, merged, together)


def _write_merged(connection: Connection, merged: list[_TallyRow], together: RunningTally) -> int:
    if len(merged) < 2:
        return 0
    spans, kept = together.spans, merged[0]
    rows = [tally.row for tally in merged]
    connection.execute(delete(tables.spans).where(tables.spans.c.tally_id.in_(rows)))
    connection.execute(delete(tables.tallies).where(tables.tallies.c.id.in_(rows[1:])))
    connection.execute(
        update(tables.tallies)
        .where(tables.tallies.c.id == kept.row)
        .values(
            to_address=merged[-1].end,
            digest=digest_of(spans),
            counted_ms=max(tally.counted_ms for tally in merged),
        )
    )
    if spans:
        values: list[dict[str, Any]] = [{"tally_id": kept.row, **span._asdict()} for span in spans]
        connection.execute(insert(tables.spans), values)
    return len(rows) - 1


def _spans_of(connection: Connection, row: int) -> tuple[Span, ...]:
    table = tables.spans
    query = select(*(table.c[name] for name in Span._fields)).where(table.c.tally_id == row)
    return tuple(Span(*values) for values in connection.execute(query.order_by(table.c.first_address)))


def _forget_hour(connection: Connection, topic: str, datacenter: str, hour_ms: int) -> None:
    kept.forget_hours(connection, topic, [hour_ms], datacenter)
    tally, span, handover, rows = tables.tallies, tables.spans, tables.handovers, load_tables.load_rows
    of_topic = select(tally.c.id).where(tally.c.topic == topic, tally.c.datacenter == datacenter)
    connection.execute(
        delete(span).where(
            span.c.bucket_start_ms >= hour_ms,
            span.c.bucket_start_ms < hour_ms + HOUR_MS,
            span.c.tally_id.in_(of_topic),
        )
    )
    connection.execute(
        delete(handover).where(
            handover.c.topic == topic,
            handover.c.datacenter == datacenter,
            handover.c.bucket_start_ms >= hour_ms,
            handover.c.bucket_start_ms < hour_ms + HOUR_MS,
        )
    )
    place = tables.attributions
    partitions = select(place.c.log_partition).where(place.c.topic == topic, place.c.datacenter == datacenter)
    connection.execute(
        delete(rows).where(
            rows.c.topic == topic, rows.c.hour_ms == hour_ms, rows.c.log_partition.in_(partitions)
        )
    )


def _forget_publishers(connection: Connection, before_ms: int) -> None:
    """Forgets publishers that ended before `before_ms`, and have no tally in any hour that is kept, nor may
    have had their last events there.
    """
    table, handover, ids = tables.publishers, tables.handovers, tables.producer_ids
    hour, published = tables.hours, measured_tables.published
    ended_in = select(hour.c.hour_ms).where(
        hour.c.datacenter == table.c.datacenter,
        hour.c.hour_ms > table.c.last_ms - HOUR_MS,
        hour.c.hour_ms <= table.c.last_ms + NEXT_REPORT_MS,
    )
    tally_count = select(func.count()).where(
        handover.c.datacenter == table.c.datacenter, handover.c.publisher == table.c.publisher
    )
    is_old = (table.c.last_ms < before_ms, table.c.closed | ~ended_in.exists())
    has_none = tally_count.scalar_subquery() == 0
    connection.execute(delete(table).where(*is_old, has_none))
    left = select(table.c.publisher).where(table.c.datacenter == published.c.datacenter)
    connection.execute(delete(published).where(published.c.publisher.not_in(left)))
    missing = measured_tables.missing_reports
    connection.execute(delete(missing).where(missing.c.until_ms < before_ms))
    lost = measured_tables.lost_logs
    connection.execute(delete(lost).where(lost.c.until_ms < before_ms))
    known = select(table.c.publisher).where(table.c.datacenter == ids.c.datacenter)
    connection.execute(delete(ids).where(ids.c.publisher.not_in(known)))
    counting = tables.counting_publishers
    known = select(table.c.publisher).where(table.c.datacenter == counting.c.datacenter)
    connection.execute(delete(counting).where(counting.c.publisher.not_in(known)))
