"""Airflow over an SQLite file that several processes write: how its sessions take the lock.

Owns the session maker that `airflow.cfg` names where the database is SQLite.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, sessionmaker


def session_maker(engine: Engine) -> sessionmaker[Session]:
    """Airflow's own session maker, whose savepoints begin as writers.

    A backfill makes each run behind a savepoint. SQLite begins that as a reader. If another process writes
    before the reader does, the reader is refused at once, *database is locked*, however long the timeout. A
    writer from the start waits for the others.
    """
    event.listen(engine, "savepoint", _begin_as_writer)
    return sessionmaker(engine, autoflush=False, expire_on_commit=False)


def _begin_as_writer(connection: Connection, name: Any) -> None:
    sqlite: Any = connection.connection.dbapi_connection
    if not sqlite.in_transaction:
        sqlite.execute("BEGIN IMMEDIATE")
