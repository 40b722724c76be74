"""Airflow for tests: a home that exists before Airflow is imported, a database, connections."""

import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

# For the fixtures of the main environment's tests, such as fix_audit_world.
sys.path.append(str(Path(__file__).parents[1]))
DAGS = Path(__file__).parents[2] / "dags"

if not list(importlib.metadata.distributions(name="apache-airflow-core")):
    # Collected by the project's own pytest, in the main environment: nothing here can be imported there.
    collect_ignore_glob = ["*.py"]
else:
    from headrace.airflow.home import AirflowSettings, write_home

    # Airflow reads its configuration at import, so its home must exist before any test module is imported.
    HOME = Path(tempfile.mkdtemp(prefix="headrace-airflow-"))
    os.environ["AIRFLOW_HOME"] = str(HOME)
    # The DAG folder: the DAGs of the repository, with short waits and without retries.
    shutil.copytree(DAGS, HOME / "dags")
    (HOME / "dags" / "topics.yaml").write_text("topics: {page-view: {owner: a, audit_wait: 2s, retries: 0}}")
    write_home(AirflowSettings(home=HOME, listen="127.108.9.1:8080", dags=HOME / "dags"))
    # The fixture `hdfs`. Imported, because only the top conftest may name plugins.
    from fix_hdfs import hdfs, java_jars  # noqa: F401


def pytest_unconfigure() -> None:
    if "HOME" in globals():
        shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    return HOME


@pytest.fixture(scope="session")
def airflow_database(airflow_home: Path) -> Iterator[Path]:
    """A migrated SQLite database without connections; yields its home."""
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
def set_connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Defines a connection, by id and fields, for the rest of the test."""

    def set_one(conn_id: str, fields: Mapping[str, object]) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return set_one


@pytest.fixture
def connection(set_connection: Callable[..., None], tmp_path: Path, main_python: Path) -> dict[str, str]:
    """Defines `headrace_default` and `spark_default`; returns the extra of the former."""
    extra = {
        "bootstrap": "127.108.9.2:9092",
        "registry_url": "http://127.108.9.3:8081",
        "hdfs_url": "hdfs://127.108.9.4:8020",
        "webhdfs_url": "http://127.108.9.4:9870",
        "audit_store": f"sqlite:///{tmp_path}/audit.db",
        "python": str(main_python),
    }
    set_connection("headrace_default", {"conn_type": "headrace", "extra": extra})
    spark = {"conn_type": "spark", "host": "local[1]", "extra": {"deploy-mode": "client"}}
    set_connection("spark_default", spark)
    return extra
