"""Calls in the background: their result, their error, and nobody who has to wait for one that hangs."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from headrace.process.background import in_background

WAIT_MAX_S = 20.0
SCRIPT = """
import threading
from headrace.process.background import in_background
in_background(threading.Event().wait, "for ever")
print("the end")
"""


def test_result_and_error_are_the_calls_own() -> None:
    assert in_background(lambda: threading.current_thread().name, "a name").result(WAIT_MAX_S) == "a name"
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0, "an error").result(WAIT_MAX_S)


def test_nobody_waits_longer_than_he_says() -> None:
    goes_on = threading.Event()
    asked = in_background(goes_on.wait, "waits")
    with pytest.raises(TimeoutError):
        asked.result(0.01)
    goes_on.set()
    assert asked.result(WAIT_MAX_S)


def test_a_call_that_never_ends_keeps_no_process_alive() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=WAIT_MAX_S, check=True
    )
    assert done.stdout == "the end\n"
