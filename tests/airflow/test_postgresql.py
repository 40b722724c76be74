"""Airflow over a real PostgreSQL (Debian's): the components as the site starts them, and a run."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from fix_zookeeper import die_with_parent
from headrace.fleet.airflow_client import AirflowClient

HOST = "127.108.9.21"
START_WAIT_S = 120.0
RUN_WAIT_S = 240.0
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
A_DAG = """
from datetime import timedelta

from airflow.sdk import DAG, task

with DAG("two-and-two", schedule=None, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)}):

    @task
    def two():
        return 2

    @task
    def four(value):
        assert value + value == 4

    four(two())
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not BINARIES, reason="PostgreSQL is not installed (Debian: postgresql)"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The URL of an empty database of a server of this test's own."""
    # PostgreSQL refuses to run as root; Debian's package brings a user for it.
    user = "postgres" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="headrace-pg-") as name:
        folder = Path(name)
        if user:
            folder.chmod(0o755)
            (folder / "pg").mkdir()
            subprocess.run(["chown", user, str(folder / "pg")], check=True)
        data, port = folder / "pg" / "data", free_port()
        binaries = BINARIES[-1]
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "airflow", "-A", "trust", "--no-sync"],
            user=user,
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
        )
        options = f"-D {data} -h {HOST} -p {port} -k {data} -F"
        command = [str(binaries / "postgres"), *options.split()]
        with subprocess.Popen(
            command, user=user, cwd="/", stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
        ) as server:
            url = f"postgresql+psycopg2://airflow@{HOST}:{port}"
            wait_for_server(f"{url}/postgres")
            engine = create_engine(f"{url}/postgres", isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text("CREATE DATABASE airflow"))
            engine.dispose()
            yield f"{url}/airflow"
            # Fast shutdown: disconnects remaining clients.
            server.send_signal(signal.SIGINT)


def wait_for_server(url: str) -> None:
    import time

    engine = create_engine(url)
    for _ in range(300):
        try:
            engine.connect().close()
            return
        except Exception:
            time.sleep(0.1)
    raise AssertionError(f"PostgreSQL at {url} does not answer")


def test_airflow_runs_a_dag_over_postgresql(postgresql: str, tmp_path: Path) -> None:
    import time

    import httpx

    home, dags = tmp_path / "airflow", tmp_path / "dags"
    dags.mkdir()
    (dags / "two_and_two.py").write_text(A_DAG)
    connections = tmp_path / "connections.json"
    connections.write_text(json.dumps({"headrace_default": {"conn_type": "headrace", "extra": {"a": 1}}}))
    listen = f"{HOST}:{free_port()}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}

    with ExitStack() as running, (tmp_path / "log").open("w") as log:

        def start(component: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "headrace.airflow.run", component]
            command += ["--home", str(home), "--listen", listen, "--dags", str(dags)]
            command += ["--database-url", postgresql, "--connections", str(connections)]
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
            running.callback(process.wait, 60)
            running.callback(os.killpg, process.pid, signal.SIGKILL)
            return process

        api = start("api-server")
        deadline = time.monotonic() + START_WAIT_S
        while True:
            try:
                if httpx.get(
                    f"http://{listen}/api/v2/monitor/health", trust_env=False, verify=False
                ).is_success:
                    break
            except httpx.HTTPError:
                pass
            output = (tmp_path / "log").read_text()[-3000:]
            assert api.poll() is None and time.monotonic() < deadline, (
                f"the api-server does not start:\n{output}"
            )
            time.sleep(0.2)
        start("scheduler")
        start("dag-processor")
        password = json.loads((home / "passwords.json").read_text())["admin"]
        with AirflowClient(f"http://{listen}", user="admin", password=password) as client:
            run = client.wait(client.trigger("two-and-two"), timeout_s=RUN_WAIT_S)
            assert {task.task_id: task.state for task in client.tasks(run)} == {
                "two": "success",
                "four": "success",
            }

    engine = create_engine(postgresql)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT dag_id, state FROM dag_run")).all() == [
            ("two-and-two", "success")
        ]
        assert connection.execute(text("SELECT conn_id, conn_type FROM connection")).all() == [
            ("headrace_default", "headrace")
        ]
        assert connection.execute(text("SELECT slots FROM slot_pool WHERE pool = 'spark'")).scalar() == 1
    engine.dispose()
    assert not (home / "airflow.db").exists()
