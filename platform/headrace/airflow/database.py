"""Airflow's metadata database before the components use it: schema, connections, pools.

Owns the only direct use of that database. It runs in the api-server's process, before it serves; tasks never
come here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

# A connection with this description is ours to change; a user who edits it in the UI drops the words, or not.
GENERATED: Final = "Written by headrace from the site's description; change the description to keep your own."
SPARK_POOL: Final = "spark"
# Each Spark application takes both cores of a small machine for itself.
SPARK_SLOTS: Final = 1


def prepare(*, connections: Mapping[str, Mapping[str, Any]]) -> None:
    """Brings schema, connections (id → Airflow's JSON form) and the pool `spark` up to date. Idempotent."""
    from airflow import settings
    from airflow.models.connection import Connection
    from airflow.models.pool import Pool
    from airflow.utils import db
    from airflow.utils.session import create_session
    from sqlalchemy import select, text

    db.upgradedb()
    with create_session() as session:
        if settings.engine.dialect.name == "sqlite":
            # Readers then never wait for a writer. The file remembers it.
            session.execute(text("PRAGMA journal_mode=WAL"))
        for conn_id, said in connections.items():
            fields = dict(said)
            known = session.scalar(select(Connection).where(Connection.conn_id == conn_id))
            if known is not None and known.description != GENERATED:
                log.info("connection %s was edited by a user and stays as it is", conn_id)
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
                    description="How many Spark applications run at once.",
                    include_deferred=False,
                )
            )
