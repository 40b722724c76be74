"""Which kept verdicts a record may change: they are forgotten in the transaction that folds it.

`audit.report.settled` keeps verdicts on hours that are complete, and will stay so as long as nothing but this
comes: heartbeats, tallies and loads of later addresses, and reports on later hours. Everything else forgets
what it may change, at least; a record that this module does not know forgets its topic. Each record is looked
at before it is folded, so the tables still say what was known before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, func, select

from headrace.audit.store import load_tables, measured_tables, tables
from headrace.audit.store.fold_missing import missing_from
from headrace.audit.store.inserting import upsert
from headrace.audit.times import NEXT_REPORT_MS, hour_start, named_time
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.doubled import DoubledRecord
from headrace.audit.topic.drills import DrillRecord
from headrace.audit.topic.load_report import NOT_BEGUN, LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    HeartbeatRecord,
    ProducerReport,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.said_of_tables import VerifiedRecord

kept = measured_tables.kept
_Source = tuple[str, int, str]
"""A datacenter, its partition, and the id of the topic there."""


TURN: Final = "turn"


def take_turn(connection: Connection) -> None:
    """Waits until no other program changes what verdicts are kept of: the row of `meta` is locked from here
    to the end of the transaction. SQLite locks the whole store by itself.
    """
    upsert(connection, tables.meta, [{"name": TURN, "value": ""}])


def any_kept(connection: Connection) -> bool:
    """Whether there is a kept verdict at all: if not, nothing need be forgotten."""
    return connection.execute(select(kept.c.topic).limit(1)).first() is not None


def forget_changed(connection: Connection, received: ReceivedRecord) -> None:
    """Forgets the kept verdicts that this record may change. Call it before the record is folded."""
    record = received.record
    if isinstance(record, RangeTally):
        _before_tally(connection, record)
    elif isinstance(record, HeartbeatRecord):
        _before_heartbeat(connection, record, received.time_ms)
    elif isinstance(record, ProducerReport):
        _before_report(connection, record, received)
    elif isinstance(record, LoadReport):
        _before_load(connection, record)
    elif isinstance(record, TopicDeclaration):
        _before_declaration(connection, record, received)
    elif isinstance(record, VerifiedRecord):
        _before_verification(connection, record)
    elif isinstance(record, DoubledRecord):
        forget_hours(connection, record.topic, [record.hour_ms])
    elif isinstance(record, DrillRecord):
        pass  # a drill's score is about no hour
    elif (topic := getattr(record, "topic", None)) is not None:
        forget_topic(connection, topic)
    else:
        connection.execute(delete(kept))  # nobody told this module what it is about


def forget_topic(connection: Connection, topic: str, datacenter: str | None = None) -> None:
    """Forgets what is kept of a topic, in one datacenter or in all."""
    of_datacenter = () if datacenter is None else (kept.c.datacenter == datacenter,)
    _forget(connection, kept.c.topic == topic, *of_datacenter)


def forget_hours(
    connection: Connection, topic: str, times_ms: Iterable[int], datacenter: str | None = None
) -> None:
    """Forgets what is kept of the hours of a topic in which these times lie."""
    hours_ms = sorted({hour_start(time_ms) for time_ms in times_ms})
    of_datacenter = () if datacenter is None else (kept.c.datacenter == datacenter,)
    if hours_ms:
        _forget(connection, kept.c.topic == topic, kept.c.hour_ms.in_(hours_ms), *of_datacenter)


def forget_datacenter(connection: Connection, datacenter: str) -> None:
    """Forgets all that is kept of a datacenter."""
    _forget(connection, kept.c.datacenter == datacenter)


def forget_topics_of(connection: Connection, datacenter: str, publisher: str) -> None:
    """Forgets what is kept of the topics that a publisher has had events of."""
    table = measured_tables.published
    topics = select(table.c.topic).where(table.c.datacenter == datacenter, table.c.publisher == publisher)
    _forget(connection, kept.c.datacenter == datacenter, kept.c.topic.in_(topics))


def forget_publisher(connection: Connection, datacenter: str, publisher: str) -> None:
    """Forgets what is kept of the hours in which a publisher had events."""
    table = tables.handovers
    of_publisher = (table.c.datacenter == datacenter, table.c.publisher == publisher)
    query = select(table.c.topic, table.c.bucket_start_ms).where(*of_publisher).distinct()
    for topic, bucket_start_ms in connection.execute(query).all():
        forget_hours(connection, topic, [bucket_start_ms], datacenter)


def _forget(connection: Connection, *where: ColumnElement[bool]) -> None:
    connection.execute(delete(kept).where(*where))


# --- one function for each kind of record that comes again and again ---


def _before_tally(connection: Connection, tally: RangeTally) -> None:
    """A tally changes its own hours. One that overlaps others, or names its topic otherwise than these, may
    change which of them count (for overlaps, see `audit.store.fold`).
    """
    ids = _ids(connection, tally.datacenter, tally.topic)
    sources = {(tally.topic, tally.log_partition, ""): (tally.datacenter, tally.partition, tally.topic_id)}
    if ids.keys() != {tally.topic_id}:
        forget_topic(connection, tally.topic, tally.datacenter)
    if tally.tier == ANALYSIS_TIER:
        _forget_attributed_anew(connection, sources)
    times_ms = (span.bucket_start_ms for span in tally.spans)
    forget_hours(connection, tally.topic, times_ms, tally.datacenter)


def _before_heartbeat(connection: Connection, heartbeat: HeartbeatRecord, time_ms: int) -> None:
    """A heartbeat is no news about old hours, unless it goes back, or is of another topic of the name.

    One that is not newer than what is known of a partition is not folded: copies of heartbeats, which each
    partition of an audit topic has, arrive after newer ones and say nothing.
    """
    table = tables.beats
    names = ("datacenter", "topic", "topic_id", "partition")
    topics = {each.topic for each in heartbeat.positions}
    query = select(table).where(table.c.tier == heartbeat.tier, table.c.topic.in_(topics))
    known = {tuple(getattr(row, name) for name in names): row for row in connection.execute(query)}
    ids = {
        place: _ids(connection, *place) for place in {(p.datacenter, p.topic) for p in heartbeat.positions}
    }
    for each in heartbeat.positions:
        old = known.get((each.datacenter, each.topic, each.source_topic_id, each.partition))
        goes_back = (
            old is not None
            and old.beat < heartbeat.beat
            and (
                time_ms < old.at_ms
                or each.counted_to_address < old.counted_to_address
                or each.end_address < old.end_address
            )
        )
        named_ms = ids[each.datacenter, each.topic]
        if goes_back or named_ms.keys() != {each.source_topic_id} or time_ms < min(named_ms.values()):
            forget_topic(connection, each.topic, each.datacenter)
    if heartbeat.tier == ANALYSIS_TIER:
        sources = {
            (p.topic, p.log_partition, p.topic_id): (p.datacenter, p.partition, p.source_topic_id)
            for p in heartbeat.positions
        }
        _forget_attributed_anew(connection, sources)


def _ids(connection: Connection, datacenter: str, topic: str) -> dict[str, int]:
    """Returns the ids by which records named a topic of a datacenter, and when they did so first."""
    table = tables.topic_ids
    of_topic = (table.c.datacenter == datacenter, table.c.topic == topic)
    query = select(table.c.topic_id, table.c.first_ms).where(*of_topic)
    return {row.topic_id: row.first_ms for row in connection.execute(query)}


def _forget_attributed_anew(connection: Connection, sources: dict[tuple[str, int, str], _Source]) -> None:
    """Forgets the topics of which a partition of the analysis cluster is said to copy something else."""
    table = tables.attributions
    query = select(table).where(table.c.topic.in_({topic for topic, *_ in sources}))
    known = {
        (row.topic, row.log_partition, row.log_topic_id): (row.datacenter, row.partition, row.topic_id)
        for row in connection.execute(query)
    }
    for topic in {place[0] for place, source in sources.items() if known.get(place) != source}:
        forget_topic(connection, topic)


def _before_report(connection: Connection, report: ProducerReport, received: ReceivedRecord) -> None:
    """A report changes its hours, and those from which it takes a tally away; all hours of its publisher if
    it is not just a later report of the same one.
    """
    datacenter, table = received.datacenter, tables.publishers
    of_publisher = (table.c.datacenter == datacenter, table.c.publisher == report.publisher)
    old = connection.execute(select(table).where(*of_publisher)).one_or_none()
    if missing_from(report, None if old is None else (old.report_number, old.last_ms)) is not None:
        _forget(connection, kept.c.datacenter == datacenter)  # it may have been about any topic
    goes_back = old is None or received.time_ms < old.last_ms or (old.closed and not report.closed)
    if goes_back or report.counts_only:
        forget_publisher(connection, datacenter, report.publisher)
    times_ms = [received.time_ms, *([] if old is None else [old.last_ms])]
    _forget_last_hours(connection, datacenter, report.publisher, times_ms)
    for tally in report.tallies:
        forget_hours(connection, tally.topic, [named_time(tally.bucket_start_ms)], datacenter)
        handover = tables.handovers
        key = (datacenter, report.publisher, tally.part)
        query = select(handover.c.topic, handover.c.bucket_start_ms).where(
            *(column == value for column, value in zip(handover.primary_key, key, strict=True))
        )
        for topic, bucket_start_ms in connection.execute(query).all():
            forget_hours(connection, topic, [bucket_start_ms], datacenter)


def _before_load(connection: Connection, load: LoadReport) -> None:
    """A load changes the hours of its rows; all of the topic if it is of another warehouse, or of an analysis
    topic that no load has named, or skips or takes addresses that others have not.
    """
    last = last_warehouse(connection, load.topic)
    table = load_tables.load_topics
    of_topic = (table.c.warehouse == load.warehouse, table.c.topic == load.topic)
    named = select(table.c.load_sequence).where(*of_topic, table.c.log_topic_id == load.topic_id).limit(1)
    if load.topic_id and connection.execute(named).first() is None:
        forget_topic(connection, load.topic)  # it may be another topic of the name
    takes = any(partition.from_source for partition in load.partitions)
    begins = any(partition.begins_at != NOT_BEGUN for partition in load.partitions)
    if last not in (None, load.warehouse) or takes or begins or load.accepted_gaps:
        forget_topic(connection, load.topic)
    hours = (hour for partition in load.partitions for hour in partition.hours)
    forget_hours(connection, load.topic, (named_time(hour.hour_ms) for hour in hours))


def _forget_last_hours(
    connection: Connection, datacenter: str, publisher: str, times_ms: Iterable[int]
) -> None:
    """Forgets the hours, of any topic, in which a publisher may have had its last events that reports at
    these times, by its own clock or as that is put right.
    """
    clocks = measured_tables.clocks
    of_publisher = (clocks.c.datacenter == datacenter, clocks.c.publisher == publisher)
    skew_ms = connection.execute(select(clocks.c.skew_ms).where(*of_publisher)).scalar() or 0
    right_ms = {time_ms - skew for time_ms in times_ms for skew in (0, skew_ms)}
    hours_ms = {hour_start(at) for each in right_ms for at in (each, each + NEXT_REPORT_MS)}
    _forget(connection, kept.c.datacenter == datacenter, kept.c.hour_ms.in_(sorted(hours_ms)))


def last_warehouse(connection: Connection, topic: str) -> str | None:
    """Returns the warehouse that loaded `topic` last."""
    table = load_tables.load_ranges
    query = select(table.c.warehouse).where(table.c.topic == topic).order_by(table.c.committed_ms.desc())
    return connection.execute(query.limit(1)).scalar()


def last_load(connection: Connection, topic: str) -> int | None:
    """Returns the newest change of which the warehouse told that loaded `topic` last, by its number."""
    table = load_tables.load_ranges
    of_table = (table.c.topic == topic, table.c.warehouse == last_warehouse(connection, topic))
    return connection.execute(select(func.max(table.c.load_sequence)).where(*of_table)).scalar()


def _before_declaration(
    connection: Connection, declaration: TopicDeclaration, received: ReceivedRecord
) -> None:
    table = tables.declarations
    key = (received.datacenter, declaration.topic, declaration.topic_id)
    of_key = (column == value for column, value in zip(table.primary_key, key, strict=True))
    old = connection.execute(select(table).where(*of_key)).one_or_none()
    changes = [[*change] for change in declaration.changes]
    is_of_deletion = declaration.deleted or (old is not None and old.deleted_ms is not None)
    said = (changes, declaration.partitions)
    is_known = (
        old is not None
        and received.time_ms >= old.said_ms
        and (json.loads(old.changes), old.partitions or 0) == said
    )
    if is_of_deletion or not is_known:
        forget_topic(connection, declaration.topic, received.datacenter)


def _before_verification(connection: Connection, verified: VerifiedRecord) -> None:
    """A verification changes the hours with problems: its own, and those of the one before."""
    table = measured_tables.verified
    hours_ms = {each.hour_ms for each in verified.problems}
    query = select(table.c.problems).where(table.c.topic == verified.topic)
    for problems in connection.execute(query).scalars():
        hours_ms.update(int(each[0]) for each in json.loads(problems))
    forget_hours(connection, verified.topic, hours_ms)
