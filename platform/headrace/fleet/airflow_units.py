"""Airflow's units: api-server, scheduler, dag-processor and triggerer, in Airflow's own environment.

Owns their configurations, their probe and what they are told about the site. Imports nothing of Airflow,
which is installed elsewhere; everything before Airflow's own start is `python -m headrace.airflow.run`'s.
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
    """The password of user `admin`, made at Airflow's first start; None before."""
    try:
        passwords: dict[str, str] = json.loads((airflow_home(site) / "passwords.json").read_text())
    except FileNotFoundError:
        return None
    return passwords[USER]


def check_installed(site: Site) -> None:
    """Raises `SiteError` when the site wants Airflow and there is none."""
    if site.airflow and not airflow_python().exists():
        raise SiteError(
            f"Airflow's environment is missing: there is no {airflow_python()}. Run `make airflow`, "
            "or leave Airflow out: `headrace up --without airflow`"
        )


def airflow_connections(site: Site) -> dict[str, dict[str, object]]:
    """The connections of the site's DAGs, as Airflow's JSON form of a connection."""
    return {
        "headrace_default": {
            "conn_type": "headrace",
            "extra": {
                "bootstrap": site.analysis.bootstrap,
                # The subjects are registered where services publish.
                "registry_url": ",".join(dc.registry_url for dc in (*site.sources, site.analysis)),
                "hdfs_url": site.hdfs_url,
                "webhdfs_url": site.webhdfs_url,
                "audit_store": site.audit_store_url,
                "python": sys.executable,
            },
        },
        "spark_default": {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}},
    }


def airflow_configurations(site: Site) -> dict[str, Configuration]:
    """The four units', by name: the others wait for the api-server."""

    def of_all(**more: Any) -> AirflowConfiguration:
        return AirflowConfiguration(
            datacenter=site.warehouse,
            listen=site.airflow_address,
            home=airflow_home(site),
            # Said here, since the agent may have been started with other variables.
            dags=dags_folder().absolute(),
            python=airflow_python().absolute(),
            database_url=site.airflow_database,
            **more,
        )

    api = f"{site.warehouse}-airflow-api-server"
    return {
        api: of_all(component="api-server", connections=airflow_connections(site)),
        **{
            f"{site.warehouse}-airflow-{component}": of_all(component=component, requires=(api,))
            for component in HEARTBEATS
        },
    }
