"""The load job as spark-submit starts it: a script, whose folder is first on Python's path."""

from __future__ import annotations

import subprocess
import sys

from headrace.warehouse import job


def test_no_module_beside_it_hides_pythons_own() -> None:
    done = subprocess.run(
        [sys.executable, job.__file__, "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "load" in done.stdout
