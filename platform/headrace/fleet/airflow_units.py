"""Airflow's units: its database, api-server, scheduler, dag-processor, triggerer, in its own environment.

Owns their configurations, with the connections to the site, and Airflow's address and login. Does not import
Airflow, which is installed in another environment; `python -m headrace.airflow.run` starts each component.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from headrace.agent.airflow_environment import (
    HEARTBEATS,
    airflow_python,
    dags_folder,
    is_half_installed,
)
from headrace.agent.configuration import AirflowConfiguration, Configuration, PostgresqlConfiguration
from headrace.fleet.airflow_client import AirflowClient
from headrace.fleet.airflow_database import EXTERNAL, airflow_database, check_database, data_dir, unit_name
from headrace.site.errors import SiteError
from headrace.site.site import POSTGRESQL, Site

USER: Final = "admin"


def airflow_home(site: Site) -> Path:
    return site.home / "airflow"


def airflow_url(site: Site) -> str:
    return f"http://{site.airflow_address}"


def airflow_password(site: Site) -> str | None:
    """Returns the password of user `admin`; None until `airflow.home` writes it at first start.

    Raises `SiteError` if the file cannot be read.
    """
    path = airflow_home(site) / "passwords.json"
    try:
        passwords = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        passwords = None
    found = passwords.get(USER) if isinstance(passwords, dict) else None
    if not isinstance(found, str):
        raise SiteError(
            f"{path} does not hold Airflow's password: restore it, or remove it and restart the unit "
            f"{site.warehouse}-airflow-api-server, which then makes a new one"
        )
    return found


def airflow_of(site: Site) -> AirflowClient:
    """Returns a client of the site's own Airflow. Raises `SiteError` if that has never been started."""
    password = airflow_password(site)
    if password is None:
        raise SiteError(f"Airflow has never been started in {site.home}; start the site with `headrace up`")
    return AirflowClient(airflow_url(site), user=USER, password=password)


def check_installed(site: Site) -> None:
    """Raises `SiteError` if the site has Airflow among its units, and it or its database is not installed."""
    python = airflow_python()
    way_out = "Run `make airflow`, or start the site without it: `headrace up --without airflow`"
    if site.airflow and not python.exists():
        raise SiteError(f"Airflow is not installed: there is no {python}. {way_out}")
    if site.airflow and is_half_installed():
        raise SiteError(f"Airflow is not installed: {python.parents[1]} is half made. {way_out}")
    check_database(site)


def airflow_connections(site: Site) -> dict[str, dict[str, object]]:
    """The connections of the site's DAGs, each in Airflow's JSON form."""
    return {
        "headrace_default": {
            "conn_type": "headrace",
            "extra": {
                "bootstrap": site.analysis.bootstrap,
                # Subjects are registered in the datacenters where services publish.
                "registry_url": ",".join(
                    f"{dc.name}={dc.registry_url}" for dc in (*site.sources, site.analysis)
                ),
                "zookeeper": str(site.analysis.zookeeper),
                "hdfs_url": site.hdfs_url,
                "webhdfs_url": site.webhdfs_url,
                "audit_store": site.audit_store_url,
                "python": sys.executable,
            },
        },
        "spark_default": {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}},
    }


def airflow_configurations(site: Site) -> dict[str, Configuration]:
    """The configurations of the units by name; the other components require the api-server, which requires
    the database if that is a unit, too.
    """
    database = airflow_database(site).kind
    postgresql = unit_name(site) if database == POSTGRESQL else None
    # An absolute path: the agent may run with other environment variables.
    python = airflow_python().absolute()

    def configuration(**component: Any) -> AirflowConfiguration:
        return AirflowConfiguration(
            datacenter=site.warehouse,
            listen=site.airflow_address,
            home=airflow_home(site),
            dags=dags_folder().absolute(),
            python=python,
            database_url=site.airflow_database if database == EXTERNAL else None,
            postgresql=postgresql,
            **component,
        )

    api = f"{site.warehouse}-airflow-api-server"
    found: dict[str, Configuration] = {}
    if postgresql is not None:
        found[postgresql] = PostgresqlConfiguration(
            datacenter=site.warehouse, data_dir=data_dir(site), python=python
        )
    return {
        **found,
        api: configuration(
            component="api-server", connections=airflow_connections(site), requires=tuple(found)
        ),
        **{
            f"{site.warehouse}-airflow-{component}": configuration(component=component, requires=(api,))
            for component in HEARTBEATS
        },
    }
