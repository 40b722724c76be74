"""Folds the report of a load into the store."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from headrace.audit.store import load_tables
from headrace.audit.store.fold_returns import is_of_lost_state
from headrace.audit.store.inserting import insert_new
from headrace.audit.times import named_time
from headrace.audit.topic.load_report import NOT_BEGUN, LoadedHour, LoadReport
from headrace.wire.content import NO_BATCHES
from headrace.wire.content import added as content_together


def fold_load(connection: Connection, load: LoadReport) -> None:
    """Folds one report. The first one of a load and partition counts, unless the table went back."""
    if is_of_lost_state(connection, load):
        return
    of_topic = {"warehouse": load.warehouse, "topic": load.topic}
    if load.topic_id:
        named = {"load_sequence": load.load_sequence, "log_topic_id": load.topic_id}
        insert_new(connection, load_tables.load_topics, {**of_topic, **named})
    for partition in load.partitions:
        key = {
            **of_topic,
            "load_sequence": load.load_sequence,
            "log_partition": partition.partition,
        }
        consumed = {
            "from_address": partition.from_address,
            "to_address": partition.to_address,
            "committed_ms": load.committed_ms,
            "from_source": partition.from_source,
        }
        if partition.begins_at != NOT_BEGUN:
            insert_new(connection, load_tables.load_begins, {**key, "begins_at": partition.begins_at})
        if insert_new(connection, load_tables.load_ranges, {**key, **consumed}):
            for hour in _named_hours(partition.hours):
                insert_new(connection, load_tables.load_rows, {**key, **hour._asdict()})
    for gap in load.accepted_gaps:
        values = {**gap._asdict(), **of_topic}
        values["log_partition"] = values.pop("partition")
        if load.topic_id:
            numbered = {**values, "load_sequence": load.load_sequence}
            insert_new(connection, load_tables.load_topic_gaps, numbered)
        else:
            insert_new(connection, load_tables.load_gaps, values)


def _named_hours(hours: Iterable[LoadedHour]) -> list[LoadedHour]:
    """Returns the hours of a load; those outside of year 1 to 9999 as one."""
    named: dict[int, LoadedHour] = {}
    for hour in hours:
        start_ms = named_time(hour.hour_ms)
        known = named.get(start_ms, LoadedHour(start_ms, 0, 0, 0, NO_BATCHES))
        named[start_ms] = LoadedHour(
            start_ms,
            known.rows + hour.rows,
            known.distinct_offsets + hour.distinct_offsets,
            known.dead_lettered + hour.dead_lettered,
            content_together(known.content, hour.content),
        )
    return list(named.values())
