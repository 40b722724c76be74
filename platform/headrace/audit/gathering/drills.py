"""Reads from the store which drills have ended. Only reads; forgetting is the upkeep's."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from sqlalchemy import Connection, delete, inspect, select

from headrace.audit.store import measured_tables
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.drills import DrillPlant

DRILLS_MAX: Final = 100
"""The newest ones: four an hour of a whole day."""
DRILLS_KEPT_MS: Final = 7 * 24 * 3_600_000


class EndedDrill(NamedTuple):
    """A drill as its record says it ended."""

    run: str
    said_by: str
    said_ms: int
    false_count: int
    plants: tuple[DrillPlant, ...]


def ended_drills(connection: Connection) -> list[EndedDrill]:
    """Returns the newest drills, the last one first; none of a store that an earlier version made."""
    table = measured_tables.drills
    if not inspect(connection).has_table(table.name):
        return []
    rows = connection.execute(select(table).order_by(table.c.said_ms.desc()).limit(DRILLS_MAX))
    return [
        EndedDrill(
            row.run,
            row.said_by,
            row.said_ms,
            row.false_count,
            tuple(map(DrillPlant.from_json, json.loads(row.plants))),
        )
        for row in rows
    ]


def forget_drills(store: AuditStore, now_ms: int) -> None:
    """Forgets the drills of long ago."""
    table = measured_tables.drills
    with store.writing() as connection:
        connection.execute(delete(table).where(table.c.said_ms < now_ms - DRILLS_KEPT_MS))
