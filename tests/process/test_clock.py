"""How old a process is: what it took to start counts, and what another one did before does not."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time

from headrace.client import Producer
from headrace.process.clock import elapsed_s, process_age_s

SLEEP_S = 0.6


def test_the_age_counts_from_the_start_of_the_process() -> None:
    program = (
        f"import time; time.sleep({SLEEP_S}); "
        "from headrace.process.clock import process_age_s; print(process_age_s())"
    )
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert SLEEP_S <= float(done.stdout) <= time.monotonic() - began_s + 0.05


def test_the_age_grows_as_the_clock_does() -> None:
    age_s, began_s = process_age_s(), time.monotonic()
    time.sleep(0.05)
    assert abs(process_age_s() - age_s - (time.monotonic() - began_s)) < 0.05


def test_a_producer_counts_the_time_of_a_suspend() -> None:
    """Its broker forgets it meanwhile: a batch must not be sent again as if no time had passed."""
    assert inspect.signature(Producer).parameters["clock"].default is elapsed_s
    before = elapsed_s()
    assert 0 <= elapsed_s() - before < 60
    assert elapsed_s() >= time.monotonic() - 1
