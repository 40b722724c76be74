"""Sets the wall clock of the Python process that imports this at its start, and of no other: the time of day
is moved by as many seconds as the file named by WALL_CLOCK_OFFSET_FILE says at that moment.
"""

import os
import time
from pathlib import Path

_offset_file = Path(os.environ["WALL_CLOCK_OFFSET_FILE"])
_true_ns = time.time_ns


def _offset_ns() -> int:
    return int(_offset_file.read_text()) * 1_000_000_000


def _set_ns() -> int:
    return _true_ns() + _offset_ns()


def _set_s() -> float:
    return _set_ns() / 1e9


time.time_ns = _set_ns
time.time = _set_s
