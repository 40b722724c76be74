"""How a task becomes a process of the main environment: a Spark application, or a plain Python program.

Owns the submitter's environment, the life of what is started (it dies with its task) and its words when it
fails. Spark is submitted through Airflow's own `SparkSubmitHook`. Knows nothing of what the programs do.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException

from headrace.airflow.installation import Installation
from headrace.warehouse.session import spark_conf, worker_environment

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
# What the programs of headrace begin their last words with.
FAILURE_MARK: Final = "headrace warehouse: "
LINES_KEPT: Final = 20


class Program(Protocol):
    """Something started for a task."""

    def run(self, program: Path) -> None:
        """Returns when it has succeeded. Raises `AirflowException` with its reason when it has not."""

    def kill(self) -> None:
        """Ends it, wherever it runs."""


class SparkApplication:
    """A Spark application.

    `master` comes from the Spark connection, whose deploy mode, queue and so on mean what they mean to
    `SparkSubmitOperator`. `conf` goes before the configuration that the warehouse wants.
    """

    def __init__(
        self,
        installation: Installation,
        *,
        spark_conn_id: str,
        name: str,
        conf: Mapping[str, str],
        arguments: Sequence[str],
    ) -> None:
        master = SparkSubmitHook.get_connection(spark_conn_id).host or ""
        local = master.startswith("local")
        python = str(installation.python)
        workers = worker_environment(python) if local else {"PYSPARK_PYTHON": python}
        self._environment = _environment(installation) | workers
        self._hook = SparkSubmitHook(
            conf={**spark_conf(local=local), **conf},
            conn_id=spark_conn_id,
            name=name,
            application_args=list(arguments),
            # find-spark-home asks this interpreter where PySpark is; on a cluster it runs the driver.
            env_vars={**workers, "PYSPARK_DRIVER_PYTHON": workers["PYSPARK_PYTHON"]},
            spark_binary=str(installation.spark_submit),
        )

    def run(self, program: Path) -> None:
        try:
            self._hook.submit(
                str(program), env=self._environment, start_new_session=True, preexec_fn=die_with_parent
            )
        except AirflowException as error:
            # The program says in one line what was wrong; what Spark printed around it is in the log already.
            raise AirflowException(reason(self._hook._last_submit_log_lines) or str(error)) from None

    def kill(self) -> None:
        """Ends the application: its session here, its driver on a cluster."""
        if self._hook._submit_sp is not None:
            _kill_session(self._hook._submit_sp)
        self._hook.on_kill()


class PythonProgram:
    """A program that needs no Spark: the main environment's Python runs it."""

    def __init__(self, installation: Installation, *, arguments: Sequence[str]) -> None:
        self._python = installation.python
        self._environment = _environment(installation)
        self._arguments = list(arguments)
        self._process: subprocess.Popen[str] | None = None

    def run(self, program: Path) -> None:
        command = [str(self._python), str(program), *self._arguments]
        log.info("%s", " ".join(command))
        lines: deque[str] = deque(maxlen=LINES_KEPT)
        with subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        ) as process:
            self._process = process
            assert process.stdout is not None
            for line in process.stdout:
                log.info("%s", line.rstrip())
                lines.append(line.rstrip())
        if process.returncode:
            last = lines[-1] if lines else "it said nothing"
            raise AirflowException(
                reason(lines) or f"{program.name} ended with exit code {process.returncode}: {last}"
            )

    def kill(self) -> None:
        if self._process is not None:
            _kill_session(self._process)


def _environment(installation: Installation) -> dict[str, str]:
    python = str(installation.python)
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    # Airflow's environment must not lend its modules to the program.
    environment.pop("PYTHONPATH", None)
    return environment


def _kill_session(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def reason(lines: Iterable[str]) -> str | None:
    """The last line that the program itself wrote about its failure, if there is one."""
    found = None
    for line in lines:
        _, mark, said = line.partition(FAILURE_MARK)
        found = said.strip() if mark else found
    return found


def die_with_parent() -> None:
    """Runs in a child before its program: the kernel is to kill it when its parent dies (prctl(2), Linux).

    A task that is killed leaves no driver behind, which would race with the one of its retry.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def conf_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Spark's configuration as strings, the way spark-submit takes it (true, not True)."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()
    }
