"""How each kind of audit record is folded into the tables, within the caller's transaction.

Folding is idempotent and does not depend on order: every record has a key under which it is kept once, and
where a newer one replaces an older, the newer wins whichever comes first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Table, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from headrace.audit import tables
from headrace.audit.cover import Candidate, choose
from headrace.audit.records import (
    ANALYSIS_TIER,
    Gap,
    HandoverTally,
    LoadReport,
    Positions,
    ProducerReport,
    RangeTally,
)
from headrace.audit.tally import HOUR_MS, Span

FoldedRecord = RangeTally | Positions | Gap | LoadReport | ProducerReport


class Said(NamedTuple):
    """An audit record and who said it when (its header)."""

    record: FoldedRecord
    datacenter: str
    service: str
    server: str
    time_ms: int


def fold_one(connection: Connection, said: Said) -> None:
    """Fold one record."""
    record = said.record
    if isinstance(record, RangeTally):
        _fold_tally(connection, record, said.time_ms)
    elif isinstance(record, ProducerReport):
        _fold_report(connection, record, said)
    elif isinstance(record, Positions):
        _fold_positions(connection, record, said.time_ms)
    elif isinstance(record, LoadReport):
        _fold_load(connection, record)
    else:
        row = {name: getattr(record, name) for name in Gap.__slots__}
        upsert(connection, tables.gaps, [row], newer_by="accepted")


def _fold_tally(connection: Connection, tally: RangeTally, time_ms: int) -> None:
    if tally.to_address <= tally.from_address:
        return
    key = {
        "topic": tally.topic,
        "datacenter": tally.datacenter,
        "tier": tally.tier,
        "partition": tally.partition,
    }
    range_ = {"from_address": tally.from_address, "to_address": tally.to_address}
    digest = digest_of(tally.spans)
    neighbours = _overlapping(connection, key, tally.from_address, tally.to_address)
    for each in neighbours:
        if each[:3] == (tally.from_address, tally.to_address, digest):
            connection.execute(_SAID_EARLIER, {"row": each.row, "said_ms": time_ms})
            return
    values = {**key, **range_, "digest": digest, "counted_ms": time_ms, "chosen": not neighbours}
    inserted = connection.execute(insert(tables.tallies), values).inserted_primary_key
    assert inserted is not None
    if tally.spans:
        rows = [{"tally_id": inserted[0], **span._asdict()} for span in tally.spans]
        connection.execute(insert(tables.spans), rows)
    if neighbours:
        _choose_again(connection, key, tally.from_address, tally.to_address)
    starts_ms = (span.bucket_start_ms for span in tally.spans)
    _touch(connection, tally.topic, tally.datacenter, starts_ms, time_ms)
    if tally.tier == ANALYSIS_TIER:
        source = (tally.topic, tally.log_partition, tally.datacenter, tally.partition)
        _attribute(connection, [source], time_ms)


def _overlapping(connection: Connection, key: Mapping[str, Any], start: int, end: int) -> list[Candidate]:
    """The tallies of one partition that share addresses with [start, end)."""
    values = {f"the_{name}": value for name, value in key.items()}
    rows = connection.execute(_OVERLAPPING, {**values, "start": start, "end": end})
    return [Candidate(*row) for row in rows]


def _choose_again(connection: Connection, key: Mapping[str, Any], start: int, end: int) -> None:
    """Decide anew among all ranges that hang together with [start, end) by overlaps."""
    while True:
        candidates = _overlapping(connection, key, start, end)
        low, high = min(each.start for each in candidates), max(each.end for each in candidates)
        if (low, high) == (start, end):
            break
        start, end = low, high
    chosen = {each.row for each in choose(candidates)}
    rows = [{"row": each.row, "is_chosen": each.row in chosen} for each in candidates]
    connection.execute(_CHOOSE, rows)


def _fold_report(connection: Connection, report: ProducerReport, said: Said) -> None:
    row = {
        "datacenter": said.datacenter,
        "publisher": report.publisher,
        "service": said.service,
        "server": said.server,
        "started_ms": report.started_ms,
        "last_ms": said.time_ms,
        "report_number": report.report_number,
        "closed": report.closed,
    }
    upsert(connection, tables.publishers, [row], newer_by="report_number")
    for tally in report.tallies:
        key = {"datacenter": said.datacenter, "publisher": report.publisher, "part": tally.part}
        _fold_handover(connection, key, tally, report.report_number, said.time_ms)
        _touch(connection, tally.topic, said.datacenter, (tally.bucket_start_ms,), said.time_ms)
    for producer_id in sorted(report.producer_ids()):
        owner = {"datacenter": said.datacenter, "producer_id": producer_id, "publisher": report.publisher}
        insert_new(connection, tables.producer_ids, owner)


def _fold_handover(
    connection: Connection, key: dict[str, Any], tally: HandoverTally, report_number: int, time_ms: int
) -> None:
    ranges = merge_ranges(tally.ranges)
    old = connection.execute(_HANDOVER, key).one_or_none()
    ever = ranges if old is None else merge_ranges([*json.loads(old.ever), *ranges])
    row = {
        **key,
        "report_number": report_number,
        "topic": tally.topic,
        "bucket_start_ms": tally.bucket_start_ms,
        "handed_over_count": tally.handed_over_count,
        "final": tally.final,
        "reported_ms": time_ms,
        "ranges": json.dumps(ranges),
    }
    if old is not None and old.report_number >= report_number:
        row = dict(old._mapping)
    upsert(connection, tables.handovers, [{**row, "ever": json.dumps(ever)}])


def _fold_positions(connection: Connection, positions: Positions, time_ms: int) -> None:
    rows = [
        {
            "tier": positions.tier,
            "datacenter": each.datacenter,
            "topic": each.topic,
            "partition": each.partition,
            "log_partition": each.log_partition,
            "beat": positions.beat,
            "at_ms": time_ms,
            "counted_to_address": each.counted_to_address,
            "end_address": each.end_address,
        }
        for each in positions.positions
    ]
    upsert(connection, tables.beats, rows, newer_by="beat")
    if positions.tier == ANALYSIS_TIER:
        sources = [(p.topic, p.log_partition, p.datacenter, p.partition) for p in positions.positions]
        _attribute(connection, sources, time_ms)


def _fold_load(connection: Connection, load: LoadReport) -> None:
    for each in load.partitions:
        key = {
            "warehouse": load.warehouse,
            "topic": load.topic,
            "load_sequence": load.load_sequence,
            "log_partition": each.partition,
        }
        consumed = {
            "from_address": each.from_address,
            "to_address": each.to_address,
            "committed_ms": load.committed_ms,
        }
        if insert_new(connection, tables.load_ranges, {**key, **consumed}):
            for hour in each.hours:
                insert_new(connection, tables.load_rows, {**key, **hour._asdict()})
    for gap in load.accepted_gaps:
        values = {**gap._asdict(), "warehouse": load.warehouse, "topic": load.topic}
        values["log_partition"] = values.pop("partition")
        insert_new(connection, tables.load_gaps, values)


def _touch(
    connection: Connection, topic: str, datacenter: str, bucket_starts_ms: Iterable[int], time_ms: int
) -> None:
    rows = [
        {"topic": topic, "datacenter": datacenter, "hour_ms": hour_ms, "touched_ms": time_ms}
        for hour_ms in sorted({start - start % HOUR_MS for start in bucket_starts_ms})
    ]
    upsert(connection, tables.hours, rows, newer_by="touched_ms")


def _attribute(connection: Connection, sources: Iterable[tuple[str, int, str, int]], time_ms: int) -> None:
    """`sources`: (topic, analysis partition, datacenter, source partition)."""
    names = ("topic", "log_partition", "datacenter", "partition")
    rows = [{**dict(zip(names, source, strict=True)), "said_ms": time_ms} for source in sources]
    upsert(connection, tables.attributions, rows, newer_by="said_ms")


def digest_of(spans: Iterable[Span]) -> str:
    """A short fingerprint of a tally's content."""
    return hashlib.blake2b(repr([tuple(span) for span in spans]).encode(), digest_size=8).hexdigest()


def merge_ranges(ranges: Iterable[Iterable[int]]) -> list[list[int]]:
    """[partition, producer id, epoch, first, last] lists, sorted, without overlaps or seams within an
    identity.
    """
    out: list[list[int]] = []
    for each in sorted(list(values) for values in ranges):
        if out and out[-1][:3] == each[:3] and each[3] <= out[-1][4] + 1:
            out[-1][4] = max(out[-1][4], each[4])
        else:
            out.append(each)
    return out


def insert_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless its key is there; says whether it was new."""
    statement = _insert_new_statement(connection.dialect.name, table)
    return bool(connection.execute(statement, dict(values)).rowcount)


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    newer_by: str | None = None,
) -> None:
    """Insert or replace whole rows by primary key; with `newer_by`, replace only where that column is
    lower.
    """
    if rows:
        statement = _upsert_statement(connection.dialect.name, table, newer_by)
        connection.execute(statement, [dict(row) for row in rows])


# Statements are built once: building costs more than executing.


def _insert(dialect: str, table: Table) -> Any:
    return (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table)


@cache
def _insert_new_statement(dialect: str, table: Table) -> Any:
    return _insert(dialect, table).on_conflict_do_nothing()


@cache
def _upsert_statement(dialect: str, table: Table, newer_by: str | None) -> Any:
    statement = _insert(dialect, table)
    excluded = statement.excluded
    keys = [column.name for column in table.primary_key]
    replaced = {column.name: excluded[column.name] for column in table.c if column.name not in keys}
    newer = None if newer_by is None else table.c[newer_by] < excluded[newer_by]
    return statement.on_conflict_do_update(index_elements=keys, set_=replaced, where=newer)


_OF_PARTITION: Final = [
    tables.tallies.c[name] == bindparam(f"the_{name}")
    for name in ("topic", "datacenter", "tier", "partition")
]
_OVERLAPPING: Final = select(
    tables.tallies.c.from_address, tables.tallies.c.to_address, tables.tallies.c.digest, tables.tallies.c.id
).where(
    *_OF_PARTITION,
    tables.tallies.c.from_address < bindparam("end"),
    tables.tallies.c.to_address > bindparam("start"),
)
_SAID_EARLIER: Final = (
    update(tables.tallies)
    .where(tables.tallies.c.id == bindparam("row"), tables.tallies.c.counted_ms > bindparam("said_ms"))
    .values(counted_ms=bindparam("said_ms"))
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
