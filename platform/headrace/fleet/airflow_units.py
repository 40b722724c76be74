"""Airflow's units: api-server, scheduler, dag-processor and triggerer, in Airflow's own environment.

Owns their commands, their probes and what they are told about the site. Imports nothing of Airflow, which is
installed elsewhere; everything before Airflow's own start is `python -m headrace.airflow.run`'s.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

from .errors import FleetError
from .probes import PROBE_TIMEOUT_S, HttpProbe
from .site import Site
from .units import Unit

PYTHON_VARIABLE: Final = "HEADRACE_AIRFLOW_PYTHON"
DAGS_VARIABLE: Final = "HEADRACE_DAGS"
USER: Final = "admin"
# Every component says that it lives at least every 5 s.
HEARTBEAT_AGE_MAX: Final = timedelta(seconds=20)

_COMPONENTS: Final = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}


@dataclass(frozen=True)
class AirflowProbe:
    """Asks the api-server for a component's last heartbeat; `component` is the name that Airflow gives it."""

    url: str
    component: str

    def problem(self) -> str | None:
        url = f"{self.url}/api/v2/monitor/health"
        try:
            answer = httpx.get(url, timeout=PROBE_TIMEOUT_S, trust_env=False)
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


def airflow_units(site: Site) -> tuple[Unit, ...]:
    """The four units."""
    api = _unit(site, "api-server")
    return (api, *(_unit(site, component, requires=(api.name,)) for component in _COMPONENTS))


def _unit(site: Site, component: str, requires: tuple[str, ...] = ()) -> Unit:
    name = f"{site.warehouse}-airflow-{component}"
    home, url = airflow_home(site), airflow_url(site)
    connections = home / "connections.json"
    is_api = component == "api-server"
    return Unit(
        name=name,
        datacenter=site.warehouse,
        kind="airflow",
        command=(
            str(airflow_python()),
            *("-m", "headrace.airflow.run", component),
            *("--home", str(home)),
            *("--listen", str(site.airflow_address)),
            *("--dags", str(dags_folder())),
            *(("--connections", str(connections)) if is_api else ()),
            *(("--database-url", site.airflow_database) if site.airflow_database else ()),
        ),
        listens=(site.airflow_address,) if is_api else (),
        probe=(
            HttpProbe(f"{url}/api/v2/monitor/health") if is_api else AirflowProbe(url, _COMPONENTS[component])
        ),
        log_path=site.home / "logs" / f"{name}.log",
        requires=requires,
        files={connections: json.dumps(airflow_connections(site), indent=1)} if is_api else {},
        # The first start makes the database.
        start_timeout_s=120.0,
        # A running task is told to stop, and to stop its Spark application.
        stop_timeout_s=20,
    )
