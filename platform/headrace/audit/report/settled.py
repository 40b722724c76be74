"""Verdicts that are kept: those on hours that are complete, and stay so while only later events come.

The auditor that folds the store keeps them, a topic at a time; `audit.store.kept` forgets them in the
transaction of any record that may change one. So a report of a month reads them, and judges the rest. Only
what is complete without any finding is kept: everything else is judged each time. Proofs for seals never rest
on what is kept.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, func, select

from headrace.audit.evidence import Evidence, PublisherState
from headrace.audit.findings import HOPS, Counts, Policy, Status, Verdict
from headrace.audit.gathering import gather, reported
from headrace.audit.intervals import covers, union
from headrace.audit.store import measured_tables, tables
from headrace.audit.store.inserting import upsert
from headrace.audit.store.kept import take_turn
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS, OUTSIDE_MS
from headrace.audit.topic.records import DATACENTER_TIER
from headrace.audit.verdicts.silence import may_have_stopped_in
from headrace.audit.verdicts.verdicts import judge

POLICY: Final = Policy()
"""Verdicts are kept as this policy gives them; a report with another one judges all hours."""
HOURS_A_TURN_MAX: Final = 240
"""Of one topic; the others wait for the next turn."""
REST_S: Final = 600.0
"""How long a topic rests once all its hours were tried: those that are not complete are tried again then."""

_kept = measured_tables.kept
_COUNTS: Final = ("producer", "datacenter_count", "analysis", "warehouse", "dead_lettered")
_COMPLETE: Final = dict.fromkeys(HOPS, Status.COMPLETE)


class KeptHours(NamedTuple):
    """What is kept of a topic: verdicts by (hour in ms, datacenter), as far as they hold now."""

    verdicts: dict[tuple[int, str], Verdict]
    datacenters: list[str]

    def of_hour(self, hour_ms: int) -> list[Verdict] | None:
        """Returns the verdicts on an hour, one of each datacenter; None if one has to be judged."""
        found = [self.verdicts.get((hour_ms, name)) for name in self.datacenters]
        known = [each for each in found if each is not None]
        return known if found and len(known) == len(found) else None


NOTHING_KEPT: Final = KeptHours({}, [])


def kept_hours(connection: Connection, topic: str, from_ms: int | None, to_ms: int | None) -> KeptHours:
    """Returns what is kept of a topic's hours from `from_ms` - 1 h to `to_ms`.

    Nothing of a datacenter whose auditor has said that it counted addresses of which a tally is missing: any
    hour before them may have events there.
    """
    names = reported.datacenters_of(connection, topic)
    whole = [name for name in names if not _has_hole(connection, topic, name)]
    columns = [column for column in _kept.c if column.name != "topic"]
    query = select(*columns).where(_kept.c.topic == topic, _kept.c.datacenter.in_(whole))
    if from_ms is not None:
        query = query.where(_kept.c.hour_ms > from_ms - HOUR_MS)
    if to_ms is not None:
        query = query.where(_kept.c.hour_ms < to_ms)
    found: dict[tuple[int, str], Verdict] = {}
    for hour_ms, name, counted_from, *counts in connection.execute(query):
        verdict = Verdict(topic, name, hour_ms, Status.COMPLETE, Counts(*counts), _COMPLETE, (), counted_from)
        found[hour_ms, name] = verdict
    return KeptHours(found, names)


def _has_hole(connection: Connection, topic: str, datacenter: str) -> bool:
    """Whether a tally is missing below the address up to which a partition is said to be counted."""
    table, beats = tables.tallies, tables.beats
    place = (table.c.topic == topic, table.c.datacenter == datacenter)
    of_tier = (*place, table.c.tier == DATACENTER_TIER, table.c.chosen)
    size = func.sum(table.c.to_address - table.c.from_address)
    columns = (table.c.partition, func.min(table.c.from_address), func.max(table.c.to_address), size)
    # Of one log, because tallies that count do not overlap there: a sum of several may exceed 64 bits.
    query = select(*columns).where(*of_tier).group_by(table.c.partition, table.c.topic_id)
    counted = select(beats.c.partition, func.max(beats.c.counted_to_address)).where(
        beats.c.topic == topic, beats.c.datacenter == datacenter, beats.c.tier == DATACENTER_TIER
    )
    counted_to = dict(tuple(row) for row in connection.execute(counted.group_by(beats.c.partition)))
    for partition, first, last, sum_of_sizes in connection.execute(query).all():
        end = counted_to.get(partition, first)
        if sum_of_sizes == last - first and end <= last:
            continue
        ranges = select(table.c.from_address, table.c.to_address)
        of_partition = connection.execute(ranges.where(*of_tier, table.c.partition == partition))
        gaps = tables.gaps
        of_log = (gaps.c.topic == topic, gaps.c.datacenter == datacenter, gaps.c.tier == DATACENTER_TIER)
        said = select(gaps.c.from_address, gaps.c.to_address).where(*of_log, gaps.c.partition == partition)
        known = union(
            [*(tuple(row) for row in of_partition), *(tuple(row) for row in connection.execute(said))]
        )
        if not covers(known, first, end):
            return True
    return False


def is_settled(evidence: Evidence, verdict: Verdict, policy: Policy = POLICY) -> bool:
    """Whether a verdict is complete, and stays so while heartbeats, tallies of later addresses and later
    reports of its publishers come. Pure.
    """
    is_plain = not (verdict.findings or verdict.accepted or verdict.notes or evidence.hour_ms == OUTSIDE_MS)
    is_one_topic = not evidence.earlier and evidence.made_again_ms is None and not evidence.is_deleted
    said_of_files = evidence.unsound_files or evidence.doubled
    places = evidence.partitions.values()
    has_damage = evidence.corrupt or any(p.datacenter.corrupt or p.analysis.corrupt for p in places)
    beats = (place.datacenter.heartbeat for place in places)
    last_ms = max((beat.at_ms - evidence.ahead_ms for beat in beats if beat), default=None)
    if not (is_plain and is_one_topic) or said_of_files or has_damage:
        return False
    if last_ms is None or (last_ms < evidence.end_ms and not evidence.is_after_deletion):
        return False
    if any(may_have_stopped_in(evidence, evidence.publishers[each]) for each in evidence.unclosed):
        return False
    return all(
        _is_past(evidence.publishers.get(each.publisher), each.reported_ms, evidence.end_ms, policy)
        for each in evidence.handovers
    )


def _is_past(publisher: PublisherState | None, reported_ms: int, end_ms: int, policy: Policy) -> bool:
    """Whether a publisher's silence from now on says nothing about the hour that ended at `end_ms`."""
    if publisher is None or publisher.counts_only:
        return False  # whom such events belong to depends on all publishers
    if publisher.closed:
        return True
    return end_ms <= publisher.last_ms and reported_ms <= publisher.last_ms - policy.report_grace_ms


class Keeper:
    """Keeps the verdicts on settled hours, a topic a turn. One thread uses it: the one that folds."""

    def __init__(self) -> None:
        self._rests: dict[str, float] = {}
        self._tried: defaultdict[str, set[int]] = defaultdict(set)

    def keep_some(self, store: AuditStore, now_ms: int, now_s: float | None = None) -> int:
        """Judges hours of one topic of which nothing is kept; returns how many verdicts it kept."""
        now_s = time.monotonic() if now_s is None else now_s
        with store.reading() as connection:
            topics = set(reported.topics(connection))
        due = sorted((self._rests.get(topic, 0.0), topic) for topic in topics)
        self._rests = {topic: at_s for topic, at_s in self._rests.items() if topic in topics}
        if not due or due[0][0] > now_s:
            return 0
        topic = due[0][1]
        with store.writing() as connection:
            take_turn(connection)
            hours_ms = self._hours(connection, topic, now_ms)
            rows = list(_settled(connection, topic, hours_ms, now_ms))
            upsert(connection, _kept, rows)
        self._tried[topic].update(hours_ms)
        if len(hours_ms) < HOURS_A_TURN_MAX:
            self._rests[topic] = now_s + REST_S
            self._tried.pop(topic, None)
        else:
            self._rests[topic] = now_s
        return len(rows)

    def _hours(self, connection: Connection, topic: str, now_ms: int) -> list[int]:
        """Returns the hours to try now, the newest first."""
        is_kept = kept_hours(connection, topic, None, now_ms)
        tried = self._tried[topic]
        over = (each for each in reported.hours(connection, topic, None, now_ms) if each + HOUR_MS <= now_ms)
        missing = [each for each in over if each not in tried and is_kept.of_hour(each) is None]
        return missing[-HOURS_A_TURN_MAX:]


def _settled(
    connection: Connection, topic: str, hours_ms: list[int], now_ms: int
) -> Iterator[dict[str, Any]]:
    """Yields the rows of the verdicts that can be kept."""
    ids = tables.topic_ids
    named = select(ids.c.datacenter, func.count()).where(ids.c.topic == topic).group_by(ids.c.datacenter)
    id_counts = dict(tuple(row) for row in connection.execute(named))
    for evidence in gather.evidence(connection, topic, hours_ms):
        if id_counts.get(evidence.datacenter) != 1:
            continue
        verdict = judge(evidence, POLICY, now_ms)
        if is_settled(evidence, verdict):
            yield {
                "topic": topic,
                "hour_ms": evidence.hour_ms,
                "datacenter": evidence.datacenter,
                "counted_from": verdict.counted_from,
                **dict(zip(_COUNTS, verdict.counts, strict=True)),
            }
