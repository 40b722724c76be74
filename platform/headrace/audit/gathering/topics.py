"""Reads from the store which topics had one name, by their ids, and which of them a record is about."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, exists, select

from headrace.audit.evidence import Claim, CountedSpan, DeclaredPartitions, PublisherState
from headrace.audit.gathering.facts import HourFacts, LogFacts
from headrace.audit.gathering.publishers import Numbers, numbers_of_topics
from headrace.audit.incarnations import Line, LogNumbers, Shares, shared_out
from headrace.audit.intervals import Interval, covers, union
from headrace.audit.store import tables
from headrace.audit.store.later_columns import columns_of
from headrace.audit.topic.declarations import Incarnation
from headrace.audit.topic.records import DATACENTER_TIER
from headrace.coordination.declared import Change


class NamedTopic(NamedTuple):
    """A topic by its id ("" if nobody named it), and when it was named first."""

    topic_id: str
    first_ms: int


class NamedTopics:
    """The topics that had one name, by datacenter.

    Records that do not name their topic are of earlier versions, and so about the first topic that later ones
    name.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        table = tables.topic_ids
        found: defaultdict[str, list[NamedTopic]] = defaultdict(list)
        query = select(table).where(table.c.topic == topic).order_by(table.c.first_ms, table.c.topic_id)
        for row in connection.execute(query):
            found[row.datacenter].append(NamedTopic(row.topic_id, row.first_ms))
        self._named = {name: [each for each in ids if each.topic_id] for name, ids in found.items()}

    def of(self, datacenter: str) -> list[NamedTopic]:
        """Returns the topics, the oldest first, the present one last; at least one."""
        return self._named.get(datacenter) or [NamedTopic("", 0)]

    def meant(self, datacenter: str, topic_id: str) -> str:
        """Returns the id of the topic that a record with this id is about."""
        return topic_id or self.of(datacenter)[0].topic_id


def incarnations_of(connection: Connection, topic: str) -> defaultdict[str, list[Incarnation]]:
    """Returns datacenter → what the topic declares there, from its creation to each deletion."""
    table = tables.declarations
    found: defaultdict[str, list[Incarnation]] = defaultdict(list)
    columns = (table.c.datacenter, table.c.first_said_ms, table.c.changes)
    for row in connection.execute(select(*columns).where(table.c.topic == topic)):
        changes = tuple(Change(*change) for change in json.loads(row.changes))
        found[row.datacenter].append(Incarnation(row.first_said_ms, changes))
    return found


def deletions_of(connection: Connection, topic: str) -> dict[tuple[str, str], int]:
    """Returns (datacenter, topic's id) → when its auditor saw (ms) that this topic was deleted. One that the
    auditor has counted since was not: somebody else said so.
    """
    table, beats = tables.declarations, tables.beats
    if table.c.deleted_ms.name not in columns_of(connection, table):
        return {}  # an older version made the store
    columns = (table.c.datacenter, table.c.topic_id, table.c.deleted_ms)
    counted_since = exists().where(
        beats.c.tier == DATACENTER_TIER,
        *(beats.c[name] == table.c[name] for name in ("datacenter", "topic", "topic_id")),
        beats.c.at_ms > table.c.deleted_ms,
    )
    query = select(*columns).where(table.c.topic == topic, table.c.deleted_ms.is_not(None), ~counted_since)
    return {tuple(row[:2]): row[2] for row in connection.execute(query)}


def declared_partitions(connection: Connection, topic: str) -> dict[tuple[str, str], DeclaredPartitions]:
    """Returns (datacenter, topic's id) → how many partitions its auditor said last that the topic has."""
    table = tables.declarations
    if table.c.partitions.name not in columns_of(connection, table):
        return {}  # an older version made the store
    columns = (table.c.datacenter, table.c.topic_id, table.c.partitions, table.c.said_ms)
    query = select(*columns).where(table.c.topic == topic, table.c.partitions > 0)
    return {tuple(row[:2]): DeclaredPartitions(*row[2:]) for row in connection.execute(query)}


def repeated_tallies(connection: Connection, topic: str, topics: NamedTopics) -> set[int]:
    """Returns the rows of tallies without a topic's id whose addresses others of their log count, with one:
    auditors of two versions counted it.
    """
    nameless, named = tables.tallies, tables.tallies.alias()
    same = (nameless.c[name] == named.c[name] for name in ("topic", "datacenter", "tier", "partition"))
    query = (
        select(nameless.c.id, nameless.c.datacenter, named.c.topic_id)
        .distinct()
        .where(
            nameless.c.topic == topic,
            nameless.c.topic_id == "",
            nameless.c.chosen,
            *same,
            named.c.topic_id != "",
            named.c.chosen,
            named.c.from_address < nameless.c.to_address,
            named.c.to_address > nameless.c.from_address,
        )
    )
    rows = connection.execute(query)
    return {row.id for row in rows if row.topic_id == topics.meant(row.datacenter, "")}


def share_claims(
    claims: Iterable[Claim],
    named: list[NamedTopic],
    spans: Iterable[list[CountedSpan]],
    numbers: Numbers,
    publishers: dict[str, PublisherState],
) -> Shares:
    """Shares out an hour's claims among the topics of a name. `spans`: what each topic's logs hold of it."""
    if len(named) == 1:
        return Shares([list(claims)], [])
    logs = [
        LogNumbers(
            _held(of_topic), numbers.first.get(each.topic_id, {}), numbers.latest.get(each.topic_id, {})
        )
        for each, of_topic in zip(named, spans, strict=True)
    ]

    def is_later(claim: Claim) -> bool:
        publisher = publishers.get(claim.publisher)
        return publisher is not None and publisher.started_ms >= named[-1].first_ms

    return shared_out(claims, logs, is_later)


def needed_numbers(
    connection: Connection,
    topic: str,
    datacenter: str,
    named: NamedTopics,
    hours: Mapping[tuple[str, int], HourFacts],
    logs: Mapping[tuple[str, str, int], LogFacts],
) -> Numbers:
    """Returns the numbers in the datacenter's logs; none if no verdict on these hours asks for them: if there
    was one topic of the name, and its logs have all that is claimed. To read those of a year takes long.
    """
    if len(named.of(datacenter)) == 1:
        held = {
            hour_ms: log.spans[DATACENTER_TIER]
            for (name, _, hour_ms), log in logs.items()
            if name == datacenter
        }
        of_hours = ((hour_ms, hour.claims) for (name, hour_ms), hour in hours.items() if name == datacenter)
        if not any(_is_missing(claims, held.get(hour_ms, [])) for hour_ms, claims in of_hours):
            return Numbers({}, {})
    return numbers_of_topics(connection, topic, datacenter, named)


def _is_missing(claims: Iterable[Claim], spans: list[CountedSpan]) -> bool:
    """Whether an hour's claims name events that these spans do not have."""
    held = {line: union(numbers) for line, numbers in _held(spans).items()}
    return any(
        not covers(
            held.get((claim.partition, claim.producer_id, claim.producer_epoch), []),
            claim.first_sequence,
            claim.last_sequence + 1,
        )
        for claim in claims
        if not claim.withdrawn
    )


def _held(spans: Iterable[CountedSpan]) -> dict[Line, list[Interval]]:
    held: defaultdict[Line, list[Interval]] = defaultdict(list)
    for partition, span, _ in spans:
        numbers = (span.first_sequence, span.last_sequence + 1)
        held[partition, span.producer_id, span.producer_epoch].append(numbers)
    return dict(held)
