"""Reads from the store what is known about publishers and their producers. Only reads."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from headrace.audit import tables
from headrace.audit.evidence import PublisherState
from headrace.audit.records import DATACENTER_TIER


def publishers(connection: Connection, datacenter: str) -> dict[str, PublisherState]:
    """Returns every publisher that reported from a datacenter, by its id."""
    table, counting = tables.publishers, tables.counting_publishers
    of_datacenter = select(counting.c.publisher).where(counting.c.datacenter == datacenter)
    counts_only = {row.publisher for row in connection.execute(of_datacenter)}
    return {
        row.publisher: PublisherState(
            row.service,
            row.server,
            row.started_ms,
            row.last_ms,
            row.closed,
            counts_only=row.publisher in counts_only,
        )
        for row in connection.execute(select(table).where(table.c.datacenter == datacenter))
    }


def publisher_names(connection: Connection, datacenter: str) -> dict[int, str]:
    """Returns producer id → publisher."""
    table = tables.producer_ids
    query = select(table.c.producer_id, table.c.publisher).where(table.c.datacenter == datacenter)
    return {row.producer_id: row.publisher for row in connection.execute(query)}


def latest_sequences(
    connection: Connection, topic: str, datacenter: str
) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns (partition, producer id) → the highest (epoch, sequence) in the datacenter's log."""
    span, tally = tables.spans, tables.tallies
    columns = (tally.c.partition, span.c.producer_id, span.c.producer_epoch)
    query = (
        select(*columns, func.max(span.c.last_sequence))
        .join(tally, tally.c.id == span.c.tally_id)
        .where(
            tally.c.topic == topic,
            tally.c.datacenter == datacenter,
            tally.c.tier == DATACENTER_TIER,
            tally.c.chosen,
            span.c.producer_id >= 0,
        )
        .group_by(*columns)
    )
    latest: dict[tuple[int, int], tuple[int, int]] = {}
    for partition, producer_id, epoch, sequence in connection.execute(query):
        key = (partition, producer_id)
        latest[key] = max(latest.get(key, (-1, -1)), (epoch, sequence))
    return latest
