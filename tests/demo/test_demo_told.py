"""The demo's processes and their parent: who is told to stop in its last moment ends in order too."""

from pathlib import Path

import pytest

from fix_agent import eventually
from headrace.demo import told
from headrace.demo.told import Child

# What lives in a module is destroyed when signals have their defaults again.
ENDING = """
import os, time
from headrace.demo.told import tell, until_told_to_stop

class Last:
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b'{"ends": true}\\n')
        sleep(1)

last = Last()
until_told_to_stop()
tell(closed=True)
"""


def test_who_is_told_to_stop_at_its_very_end_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending_child.py").write_text(ENDING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = Child("ending", "ending_child", {}, tmp_path)
    eventually(lambda: child.said("ends", False))
    child.ask_to_stop()
    child.wait(told.STOP_TIMEOUT_S)
    assert child.process.returncode == 0
    assert child.failure() is None
