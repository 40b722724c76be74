"""Folding each kind of audit record into the tables, within the caller's transaction.

Folding is idempotent and does not depend on order: the tables keep every record once, under its key, and the
newer of two versions wins, whichever arrives first. Only that a publisher's report is missing is found by the
order of its reports, which share a partition.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, update

from headrace.audit.batches.tally import Span
from headrace.audit.intervals import Interval
from headrace.audit.store import kept, measured_tables, tables
from headrace.audit.store.cover import Candidate, choose
from headrace.audit.store.fold_again import is_any_awaited, is_taken_back
from headrace.audit.store.fold_load import fold_load
from headrace.audit.store.fold_missing import note_missing
from headrace.audit.store.fold_recount import fold_recount
from headrace.audit.store.fold_repairs import fold_acceptance, fold_resent, fold_tested
from headrace.audit.store.inserting import insert_new, upsert, widen
from headrace.audit.times import corrupt_hours, hour_start, named_time
from headrace.audit.topic.acceptances import AcceptanceRecord
from headrace.audit.topic.claimed_ranges import contents_of, merge_ranges
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.load_report import LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    CorruptRecord,
    HandoverTally,
    HeartbeatRecord,
    ProducerReport,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.recounts import RecountRecord
from headrace.audit.topic.resent import ResentRecord
from headrace.audit.topic.tested import TestedRecord
from headrace.wire.content import hex_of

EVER_RANGES_MAX: Final = 40_000  # sequence ranges that one tally of a publisher claimed, in all its versions
ADDRESSES: Final = (-(2**63), 2**63 - 1)  # what a column can hold
_PLACE: Final = ("topic", "datacenter", "tier", "partition", "topic_id")
_BEAT: Final = ("datacenter", "topic", "partition", "log_partition", "counted_to_address", "end_address")
NEVER_SAID_MS: Final = -(2**63)
NOT_KNOWN: Final = ""
"""The id of a topic in records that do not name it."""
_Overlapped = defaultdict[tuple[Any, ...], list[Interval]]
"""The ranges of tallies that share addresses with others, by the values of `_PLACE`."""


def fold_records(connection: Connection, records: Iterable[ReceivedRecord]) -> None:
    """Folds records. Raises `ValueError` for one that the store does not hold."""
    overlapped: _Overlapped = defaultdict(list)
    is_any_kept, is_again = kept.any_kept(connection), is_any_awaited(connection)
    for received in records:
        if is_again and is_taken_back(connection, received):
            continue
        if is_any_kept:
            kept.forget_changed(connection, received)
        _fold_record(connection, received, overlapped)
    # Once for all records: a stranger's tallies may overlap by the thousand.
    for place, ranges in overlapped.items():
        kept.forget_topic(connection, *place[:2])
        _reselect(connection, dict(zip(_PLACE, place, strict=True)), ranges)


def _fold_record(connection: Connection, received: ReceivedRecord, overlapped: _Overlapped) -> None:
    record, time_ms = received.record, received.time_ms
    if isinstance(record, RangeTally):
        _fold_tally(connection, record, time_ms, overlapped)
    elif isinstance(record, ProducerReport):
        _fold_report(connection, record, received)
    elif isinstance(record, HeartbeatRecord):
        _fold_heartbeat(connection, record, time_ms)
    elif isinstance(record, LoadReport):
        fold_load(connection, record)
    elif isinstance(record, CorruptRecord):
        _fold_corrupt(connection, record, time_ms)
    elif isinstance(record, TopicDeclaration):
        _fold_declaration(connection, record, received)
    elif isinstance(record, RecountRecord):
        fold_recount(connection, record, time_ms)
    elif isinstance(record, ResentRecord):
        fold_resent(connection, record, time_ms)
        _touch(connection, record.topic, record.datacenter, (record.bucket_start_ms,), time_ms)
    elif isinstance(record, AcceptanceRecord):
        fold_acceptance(connection, record, time_ms)
    elif isinstance(record, TestedRecord):
        fold_tested(connection, record, time_ms)
    else:
        upsert(connection, tables.gaps, [{**asdict(record), "said_ms": time_ms}], newer_by="accepted")


def _fold_tally(connection: Connection, tally: RangeTally, time_ms: int, overlapped: _Overlapped) -> None:
    if tally.to_address <= tally.from_address:
        return
    key = {name: getattr(tally, name) for name in _PLACE}
    range_ = {"from_address": tally.from_address, "to_address": tally.to_address}
    whole = {**key, **range_, "digest": digest_of(tally.spans)}
    known = connection.execute(_SAME, {f"the_{name}": value for name, value in whole.items()}).scalar()
    if known is not None:
        connection.execute(_KEEP_EARLIER_TIME, {"row": known, "time_ms": time_ms})
        return
    is_alone = connection.execute(_ANY_OVERLAPPING, _bounds(key, *range_.values())).first() is None
    values = {**whole, "counted_ms": time_ms, "chosen": is_alone}
    inserted = connection.execute(insert(tables.tallies), values).inserted_primary_key
    assert inserted is not None
    if tally.spans:
        rows = [
            {
                "tally_id": inserted[0],
                **span._asdict(),
                "bucket_start_ms": named_time(span.bucket_start_ms),
            }
            for span in tally.spans
        ]
        connection.execute(insert(tables.spans), rows)
    if not is_alone:
        overlapped[tuple(key.values())].append((tally.from_address, tally.to_address))
    starts_ms = (span.bucket_start_ms for span in tally.spans)
    _touch(connection, tally.topic, tally.datacenter, starts_ms, time_ms)
    _note_ids(connection, {(tally.datacenter, tally.topic, tally.topic_id)}, time_ms)
    if tally.tier == ANALYSIS_TIER:
        source = (tally.datacenter, tally.partition, tally.topic_id)
        _attribute(connection, [(tally.topic, tally.log_partition, NOT_KNOWN, *source)], time_ms)


def _bounds(key: Mapping[str, Any], start: int, end: int) -> dict[str, Any]:
    return {**{f"the_{name}": value for name, value in key.items()}, "start": start, "end": end}


def _reselect(connection: Connection, key: Mapping[str, Any], ranges: Iterable[Interval]) -> None:
    """Re-selects the tallies of one partition that count in `ranges`, and in what is connected with them."""
    done_to = -1
    for start, end in sorted(ranges):
        if end <= done_to:
            continue
        connected = _connected(connection, key, start, end)
        if not connected:
            continue  # a recount has removed them
        done_to = max(candidate.end for candidate, _ in connected)
        chosen = {candidate.row for candidate in choose(candidate for candidate, _ in connected)}
        changed = [
            {"row": candidate.row, "is_chosen": candidate.row in chosen}
            for candidate, was_chosen in connected
            if was_chosen != (candidate.row in chosen)
        ]
        if changed:
            connection.execute(_CHOOSE, changed)


def _connected(
    connection: Connection, key: Mapping[str, Any], start: int, end: int
) -> list[tuple[Candidate, bool]]:
    """Returns the tallies that share addresses with [start, end), directly or through others, and whether
    each is chosen.
    """
    reach = end - start
    while True:
        low, high = max(ADDRESSES[0], start - reach), min(ADDRESSES[1], end + reach)
        rows = connection.execute(_OVERLAPPING, _bounds(key, low, high))
        found = [(Candidate(*values), bool(is_chosen)) for *values, is_chosen in rows]
        first, last = _extent(found, start)
        if low <= first and last <= high:
            return [each for each in found if first <= each[0].start < last]
        reach = max(4 * reach, start - first, last - end)


def _extent(found: Iterable[tuple[Candidate, bool]], address: int) -> tuple[int, int]:
    """Returns the addresses of those that share some, directly or through others, with one at `address`."""
    first, last = 0, 0
    for candidate in sorted(candidate for candidate, _ in found):
        if candidate.start < last:
            last = max(last, candidate.end)
        elif first <= address < last:
            break
        else:
            first, last = candidate.start, candidate.end
    return first, last


def _fold_report(connection: Connection, report: ProducerReport, received: ReceivedRecord) -> None:
    datacenter, time_ms = received.datacenter, received.time_ms
    note_missing(connection, report, received)
    row = {
        "datacenter": datacenter,
        "publisher": report.publisher,
        "service": received.service,
        "server": received.server,
        "started_ms": report.started_ms,
        "last_ms": time_ms,
        "report_number": report.report_number,
        "closed": report.closed,
    }
    upsert(connection, tables.publishers, [row], newer_by="report_number")
    if report.counts_only:
        counting = {"datacenter": datacenter, "publisher": report.publisher}
        insert_new(connection, tables.counting_publishers, counting)
    speaker = {"datacenter": datacenter, "publisher": report.publisher}
    for topic in {tally.topic for tally in report.tallies}:
        insert_new(connection, measured_tables.published, {**speaker, "topic": topic})
    for tally in report.tallies:
        key = {**speaker, "part": tally.part}
        _fold_handover(connection, key, tally, report.report_number, time_ms)
        _touch(connection, tally.topic, datacenter, (tally.bucket_start_ms,), time_ms)
    for producer_id in sorted(report.producer_ids()):
        owner = {"datacenter": datacenter, "producer_id": producer_id, "publisher": report.publisher}
        insert_new(connection, tables.producer_ids, owner)


def _fold_handover(
    connection: Connection, key: dict[str, Any], tally: HandoverTally, report_number: int, time_ms: int
) -> None:
    ranges = merge_ranges(tally.ranges)
    old = connection.execute(_HANDOVER, key).one_or_none()
    ever = ranges if old is None else merge_ranges([*json.loads(old.ever), *ranges])
    if len(ever) > EVER_RANGES_MAX:
        raise ValueError(
            f"part {tally.part} of publisher {key['publisher']} would have claimed {len(ever)} ranges; "
            f"the store keeps at most {EVER_RANGES_MAX}"
        )
    row = {
        **key,
        "report_number": report_number,
        "topic": tally.topic,
        "bucket_start_ms": named_time(tally.bucket_start_ms),
        "handed_over_count": tally.handed_over_count,
        "final": tally.final,
        "reported_ms": time_ms,
        "ranges": json.dumps(ranges),
        "contents": json.dumps([hex_of(each) for each in contents_of(ranges, tally)]),
    }
    if old is not None and old.report_number >= report_number:
        row = dict(old._mapping)
    upsert(connection, tables.handovers, [{**row, "ever": json.dumps(ever)}])


def _fold_heartbeat(connection: Connection, heartbeat: HeartbeatRecord, time_ms: int) -> None:
    common = {"tier": heartbeat.tier, "beat": heartbeat.beat, "at_ms": time_ms}
    rows = [
        {
            **common,
            **{name: getattr(position, name) for name in _BEAT},
            "topic_id": position.source_topic_id,
        }
        for position in heartbeat.positions
    ]
    upsert(connection, tables.beats, rows, newer_by="beat")
    named = {(each.datacenter, each.topic, each.source_topic_id) for each in heartbeat.positions}
    _note_ids(connection, named, time_ms)
    if heartbeat.tier == ANALYSIS_TIER:
        sources = [
            (p.topic, p.log_partition, p.topic_id, p.datacenter, p.partition, p.source_topic_id)
            for p in heartbeat.positions
        ]
        _attribute(connection, sources, time_ms)


def _fold_corrupt(connection: Connection, corrupt: CorruptRecord, time_ms: int) -> None:
    upsert(connection, tables.corrupt, [{**asdict(corrupt), "reported_ms": time_ms}], newer_by="reported_ms")
    hours = corrupt_hours(corrupt.first_ms, corrupt.last_ms)
    if not hours and not corrupt.in_tally:  # else its hours are those of the tally
        hours = (hour_start(time_ms),)
    _touch(connection, corrupt.topic, corrupt.datacenter, hours, time_ms)
    if corrupt.tier == ANALYSIS_TIER:
        source = (corrupt.datacenter, corrupt.partition, corrupt.topic_id)
        _attribute(connection, [(corrupt.topic, corrupt.log_partition, NOT_KNOWN, *source)], time_ms)


def _fold_declaration(
    connection: Connection, declaration: TopicDeclaration, received: ReceivedRecord
) -> None:
    key = {
        "datacenter": received.datacenter,
        "topic": declaration.topic,
        "topic_id": declaration.topic_id,
    }
    table, time_ms = tables.declarations, received.time_ms
    of_key = (table.c[name] == value for name, value in key.items())
    old = connection.execute(select(table).where(*of_key)).one_or_none()
    first_ms = time_ms if old is None else min(old.first_said_ms, time_ms)
    said_ms, changes = (NEVER_SAID_MS, "[]") if old is None else (old.said_ms, old.changes)
    partitions = None if old is None else old.partitions
    deleted_ms = NEVER_SAID_MS if old is None or old.deleted_ms is None else old.deleted_ms
    if declaration.deleted:
        deleted_ms = max(deleted_ms, time_ms)
    elif said_ms < time_ms:
        said_ms, changes = time_ms, json.dumps(declaration.changes)
        partitions = declaration.partitions
    row = {**key, "first_said_ms": first_ms, "said_ms": said_ms, "changes": changes, "partitions": partitions}
    # One that declares something after that is there: no broker had named it for a while.
    row["deleted_ms"] = deleted_ms if deleted_ms > said_ms else None
    upsert(connection, table, [row])


def _touch(
    connection: Connection, topic: str, datacenter: str, bucket_starts_ms: Iterable[int], time_ms: int
) -> None:
    rows = [
        {"topic": topic, "datacenter": datacenter, "hour_ms": hour_ms, "touched_ms": time_ms}
        for hour_ms in sorted({hour_start(start) for start in bucket_starts_ms})
    ]
    upsert(connection, tables.hours, rows, newer_by="touched_ms")


def _note_ids(connection: Connection, named: Iterable[tuple[str, str, str]], time_ms: int) -> None:
    """Records when (datacenter, topic, topic's id) were named first and last."""
    names = ("datacenter", "topic", "topic_id")
    rows = [
        {**dict(zip(names, each, strict=True)), "first_ms": time_ms, "last_ms": time_ms}
        for each in sorted(named)
    ]
    widen(connection, tables.topic_ids, rows, "first_ms", "last_ms")


def _attribute(
    connection: Connection, sources: Iterable[tuple[str, int, str, str, int, str]], time_ms: int
) -> None:
    """Records which source partition an analysis partition copies.

    `sources`: (topic, analysis partition, id of the topic there, datacenter, source partition, its topic's
    id).
    """
    names = ("topic", "log_partition", "log_topic_id", "datacenter", "partition", "topic_id")
    rows = [{**dict(zip(names, source, strict=True)), "said_ms": time_ms} for source in sources]
    upsert(connection, tables.attributions, rows, newer_by="said_ms")


def digest_of(spans: Iterable[Span]) -> str:
    """Returns a short fingerprint of what a tally says."""
    return hashlib.blake2b(repr([tuple(span) for span in spans]).encode(), digest_size=8).hexdigest()


# --- statements ---


# Statements are built once, because building one costs more than executing it.

_OF_PARTITION: Final = [tables.tallies.c[name] == bindparam(f"the_{name}") for name in _PLACE]
_SHARING: Final = (
    *_OF_PARTITION,
    tables.tallies.c.from_address < bindparam("end"),
    tables.tallies.c.to_address > bindparam("start"),
)
_CANDIDATE: Final = [
    tables.tallies.c[name] for name in ("from_address", "to_address", "digest", "id", "chosen")
]
_OVERLAPPING: Final = select(*_CANDIDATE).where(*_SHARING)
_ANY_OVERLAPPING: Final = select(tables.tallies.c.id).where(*_SHARING).limit(1)
_SAME: Final = select(tables.tallies.c.id).where(
    *_OF_PARTITION,
    *(
        tables.tallies.c[name] == bindparam(f"the_{name}")
        for name in ("from_address", "to_address", "digest")
    ),
)
_KEEP_EARLIER_TIME: Final = (
    update(tables.tallies)
    .where(tables.tallies.c.id == bindparam("row"), tables.tallies.c.counted_ms > bindparam("time_ms"))
    .values(counted_ms=bindparam("time_ms"))
)
_CHOOSE: Final = (
    update(tables.tallies)
    .where(tables.tallies.c.id == bindparam("row"))
    .values(chosen=bindparam("is_chosen"))
)
_HANDOVER_KEY: Final = ("datacenter", "publisher", "part")
_HANDOVER: Final = select(tables.handovers).where(
    *(tables.handovers.c[name] == bindparam(name) for name in _HANDOVER_KEY)
)
