"""Airflow's units: api-server, scheduler, dag-processor and triggerer, in Airflow's own environment.

Owns their configurations, their probe and what they are told about the site. Imports nothing of Airflow,
which is installed elsewhere; everything before Airflow's own start is `python -m headrace.airflow.run`'s.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx

from headrace.fleet.agent.configuration import Airflow, Configuration
from headrace.fleet.errors import FleetError
from headrace.fleet.probes import get
from headrace.fleet.site import Site

PYTHON_VARIABLE: Final = "HEADRACE_AIRFLOW_PYTHON"
DAGS_VARIABLE: Final = "HEADRACE_DAGS"
USER: Final = "admin"
# Every component says that it lives at least every 5 s.
HEARTBEAT_AGE_MAX: Final = timedelta(seconds=20)

# Component → the name under which Airflow tells of its heartbeat.
HEARTBEATS: Final = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}


@dataclass(frozen=True)
class AirflowProbe:
    """Asks the api-server for a component's last heartbeat; `component` is the name that Airflow gives it."""

    url: str
    component: str

    def problem(self) -> str | None:
        url = f"{self.url}/api/v2/monitor/health"
        try:
            answer = get(url)
            said = answer.json()[self.component]
        except httpx.HTTPError as error:
            return f"{url}: {error}"
        except (ValueError, KeyError):
            return f"{url} answers {answer.status_code}, without Airflow's {self.component}"
        heartbeat = said.get(f"latest_{self.component}_heartbeat")
        if said.get("status") != "healthy" or heartbeat is None:
            return f"Airflow's {self.component} is not healthy: it says {said}"
        if datetime.now(UTC) - datetime.fromisoformat(heartbeat) > HEARTBEAT_AGE_MAX:
            return f"Airflow's {self.component} was last heard of at {heartbeat}"
        return None


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


def airflow_python() -> Path:
    """The interpreter of Airflow's environment: of `$HEADRACE_AIRFLOW_PYTHON`, else beside ours."""
    named = os.environ.get(PYTHON_VARIABLE)
    return Path(named) if named else Path(sys.prefix).parent / ".venv-airflow" / "bin" / "python"


def check_installed(site: Site) -> None:
    """Raises `FleetError` when the site wants Airflow and there is none."""
    if site.airflow and not airflow_python().exists():
        raise FleetError(
            f"Airflow's environment is missing: there is no {airflow_python()}. Run `make airflow`, "
            "or leave Airflow out: `headrace up --without airflow`"
        )


def dags_folder() -> Path:
    """The folder of DAG files: `$HEADRACE_DAGS`, else the checkout's own."""
    named = os.environ.get(DAGS_VARIABLE)
    return Path(named) if named else Path(__file__).parents[3] / "dags"


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


def airflow_version() -> str | None:
    """The version of Airflow in its environment, None when there is none."""
    for path in airflow_python().parents[1].glob("lib/python*/site-packages/apache_airflow-*.dist-info"):
        return path.name.removeprefix("apache_airflow-").removesuffix(".dist-info")
    return None


def airflow_configurations(site: Site) -> dict[str, Configuration]:
    """The four units', by name: the others wait for the api-server."""

    def of_all(**more: Any) -> Airflow:
        return Airflow(
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
