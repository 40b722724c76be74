"""Reads from the store what verifications said. Only reads."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from headrace.audit.evidence_of_tables import HeldTwice, UnsoundFile
from headrace.audit.store import measured_tables
from headrace.audit.topic.said_of_tables import NO_HOUR_MS, TableProblem


class VerifiedTable(NamedTuple):
    """The newest verification of a table."""

    warehouse: str
    topic: str
    checked: str
    files: int
    rows: int
    problem_count: int
    problems: tuple[TableProblem, ...]
    said_ms: int

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`."""
        return {**self._asdict(), "problems": [each._asdict() for each in self.problems]}

    @property
    def of_no_hour(self) -> tuple[TableProblem, ...]:
        """The problems that are no finding of an hour."""
        return tuple(each for each in self.problems if each.hour_ms == NO_HOUR_MS)


def verified_tables(connection: Connection, topic: str | None) -> list[VerifiedTable]:
    """Returns the newest verification of each table, of a topic or of all."""
    table = measured_tables.verified
    of_topic = () if topic is None else (table.c.topic == topic,)
    rows = connection.execute(select(table).where(*of_topic).order_by(table.c.topic, table.c.warehouse))
    return [VerifiedTable(**{**row._asdict(), "problems": _problems(row.problems)}) for row in rows]


def unsound_files(
    connection: Connection, topic: str, warehouse: str | None
) -> defaultdict[int, tuple[UnsoundFile, ...]]:
    """Returns the files of a topic's table that the newest verification found wrong, by hour (ms)."""
    found: defaultdict[int, tuple[UnsoundFile, ...]] = defaultdict(tuple)
    for verified in verified_tables(connection, topic):
        if verified.warehouse != warehouse:
            continue
        for each in verified.problems:
            if each.hour_ms != NO_HOUR_MS:
                file = UnsoundFile(each.path, each.rows, each.is_gone, each.text, verified.said_ms)
                found[each.hour_ms] += (file,)
    return found


def doubled_rows(
    connection: Connection, topic: str, warehouse: str | None
) -> defaultdict[int, tuple[HeldTwice, ...]]:
    """Returns the rows of a topic's table whose guids other rows have, too, by hour (ms)."""
    table, removal = measured_tables.doubled, measured_tables.deduped
    of_table = (table.c.warehouse == warehouse, table.c.topic == topic)
    found: defaultdict[int, tuple[HeldTwice, ...]] = defaultdict(tuple)
    if connection.execute(select(table.c.hour_ms).where(*of_table).limit(1)).first() is None:
        return found
    removals = select(removal).where(removal.c.warehouse == warehouse, removal.c.topic == topic)
    removed_ms = {row.hour_ms: row.said_ms for row in connection.execute(removals)}
    runs: defaultdict[int, list[HeldTwice]] = defaultdict(list)
    for row in connection.execute(select(table).where(*of_table)):
        is_removed = row.said_ms <= removed_ms.get(row.hour_ms, -1)
        run = (row.log_partition, row.first_offset, row.last_offset, row.is_extra, is_removed)
        runs[row.hour_ms].append(HeldTwice(*run))
    found.update((hour_ms, tuple(each)) for hour_ms, each in runs.items())
    return found


def _problems(text: str) -> tuple[TableProblem, ...]:
    return tuple(TableProblem(*values) for values in json.loads(text))
