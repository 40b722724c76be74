"""A kill leaves the old number or the new one in a journal, or in a spool, and never a 0.

`Struct.pack_into` fills its place with zeros before it writes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOURNAL = """
from headrace.events.journal import Journal
who = {"publisher": "a", "bucket_ms": 600_000}
of = Journal(folder / "a.journal", who, 0)
def write(number):
    of.begin_report(number)
    of.hand_over("t", 0, 0, 1)
write(1)
places = [8, 16, of._run_at]
"""
SPOOL = """
from headrace.events.spool import Ring, packed
of = Ring(folder, "events", 8 << 20)
entry = packed(1, 0, 0, b"t", None, b"v")
def write(number):
    of.void(of.append(entry))
write(1)
places = [8, 24]
"""
KILLS = """
import os, random, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
{made}
for _ in range(400):
    child = os.fork()
    if not child:
        for number in range(2, 20_000):
            write(number)
        os._exit(0)
    time.sleep(random.uniform(0.0, 0.003))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(*[at for at in places if not any(of._map[at : at + 8])], end=" ")
"""


@pytest.mark.parametrize("made", [JOURNAL, SPOOL], ids=["journal", "spool"])
def test_no_kill_leaves_a_zero_where_a_number_was(tmp_path: Path, made: str) -> None:
    words = [sys.executable, "-c", KILLS.format(made=made), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == [], "places that hold a 0"
