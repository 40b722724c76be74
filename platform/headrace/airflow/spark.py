"""Programs that tasks run in the main environment: Spark applications, and plain Python programs.

Owns the programs' environment variables, that they end with their task, and the error message when they fail.
Spark applications are submitted through Airflow's own `SparkSubmitHook`.
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
# headrace's programs print it before the error that made them fail.
FAILURE_MARK: Final = "headrace warehouse: "
LINES_KEPT: Final = 20


class Program(Protocol):
    """A program that a task runs."""

    def run(self, program: Path) -> None:
        """Runs the program to its end. Raises `AirflowException` with its error if it fails."""

    def kill(self) -> None:
        """Kills the program, wherever it runs."""


class SparkApplication:
    """A Spark application.

    The Spark connection gives master, deploy mode, queue and so on, as for `SparkSubmitOperator`. `conf`
    overrides the warehouse's own configuration of Spark.
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
            # find-spark-home locates PySpark with this interpreter; on a cluster it also runs the driver.
            env_vars={**workers, "PYSPARK_DRIVER_PYTHON": workers["PYSPARK_PYTHON"]},
            spark_binary=str(installation.spark_submit),
        )

    def run(self, program: Path) -> None:
        try:
            self._hook.submit(
                str(program), env=self._environment, start_new_session=True, preexec_fn=die_with_parent
            )
        except AirflowException as error:
            # One line is the program's own error; the rest of Spark's output is in the log already.
            raise AirflowException(error_in(self._hook._last_submit_log_lines) or str(error)) from None

    def kill(self) -> None:
        """Kills the local processes and, on a cluster, the driver."""
        if self._hook._submit_sp is not None:
            _kill_session(self._hook._submit_sp)
        self._hook.on_kill()


class PythonProgram:
    """A program without Spark, run by the main environment's Python."""

    def __init__(self, installation: Installation, *, arguments: Sequence[str]) -> None:
        self._python = installation.python
        self._environment = _environment(installation)
        self._arguments = list(arguments)
        self._process: subprocess.Popen[str] | None = None

    def run(self, program: Path) -> None:
        self._run([str(program)], program.name)

    def run_module(self, module: str) -> None:
        """Runs a module as `python -m` does. Raises `AirflowException` with its error if it fails."""
        self._run(["-m", module], module)

    def _run(self, what: Sequence[str], name: str) -> None:
        command = [str(self._python), *what, *self._arguments]
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
            try:
                for line in process.stdout:
                    log.info("%s", line.rstrip())
                    lines.append(line.rstrip())
            except BaseException:
                # A timeout of the task, say: leaving the block waits for the program's end.
                self.kill()
                raise
        if process.returncode:
            last = lines[-1] if lines else "it printed nothing"
            raise AirflowException(
                error_in(lines) or f"{name} ended with exit code {process.returncode}: {last}"
            )

    def kill(self) -> None:
        if self._process is not None:
            _kill_session(self._process)


def _environment(installation: Installation) -> dict[str, str]:
    python = str(installation.python)
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    # The program must not import modules of Airflow's environment.
    environment.pop("PYTHONPATH", None)
    return environment


def _kill_session(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def error_in(lines: Iterable[str]) -> str | None:
    """Returns the last error that the program itself printed, None if there is none."""
    found = None
    for line in lines:
        _, mark, error = line.partition(FAILURE_MARK)
        found = error.strip() if mark else found
    return found


def die_with_parent() -> None:
    """Runs in a child before its program: makes the kernel kill it when its parent dies (prctl(2), Linux).

    The driver of a killed task would otherwise race with the driver of its retry.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def conf_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns Spark's configuration as spark-submit takes it: strings, with true instead of True."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()
    }
