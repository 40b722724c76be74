"""Runs the tests that failed in the last run of pytest once more, without others beside them.

`make test` does so where at most `FAILED_MAX` failed: four test processes share two cores, and a test that
waits for real processes may fail for that alone. What fails twice fails the run. A test that passes now is
a defect all the same, of the test or of the product: it is named, and the output of its failure stands above.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

FAILED_MAX: Final = 5
"""More failures than these are no coincidence: the first run's result stands."""


def last_failed(directory: Path) -> list[str]:
    """Returns the names of the tests that failed in the last run in `directory`; of a file that could not be
    imported, its path."""
    path = directory / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def main(arguments: list[str]) -> int:
    """Returns pytest's exit code, or 1 without a second run. `arguments` stand before the tests' names."""
    failed = last_failed(Path.cwd())
    if not failed or len(failed) > FAILED_MAX or any("::" not in name for name in failed):
        return 1
    print(
        f"\n{len(failed)} failed beside others, and run once more alone; to be mended also if they pass now:"
    )
    print("\n".join(f"  {name}" for name in failed), flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *arguments, *failed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
