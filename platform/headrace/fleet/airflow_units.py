"""Airflow's units: api-server, scheduler, dag-processor and triggerer, in Airflow's own environment.

Owns their configurations, with the connections to the site, and Airflow's address and login. Does not import
Airflow, which is installed in another environment; `python -m headrace.airflow.run` starts each component.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from headrace.agent.airflow_environment import HEARTBEATS, airflow_python, dags_folder
from headrace.agent.configuration import AirflowConfiguration, Configuration
from headrace.site.errors import SiteError
from headrace.site.site import Site

USER: Final = "admin"


def airflow_home(site: Site) -> Path:
    return site.home / "airflow"


def airflow_url(site: Site) -> str:
    return f"http://{site.airflow_address}"


def airflow_password(site: Site) -> str | None:
    """Returns the password of user `admin`; None until `airflow.home` writes it at first start."""
    try:
        passwords: dict[str, str] = json.loads((airflow_home(site) / "passwords.json").read_text())
    except FileNotFoundError:
        return None
    return passwords[USER]


def check_installed(site: Site) -> None:
    """Raises `SiteError` if the site has Airflow among its units, and Airflow is not installed."""
    if site.airflow and not airflow_python().exists():
        raise SiteError(
            f"Airflow is not installed: there is no {airflow_python()}. Run `make airflow`, "
            "or start the site without it: `headrace up --without airflow`"
        )


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
    """The configurations of the four units by name; all others require the api-server."""

    def configuration(**component: Any) -> AirflowConfiguration:
        return AirflowConfiguration(
            datacenter=site.warehouse,
            listen=site.airflow_address,
            home=airflow_home(site),
            # Absolute paths: the agent may run with other environment variables.
            dags=dags_folder().absolute(),
            python=airflow_python().absolute(),
            database_url=site.airflow_database,
            **component,
        )

    api = f"{site.warehouse}-airflow-api-server"
    return {
        api: configuration(component="api-server", connections=airflow_connections(site)),
        **{
            f"{site.warehouse}-airflow-{component}": configuration(component=component, requires=(api,))
            for component in HEARTBEATS
        },
    }
