"""Loads of a table that HDFS has lost, or that was restored from a backup: which of them count no more.

A number of a table's commit log is given once, and a load begins where the ones before it ended. So two loads
of one number, or of the same addresses of one log, are of two states of the table: it went back in between.
The one that was committed later is of the present state, and what was committed before it counts only with a
lower number, and from lower addresses. That is noted, so that the report of such a load counts in no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, or_, select

from headrace.audit.store import kept, load_tables, measured_tables
from headrace.audit.store.inserting import insert_new
from headrace.audit.topic.load_report import NOT_BEGUN, LoadReport

_RANGES: Final = load_tables.load_ranges
_TOPICS: Final = load_tables.load_topics
_RETURNS: Final = measured_tables.load_returns
_OF_LOADS: Final = (
    _RANGES,
    load_tables.load_rows,
    _TOPICS,
    load_tables.load_begins,
    load_tables.load_topic_gaps,
)
_NO_PARTITION: Final = -1


class _Load(NamedTuple):
    """A load by its number and time, and the addresses that it read of each partition."""

    warehouse: str
    topic: str
    sequence: int
    committed_ms: int
    topic_id: str
    reads: tuple[tuple[int, int, int], ...]
    """Partition, first address, end."""

    def of_table(self, table: Table) -> ColumnElement[bool]:
        return and_(table.c.warehouse == self.warehouse, table.c.topic == self.topic)


def is_of_lost_state(connection: Connection, report: LoadReport) -> bool:
    """Whether a load is of a state that its table went back behind: its report is not to be folded.

    If the report shows that the table went back, forgets the loads that count no more.
    """
    load = _Load(
        report.warehouse,
        report.topic,
        report.load_sequence,
        report.committed_ms,
        report.topic_id,
        tuple(
            (each.partition, each.from_address, each.to_address)
            for each in report.partitions
            if each.from_address < each.to_address and not each.from_source and each.begins_at == NOT_BEGUN
        ),
    )
    if _is_behind_a_return(connection, load):
        return True
    others = list(_contradicting(connection, load))
    if _is_return(connection, load) or any(each.committed_ms < load.committed_ms for each in others):
        _note(connection, load)
    later = [each for each in others if each.committed_ms > load.committed_ms]
    for each in later:
        _note(connection, each)
    return bool(later)


def _is_behind_a_return(connection: Connection, load: _Load) -> bool:
    passed = [_RETURNS.c.load_sequence <= load.sequence]
    passed += [
        and_(
            _RETURNS.c.log_partition == partition,
            _RETURNS.c.log_topic_id == load.topic_id,
            _RETURNS.c.from_address <= start,
        )
        for partition, start, _ in load.reads
    ]
    where = (load.of_table(_RETURNS), _RETURNS.c.committed_ms > load.committed_ms, or_(*passed))
    return connection.execute(select(_RETURNS.c.topic).where(*where).limit(1)).first() is not None


def _is_return(connection: Connection, load: _Load) -> bool:
    """Whether another part of this load's report was noted."""
    of_load = (_RETURNS.c.load_sequence == load.sequence, _RETURNS.c.committed_ms == load.committed_ms)
    query = select(_RETURNS.c.topic).where(load.of_table(_RETURNS), *of_load).limit(1)
    return connection.execute(query).first() is not None


def _contradicting(connection: Connection, load: _Load) -> Iterator[_Load]:
    """Yields known loads that are not of the same state of the table."""
    number, committed = _RANGES.c.load_sequence, _RANGES.c.committed_ms
    is_other = (load.of_table(_RANGES), committed != load.committed_ms)
    if connection.execute(select(number).where(*is_other, number == load.sequence).limit(1)).first():
        yield _known(connection, load, load.sequence)
    found: set[int] = set()
    for partition, start, end in load.reads:
        of_log = (_RANGES.c.log_partition == partition, *_has_read())
        for neighbours in ((number < load.sequence, number.desc()), (number > load.sequence, number.asc())):
            condition, order = neighbours
            nearest = select(_RANGES).where(*is_other, *of_log, condition).order_by(order).limit(1)
            row = connection.execute(nearest).first()
            if row is not None and row.from_address < end and row.to_address > start:
                found.add(row.load_sequence)
    for sequence in sorted(found):
        other = _known(connection, load, sequence)
        if other.topic_id == load.topic_id:
            yield other


def _has_read() -> tuple[ColumnElement[bool], ...]:
    return (_RANGES.c.from_address < _RANGES.c.to_address, ~_RANGES.c.from_source)


def _known(connection: Connection, load: _Load, sequence: int) -> _Load:
    """Returns the load of the same table with this number, as the store has it."""
    of_load = (load.of_table(_RANGES), _RANGES.c.load_sequence == sequence)
    rows = connection.execute(select(_RANGES).where(*of_load)).all()
    named = select(_TOPICS.c.log_topic_id).where(load.of_table(_TOPICS), _TOPICS.c.load_sequence == sequence)
    begins = load_tables.load_begins
    begun = select(begins.c.log_partition).where(load.of_table(begins), begins.c.load_sequence == sequence)
    others = set(connection.execute(begun).scalars())
    return load._replace(
        sequence=sequence,
        committed_ms=rows[0].committed_ms,
        topic_id=connection.execute(named).scalar() or "",
        reads=tuple(
            (row.log_partition, row.from_address, row.to_address)
            for row in rows
            if row.from_address < row.to_address and not row.from_source and row.log_partition not in others
        ),
    )


def _note(connection: Connection, load: _Load) -> None:
    """Notes that the table went back before this load, and forgets the loads that count no more."""
    row: dict[str, Any] = {
        "warehouse": load.warehouse,
        "topic": load.topic,
        "load_sequence": load.sequence,
        "committed_ms": load.committed_ms,
        "log_topic_id": load.topic_id,
    }
    for partition, start, _ in ((_NO_PARTITION, 0, 0), *load.reads):
        insert_new(connection, _RETURNS, {**row, "log_partition": partition, "from_address": start})
    kept.forget_topic(connection, load.topic)
    earlier = (load.of_table(_RANGES), _RANGES.c.committed_ms < load.committed_ms)
    number = _RANGES.c.load_sequence
    _forget(connection, load, select(number).where(*earlier, number >= load.sequence))
    same = (load.of_table(_TOPICS), _TOPICS.c.log_topic_id == load.topic_id)
    of_log = number.in_(select(_TOPICS.c.load_sequence).where(*same))
    if not load.topic_id:
        of_log = ~number.in_(select(_TOPICS.c.load_sequence).where(load.of_table(_TOPICS)))
    for partition, start, _ in load.reads:
        behind = (_RANGES.c.log_partition == partition, _RANGES.c.from_address >= start, *_has_read())
        _forget(connection, load, select(number).where(*earlier, of_log, *behind))


def _forget(connection: Connection, load: _Load, query: Any) -> None:
    sequences: Iterable[int] = set(connection.execute(query).scalars())
    for table in _OF_LOADS if sequences else ():
        for sequence in sorted(sequences):
            of_load = (load.of_table(table), table.c.load_sequence == sequence)
            connection.execute(delete(table).where(*of_load))
