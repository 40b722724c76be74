"""Airflow for tests: a home that exists before Airflow is imported, and a database when one is asked for."""

import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# The builders of an audited world are the audit tests'.
sys.path.append(str(Path(__file__).parents[1]))
DAGS = Path(__file__).parents[2] / "dags"

if not list(importlib.metadata.distributions(name="apache-airflow-core")):
    # Collected by the project's own pytest, in the main environment: nothing here can be imported there.
    collect_ignore_glob = ["*.py"]
else:
    from headrace.airflow.home import Settings, write_home

    # The configuration is read once, at import, so that the home has to be there before any test module is.
    HOME = Path(tempfile.mkdtemp(prefix="headrace-airflow-"))
    os.environ["AIRFLOW_HOME"] = str(HOME)
    # Airflow's own folder of DAGs: those that are shipped, with short waits and without retries.
    shutil.copytree(DAGS, HOME / "dags")
    (HOME / "dags" / "topics.yaml").write_text("topics: {page-view: {owner: a, audit_wait: 2s, retries: 0}}")
    write_home(Settings(home=HOME, listen="127.108.9.1:8080", dags=HOME / "dags"))
    # A real HDFS: `hdfs`. Imported, since only the top conftest may name plugins.
    from fix_hdfs import hdfs, java_jars  # noqa: F401


def pytest_unconfigure() -> None:
    if "HOME" in globals():
        shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    return HOME


@pytest.fixture(scope="session")
def airflow_database(airflow_home: Path) -> Iterator[Path]:
    """A migrated SQLite database with no connections; gives its home."""
    from headrace.airflow.database import prepare

    prepare(connections={})
    yield airflow_home


@pytest.fixture
def main_python() -> Path:
    """The main environment's interpreter, which has PySpark."""
    python = Path(sys.prefix).parent / ".venv" / "bin" / "python"
    assert python.exists(), f"{python} is missing; run make"
    return python


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, main_python: Path) -> dict[str, str]:
    """The extra of `headrace_default` and `spark_default` as the environment has them for this test."""
    extra = {
        "bootstrap": "127.108.9.2:9092",
        "registry_url": "http://127.108.9.3:8081",
        "hdfs_url": "hdfs://127.108.9.4:8020",
        "webhdfs_url": "http://127.108.9.4:9870",
        "audit_store": f"sqlite:///{tmp_path}/audit.db",
        "python": str(main_python),
    }
    set_connection(monkeypatch, "headrace_default", {"conn_type": "headrace", "extra": extra})
    spark = {"conn_type": "spark", "host": "local[1]", "extra": {"deploy-mode": "client"}}
    set_connection(monkeypatch, "spark_default", spark)
    return extra


def set_connection(monkeypatch: pytest.MonkeyPatch, conn_id: str, fields: dict[str, object]) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
