"""Reports of publishers that arrived by their word, and that the audit's topic does not hold: it lost them.

A missing number alone says nothing, because a report that failed has one, too. So each report names the last
one that arrived. The reports of one publisher share a partition, and are folded in their order. The heir of a
publisher that was killed names the last one that its journal tells, and may do so days later: so a report
says, too, when the one that it names was made.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, bindparam, delete, select

from headrace.audit.store import measured_tables, tables
from headrace.audit.store.inserting import insert_new
from headrace.audit.topic.records import ProducerReport, ReceivedRecord

_MISSING: Final = measured_tables.missing_reports
_PUBLISHERS: Final = tables.publishers


def note_missing(connection: Connection, report: ProducerReport, received: ReceivedRecord) -> None:
    """Notes the report that is missing before this one, if any; this one is missing no more.

    Call it before the publisher's row is written.
    """
    key = {"datacenter": received.datacenter, "publisher": report.publisher}
    connection.execute(_ARRIVES, {**key, "report_number": report.report_number})
    last = connection.execute(_LAST, key).one_or_none()
    from_ms = missing_from(report, None if last is None else (last.report_number, last.last_ms))
    if from_ms is None:
        return
    row = {
        **key,
        "report_number": report.arrived_number,
        "service": received.service,
        "server": received.server,
        "from_ms": min(from_ms, received.time_ms),
        "until_ms": max(from_ms, received.time_ms),
        "made_ms": report.arrived_made_ms,
    }
    insert_new(connection, _MISSING, row)


def missing_from(report: ProducerReport, last: tuple[int, int] | None) -> int | None:
    """Returns when the last report before a missing one was made (ms, by the publisher's clock); None if none
    is missing before `report`. `last`: number and time of the last report that was read; without one, the
    publisher accepted events since its start.
    """
    if not report.arrived_number:
        return None
    if last is None:
        return report.started_ms
    number, last_ms = last
    return last_ms if number < report.arrived_number else None


# --- statements ---

_ARRIVES: Final = delete(_MISSING).where(
    *(column == bindparam(column.name) for column in _MISSING.primary_key)
)
_LAST: Final = select(_PUBLISHERS.c.report_number, _PUBLISHERS.c.last_ms).where(
    *(column == bindparam(column.name) for column in _PUBLISHERS.primary_key)
)
