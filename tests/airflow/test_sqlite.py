"""Airflow's own sessions over an SQLite file that another process writes at the same time."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest


@pytest.mark.usefixtures("airflow_database")
def test_a_savepoint_waits_for_other_writers_instead_of_failing(airflow_home: Path) -> None:
    """What `airflow backfill create` does for each run, beside a scheduler."""
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    other = sqlite3.connect(airflow_home / "airflow.db", timeout=0, isolation_level=None)
    with create_session() as session, session.begin_nested():
        session.scalars(select(Variable)).all()
        # Unless this session is the writer by now, the other one succeeds, and ours is refused.
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            other.execute("INSERT INTO slot_pool (pool, slots, include_deferred) VALUES ('other', 1, 0)")
        session.add(Variable(key="of-a-savepoint", val="1"))
    other.execute("INSERT INTO slot_pool (pool, slots, include_deferred) VALUES ('other', 1, 0)")
    found = other.execute("SELECT count(*) FROM variable WHERE key = 'of-a-savepoint'").fetchone()
    other.execute("DELETE FROM slot_pool WHERE pool = 'other'")
    other.execute("DELETE FROM variable")
    other.close()
    assert found == (1,)


@pytest.mark.usefixtures("airflow_database")
def test_both_drivers_wait_for_half_a_minute() -> None:
    from airflow import settings

    assert settings._get_connect_args("sync")["timeout"] == 30
    assert settings._get_connect_args("async") == {"timeout": 30}
