"""Reads from the store what is known about publishers and their producers. Only reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, func, select

from headrace.audit.evidence import PublisherState
from headrace.audit.evidence_of_reports import LostLog, MissingReport
from headrace.audit.intervals import Interval, subtract
from headrace.audit.store import measured_tables, tables
from headrace.audit.store.later_columns import columns_of
from headrace.audit.topic.records import DATACENTER_TIER
from headrace.wire.batch import SEQUENCE_SPAN

Numbered = dict[tuple[int, int], tuple[int, int]]


class Named(Protocol):
    """Tells which topic a record is about (`audit.gathering.topics`)."""

    def meant(self, datacenter: str, topic_id: str) -> str: ...


class KnownPublishers:
    """What a store knows of publishers and their producers, by datacenter: read once for all topics.

    There may be many of both, so that each topic's own reading of all would take long.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._states: dict[str, dict[str, PublisherState]] = {}
        self._names: dict[str, dict[int, str]] = {}

    def states(self, datacenter: str) -> dict[str, PublisherState]:
        """Returns every publisher that reported from a datacenter, by its id."""
        if datacenter not in self._states:
            self._states[datacenter] = publishers(self._connection, datacenter)
        return self._states[datacenter]

    def names(self, datacenter: str) -> dict[int, str]:
        """Returns producer id → publisher."""
        if datacenter not in self._names:
            self._names[datacenter] = publisher_names(self._connection, datacenter)
        return self._names[datacenter]


def publishers(connection: Connection, datacenter: str) -> dict[str, PublisherState]:
    """Returns every publisher that reported from a datacenter, by its id."""
    table, counting = tables.publishers, tables.counting_publishers
    of_datacenter = select(counting.c.publisher).where(counting.c.datacenter == datacenter)
    counts_only = {row.publisher for row in connection.execute(of_datacenter)}
    skews = clock_skews(connection)
    return {
        row.publisher: PublisherState(
            row.service,
            row.server,
            row.started_ms - skews[datacenter, row.publisher],
            row.last_ms - skews[datacenter, row.publisher],
            row.closed,
            row.publisher in counts_only,
            skews[datacenter, row.publisher],
            row.report_number,
        )
        for row in connection.execute(select(table).where(table.c.datacenter == datacenter))
    }


def unclosed(connection: Connection, topic: str, datacenter: str) -> frozenset[str]:
    """Returns the publishers that have had events of a topic, in any hour, and have not closed."""
    table, published = tables.publishers, measured_tables.published
    if not columns_of(connection, published):
        return frozenset()  # an older version made the store
    query = (
        select(table.c.publisher)
        .join(
            published,
            (published.c.datacenter == table.c.datacenter) & (published.c.publisher == table.c.publisher),
        )
        .where(table.c.datacenter == datacenter, published.c.topic == topic, ~table.c.closed)
    )
    return frozenset(connection.execute(query).scalars())


def clock_skews(connection: Connection) -> defaultdict[tuple[str, str], int]:
    """Returns (datacenter, publisher) → by how many ms its clock is ahead; 0 for one that is right."""
    rows = connection.execute(select(measured_tables.clocks).where(measured_tables.clocks.c.skew_ms != 0))
    return defaultdict(int, {(row.datacenter, row.publisher): row.skew_ms for row in rows})


def ahead_ms(connection: Connection, datacenter: str) -> int:
    """Returns by how much the clock of a datacenter's auditor is ahead, at least."""
    table = measured_tables.ahead
    if not columns_of(connection, table):
        return 0  # an older version made the store
    query = select(table.c.ahead_ms).where(table.c.datacenter == datacenter)
    return int(connection.execute(query).scalar() or 0)


def missing_reports(connection: Connection, topic: str, datacenter: str) -> tuple[MissingReport, ...]:
    """Returns the missing reports of the publishers that had events of a topic, in their order."""
    table, handover = measured_tables.missing_reports, tables.handovers
    known = columns_of(connection, table)
    if not known:
        return ()  # an older version made the store
    of_topic = (handover.c.topic == topic, handover.c.datacenter == datacenter)
    named = select(handover.c.publisher).where(*of_topic)
    columns = [table.c[name] for name in MissingReport._fields if name in known]
    query = select(*columns).where(table.c.datacenter == datacenter, table.c.publisher.in_(named))
    rows = connection.execute(query.order_by(table.c.publisher, table.c.report_number))
    return tuple(MissingReport(*row) for row in rows)


def lost_logs(connection: Connection, datacenter: str) -> tuple[LostLog, ...]:
    """Returns the deleted logs in which a datacenter's publishers may have said what nobody has read."""
    table = measured_tables.lost_logs
    if not columns_of(connection, table):
        return ()  # an older version made the store
    query = select(*(table.c[name] for name in LostLog._fields)).where(table.c.datacenter == datacenter)
    rows = connection.execute(query.order_by(table.c.topic, table.c.partition, table.c.from_ms))
    return tuple(LostLog(*row) for row in rows)


def publisher_names(connection: Connection, datacenter: str) -> dict[int, str]:
    """Returns producer id → publisher."""
    table = tables.producer_ids
    query = select(table.c.producer_id, table.c.publisher).where(table.c.datacenter == datacenter)
    return {row.producer_id: row.publisher for row in connection.execute(query)}


class Numbers(NamedTuple):
    """By topic's id: (partition, producer id) → the first and the latest (epoch, sequence) in its logs."""

    first: dict[str, Numbered]
    latest: dict[str, Numbered]


def numbers_of_topics(connection: Connection, topic: str, datacenter: str, named: Named) -> Numbers:
    """Returns the numbers in the datacenter's logs, of any hour. After the highest number there is comes 0:
    which one is the latest of such an epoch is not known, and the epoch alone is given, with -1.
    """
    span, tally = tables.spans, tables.tallies
    columns = (tally.c.topic_id, tally.c.partition, span.c.producer_id, span.c.producer_epoch)
    query = (
        select(*columns, func.min(span.c.first_sequence), func.max(span.c.last_sequence))
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
    numbers = Numbers({}, {})
    for topic_id, partition, producer_id, epoch, low, high in connection.execute(query):
        meant, key = named.meant(datacenter, topic_id), (partition, producer_id)
        first, latest = numbers.first.setdefault(meant, {}), numbers.latest.setdefault(meant, {})
        first[key] = min(first.get(key, (epoch, low)), (epoch, low))
        latest[key] = max(latest.get(key, (-1, -1)), (epoch, high if high < SEQUENCE_SPAN - 1 else -1))
    return numbers


def withdrawn(
    ever_claimed_ranges: list[list[int]], ranges: list[list[int]]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields ranges that an earlier report claimed and the newest one dropped (renumbered batches)."""
    current: defaultdict[tuple[int, ...], list[Interval]] = defaultdict(list)
    for *identity, first, last in ranges:
        current[tuple(identity)].append((first, last + 1))
    for partition, producer_id, epoch, first, last in ever_claimed_ranges:
        for start, end in subtract([(first, last + 1)], current[partition, producer_id, epoch]):
            yield partition, producer_id, epoch, start, end - 1
