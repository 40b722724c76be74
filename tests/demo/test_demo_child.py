"""A process of the demo and its parent: one that is asked to stop while it exits still exits cleanly."""

from pathlib import Path

import pytest

from fix_agent import eventually
from headrace.demo.child import STOP_TIMEOUT_S, Child

# A module's objects are destroyed after the interpreter has restored the default actions of signals.
ENDING = """
import os, time
from headrace.demo.child import send_progress, stop_event

class Last:
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b'{"ends": true}\\n')
        sleep(1)

last = Last()
stop_event()
send_progress(closed=True)
"""


def test_a_child_that_is_asked_to_stop_while_it_exits_exits_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending_child.py").write_text(ENDING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = Child("ending", "ending_child", {}, tmp_path)
    eventually(lambda: child.latest("ends", False))
    child.ask_to_stop()
    child.wait(STOP_TIMEOUT_S)
    assert child.process.returncode == 0
    assert child.failure() is None
