"""Reads from the store which topics had one name, by their ids, and which of them a record is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, select

from headrace.audit.evidence import Claim, CountedSpan, PublisherState
from headrace.audit.gathering.publishers import Numbers
from headrace.audit.incarnations import Line, LogNumbers, Shares, shared_out
from headrace.audit.intervals import Interval
from headrace.audit.store import tables


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


def _held(spans: Iterable[CountedSpan]) -> dict[Line, list[Interval]]:
    held: defaultdict[Line, list[Interval]] = defaultdict(list)
    for partition, span, _ in spans:
        numbers = (span.first_sequence, span.last_sequence + 1)
        held[partition, span.producer_id, span.producer_epoch].append(numbers)
    return dict(held)
