"""Which database a site's Airflow gets, and that no history is left behind without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.fleet import airflow_database as databases
from headrace.fleet.airflow_database import EXTERNAL, AirflowDatabase, airflow_database, check_database
from headrace.fleet.terraform.folder import terraform_variables_of
from headrace.fleet.units import units_of
from headrace.site.errors import SiteError
from headrace.site.site import POSTGRESQL, SQLITE, Site


def site_of(home: Path, database: str | None = None) -> Site:
    return Site.one_machine(home).model_copy(update={"airflow_database": database})


def with_sqlite(home: Path) -> None:
    (home / "airflow").mkdir(parents=True)
    (home / "airflow" / "airflow.db").touch()


def with_postgresql(home: Path) -> None:
    (home / "data" / "analysis" / "postgresql" / "cluster").mkdir(parents=True)


def installed(monkeypatch: pytest.MonkeyPatch, problem: str | None) -> None:
    monkeypatch.setattr(databases, "problem", lambda _: problem)


def test_a_new_site_gets_postgresql_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, None)
    assert airflow_database(site_of(tmp_path)) == AirflowDatabase(POSTGRESQL)
    installed(monkeypatch, "PostgreSQL is not installed")
    found = airflow_database(site_of(tmp_path))
    assert found.kind == SQLITE
    assert "is an SQLite file: PostgreSQL is not installed; install it" in found.note
    check_database(site_of(tmp_path))


def test_an_existing_site_keeps_its_database_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, None)
    with_sqlite(tmp_path)
    kept = airflow_database(site_of(tmp_path))
    assert kept.kind == SQLITE
    assert f"keeps its SQLite database {tmp_path}/airflow/airflow.db" in kept.note
    assert "postgresql" not in {unit.kind for unit in units_of(site_of(tmp_path))}
    moved = airflow_database(site_of(tmp_path, POSTGRESQL))
    assert moved.kind == POSTGRESQL
    assert f"begins a new history in PostgreSQL; that of before stays in {tmp_path}" in moved.note
    with_postgresql(tmp_path)
    for chosen in (None, POSTGRESQL):
        assert airflow_database(site_of(tmp_path, chosen)) == AirflowDatabase(POSTGRESQL)
    assert airflow_database(site_of(tmp_path, SQLITE)) == AirflowDatabase(SQLITE)


def test_data_of_postgresql_is_not_left_for_an_empty_sqlite_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, "PostgreSQL is not installed")
    with_postgresql(tmp_path)
    assert airflow_database(site_of(tmp_path)).kind == POSTGRESQL
    with pytest.raises(
        SiteError, match=r"is PostgreSQL \(its data in .*/postgresql stays\), and PostgreSQL is not"
    ):
        check_database(site_of(tmp_path))
    check_database(site_of(tmp_path).model_copy(update={"airflow": False}))
    chosen = airflow_database(site_of(tmp_path, SQLITE))
    assert "begins a new history in an SQLite file; that of before stays in" in chosen.note
    check_database(site_of(tmp_path, SQLITE))


def test_a_server_of_the_operators_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    url = "postgresql+psycopg2://airflow:secret@db.example/airflow"
    assert airflow_database(site_of(tmp_path, url)) == AirflowDatabase(EXTERNAL)
    assert airflow_database(site_of(tmp_path, "sqlite:////srv/a.db")) == AirflowDatabase(EXTERNAL)
    variables = terraform_variables_of(site_of(tmp_path, url))["airflow"]
    assert variables["database_url"] == url
    for database in (POSTGRESQL, SQLITE):
        variables = terraform_variables_of(site_of(tmp_path, database))["airflow"]
        assert (variables["database"], variables["database_url"]) == (database, None)
