"""A PostgreSQL server as its unit runs it, in a home of a test; and what this host lacks for one."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import create_engine, text

from fix_zookeeper import die_with_parent
from headrace.agent.airflow_environment import airflow_python
from headrace.agent.probes import PostgresqlProbe
from headrace.postgresql.installation import problem
from headrace.postgresql.place import SOCKET_NAME, database_url, socket_folder

WAIT_MAX_S: Final = 90.0
ENVIRONMENT: Final = airflow_python().parents[1]
UNIT: Final = "analysis-postgresql"

needs_postgresql = pytest.mark.skipif(
    not airflow_python().exists() or problem(ENVIRONMENT) is not None,
    reason=f"no PostgreSQL server can run here: {problem(ENVIRONMENT)}",
)


def ask(sockets: Path, statement: str) -> list[tuple[object, ...]]:
    """Runs one statement as Airflow would, over the URL of a server with this folder of sockets."""
    # The main environment has the other driver.
    engine = create_engine(database_url(sockets).replace("psycopg2", "psycopg"))
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        engine.dispose()


class Server:
    """One server, by the command of its unit, in a home that only the test's user can enter."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.cluster = self.data / "cluster"
        self.sockets = socket_folder(home, UNIT)
        self.log = home / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(airflow_python()), "-m", "headrace.postgresql"]
        command += ["--data-dir", str(self.data), "--socket-folder", str(self.sockets)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=die_with_parent, start_new_session=True
            )

    def wait_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + WAIT_MAX_S
        while (found := self.problem()) is not None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{found}\n{self.log.read_text()}"
            time.sleep(0.05)

    def problem(self) -> str | None:
        return PostgresqlProbe(self.sockets / SOCKET_NAME).check()

    def refusal(self) -> str:
        """Starts it, and returns what it says when it does not start."""
        self.start()
        assert self.process is not None
        assert self.process.wait(WAIT_MAX_S) == 1
        self.process = None
        return self.log.read_text().strip()

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(WAIT_MAX_S)
        self.process = None
        return code

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        return ask(self.sockets, statement)
