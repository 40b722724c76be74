"""Which database Airflow has on a site: PostgreSQL as a unit, an SQLite file, or a server of the operator's.

Owns the choice where `site.yaml` makes none, and its reason in words. Looks at the home and at what is
installed; changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from headrace.agent.airflow_environment import airflow_python
from headrace.postgresql.cluster import CLUSTER
from headrace.postgresql.installation import WAY_OUT, problem
from headrace.site.errors import SiteError
from headrace.site.site import POSTGRESQL, SQLITE, Site

EXTERNAL: Final = "external"


class AirflowDatabase(NamedTuple):
    """The choice: `kind` is POSTGRESQL, SQLITE or EXTERNAL; `note` says why it is not the usual one."""

    kind: str
    note: str = ""


def airflow_database(site: Site) -> AirflowDatabase:
    """The database of the site's Airflow.

    An existing site keeps the database that it has, and with it its history, until its site file says
    otherwise. A new one gets PostgreSQL if this host has it.
    """
    chosen = site.airflow_database
    if chosen is not None and chosen not in (POSTGRESQL, SQLITE):
        return AirflowDatabase(EXTERNAL)
    other = _other_history(site, chosen)
    if chosen is not None:
        return AirflowDatabase(chosen, other)
    if _has_postgresql(site):
        return AirflowDatabase(POSTGRESQL)
    if sqlite_file(site).exists():
        return AirflowDatabase(
            SQLITE,
            f"Airflow keeps its SQLite database {sqlite_file(site)}, with its history; "
            "`airflow_database: postgresql` in site.yaml begins a new one, which several slots of a backfill "
            "do not lock",
        )
    if why_not := problem(environment()):
        return AirflowDatabase(SQLITE, f"Airflow's database is an SQLite file: {why_not}; {WAY_OUT}")
    return AirflowDatabase(POSTGRESQL)


def check_database(site: Site) -> None:
    """Raises `SiteError` if the site's Airflow needs a PostgreSQL that this host does not have."""
    if site.airflow and airflow_database(site).kind == POSTGRESQL and (why_not := problem(environment())):
        kept = f" (its data in {data_dir(site)} stays)" if _has_postgresql(site) else ""
        raise SiteError(f"Airflow's database is PostgreSQL{kept}, and {why_not}: {WAY_OUT}")


def unit_name(site: Site) -> str:
    return f"{site.warehouse}-postgresql"


def data_dir(site: Site) -> Path:
    return site.home / "data" / site.warehouse / "postgresql"


def sqlite_file(site: Site) -> Path:
    return site.home / "airflow" / "airflow.db"


def environment() -> Path:
    """The root of Airflow's virtual environment."""
    return airflow_python().parents[1]


def _has_postgresql(site: Site) -> bool:
    return (data_dir(site) / CLUSTER).exists()


def _other_history(site: Site, chosen: str | None) -> str:
    """Where runs of before are, if the site file chooses another database than they are in."""
    if chosen == POSTGRESQL and not _has_postgresql(site) and sqlite_file(site).exists():
        return f"Airflow begins a new history in PostgreSQL; that of before stays in {sqlite_file(site)}"
    if chosen == SQLITE and not sqlite_file(site).exists() and _has_postgresql(site):
        return f"Airflow begins a new history in an SQLite file; that of before stays in {data_dir(site)}"
    return ""
