"""Airflow gives its processes titles; the agent still finds whose they are, by their environment."""

import os
import subprocess
import sys

from headrace.agent.airflow_environment import VARIABLES
from headrace.site.environment_variables import UNIT_VARIABLE

PROGRAM = """
import setproctitle
setproctitle.setproctitle("airflow " + "x" * 4000)
print(open("/proc/self/environ").read())
"""


def test_a_title_leaves_the_environment_readable() -> None:
    environment = {**os.environ, **VARIABLES, UNIT_VARIABLE: "analysis-airflow-api-server"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert f"{UNIT_VARIABLE}=analysis-airflow-api-server" in done.stdout
