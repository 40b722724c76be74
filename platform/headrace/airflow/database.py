"""Airflow's metadata database before the components use it: schema, connections, pools.

Owns the only direct access to that database. It runs in the api-server's process before the server starts;
tasks never use it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

# Marks connections that headrace may overwrite. Stored in the database: do not change the text.
GENERATED: Final = "Written by headrace from the site's description; change the description to keep your own."
SPARK_POOL: Final = "spark"
# One Spark application uses both cores of a small machine.
SPARK_SLOTS: Final = 1


def prepare(*, connections: Mapping[str, Mapping[str, Any]]) -> None:
    """Creates or updates the schema, the connections (id → Airflow's JSON form) and the pool `spark`."""
    # Imported here because Airflow reads its configuration at import: its home must exist first.
    from airflow import settings
    from airflow.models.connection import Connection
    from airflow.models.pool import Pool
    from airflow.utils import db
    from airflow.utils.session import create_session
    from sqlalchemy import select, text

    db.upgradedb()
    with create_session() as session:
        if settings.engine.dialect.name == "sqlite":
            # Readers then do not wait for a writer. SQLite stores the mode in the file.
            session.execute(text("PRAGMA journal_mode=WAL"))
        for conn_id, connection in connections.items():
            fields = dict(connection)
            known = session.scalar(select(Connection).where(Connection.conn_id == conn_id))
            if known is not None and known.description != GENERATED:
                log.info("connection %s was edited by a user and is not changed", conn_id)
                continue
            if known is not None:
                session.delete(known)
                session.flush()
            extra = fields.pop("extra", None)
            session.add(
                Connection(
                    conn_id=conn_id,
                    description=GENERATED,
                    extra=json.dumps(extra) if extra is not None else None,
                    **fields,
                )
            )
        if session.scalar(select(Pool).where(Pool.pool == SPARK_POOL)) is None:
            session.add(
                Pool(
                    pool=SPARK_POOL,
                    slots=SPARK_SLOTS,
                    description="Spark applications that run at the same time.",
                    include_deferred=False,
                )
            )
