"""Runs the tests that need Airflow (`tests/airflow`) in its own environment, as one test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.agent.airflow_environment import airflow_python

FOLDER = Path(__file__).parents[1] / "airflow"
TIMEOUT_S = 600


@pytest.mark.slow
@pytest.mark.hdfs
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_the_tests_in_airflows_own_environment_pass(java_jars: dict[str, Path]) -> None:
    python = airflow_python()
    if not python.exists():
        pytest.skip(f"there is no {python}; run `make airflow`")
    done = subprocess.run(
        [str(python), "-m", "pytest", "--durations=10"],
        cwd=FOLDER,
        env={**os.environ, "PYTHONPATH": "", "VIRTUAL_ENV": str(python.parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    # Their output is shown as this test's output.
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, f"tests in {FOLDER} failed:\n{_failures(done.stdout)}"


def _failures(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "\n".join(lines or output.splitlines()[-30:])
