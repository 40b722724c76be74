"""Airflow's own environment on a host: its interpreter, its version, the DAGs, and a probe of its components.

Imports nothing of Airflow, which is installed elsewhere. `python -m headrace.airflow.run` prepares its home
and starts it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

from headrace.agent.probes import get

PYTHON_VARIABLE: Final = "HEADRACE_AIRFLOW_PYTHON"
DAGS_VARIABLE: Final = "HEADRACE_DAGS"
AIRFLOW_PROBE_TIMEOUT_S: Final = 10.0
"""What Airflow's own container files give its health pages, which query its database."""
# Every component sends a heartbeat at least every 5 s.
HEARTBEAT_AGE_MAX: Final = timedelta(seconds=20)

# Otherwise Airflow's process titles overwrite the environment by which the agent finds a unit's processes.
VARIABLES: Final = {"SPT_NOENV": "1"}
# Component → its name in Airflow's report of heartbeats.
HEARTBEATS: Final = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}


@dataclass(frozen=True)
class AirflowProbe:
    """Requests a component's last heartbeat from the api-server; `component` is its name there."""

    url: str
    component: str

    def check(self) -> str | None:
        url = f"{self.url}/api/v2/monitor/health"
        try:
            response = get(url, timeout_s=AIRFLOW_PROBE_TIMEOUT_S)
            health = response.json()[self.component]
            heartbeat = health.get(f"latest_{self.component}_heartbeat")
            if heartbeat is None:
                return f"Airflow's {self.component} has sent no heartbeat yet"
            if health.get("status") != "healthy":
                status = health.get("status") or "nothing"
                return f"Airflow reports {status} of its {self.component}; its last heartbeat: {heartbeat}"
            if datetime.now(UTC) - datetime.fromisoformat(heartbeat) > HEARTBEAT_AGE_MAX:
                return f"Airflow's {self.component} had its last heartbeat at {heartbeat}"
        except httpx.HTTPError as error:
            return f"{url}: {error}"
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{url} answered {response.status_code}, without Airflow's {self.component}"
        return None


def airflow_python() -> Path:
    """The interpreter of Airflow's environment: of `$HEADRACE_AIRFLOW_PYTHON`, else beside ours."""
    named = os.environ.get(PYTHON_VARIABLE)
    return Path(named) if named else Path(sys.prefix).parent / ".venv-airflow" / "bin" / "python"


def is_half_installed() -> bool:
    """Whether `make airflow` was interrupted: what it installs last, headrace, is missing. Of an environment
    that `$HEADRACE_AIRFLOW_PYTHON` names nothing is known."""
    if os.environ.get(PYTHON_VARIABLE):
        return False
    return not any(airflow_python().parents[1].glob("lib/python*/site-packages/headrace-*.dist-info"))


def dags_folder() -> Path:
    """The folder of DAG files: `$HEADRACE_DAGS`, else the checkout's own."""
    named = os.environ.get(DAGS_VARIABLE)
    return Path(named) if named else Path(__file__).parents[3] / "dags"


def airflow_version() -> str | None:
    """The version of Airflow in its environment; None if it is not installed."""
    for path in airflow_python().parents[1].glob("lib/python*/site-packages/apache_airflow-*.dist-info"):
        return path.name.removeprefix("apache_airflow-").removesuffix(".dist-info")
    return None
