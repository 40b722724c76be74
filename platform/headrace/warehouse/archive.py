"""The archive of Spark's classes on this machine, with which a driver's JVM starts in about half the time.

Owns the archive file (class data sharing, JEP 350) beside the jars, and the JVM options that use it. Nothing
depends on it: a JVM that does not find the archive, or finds one of another JVM or of other jars, loads its
classes as usual. `archive_training` is the program whose classes are archived.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.warehouse.jars import headrace_home, java

TRAINING_TIMEOUT_S: Final = 300.0
# The training does everything once: an optimising compiler would cost more than it gains.
_BRIEF_JVM: Final = "-XX:TieredStopAtLevel=1"
# Classes that can't be archived, and an archive that does not fit, need no warning.
QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_path(home: Path | None = None) -> Path:
    """Returns the path of the archive, which may not exist: see `ensure_archive`."""
    return (home or headrace_home()) / "jars" / "spark.jsa"


def archive_options(home: Path | None = None) -> str:
    """Returns the JVM options of a driver on this machine; empty if there is no archive."""
    path = archive_path(home)
    return f'"-XX:SharedArchiveFile={path}" {QUIET}' if path.exists() else ""


def ensure_archive(
    *,
    home: Path | None = None,
    progress: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> bool:
    """Makes the archive if there is none, or if Java or Spark is newer. Returns False if that fails."""
    path = archive_path(home)
    if path.exists() and path.stat().st_mtime > _newest_part():
        return True
    progress(f"archiving Spark's classes in {path}, so that it starts faster (once, half a minute)")
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = [sys.executable, "-m", "headrace.warehouse.archive_training", str(made)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=TRAINING_TIMEOUT_S,
                check=False,
                env={"JDK_JAVA_OPTIONS": _BRIEF_JVM, **os.environ},
            )
            problem = " | ".join(done.stderr.splitlines()[-3:])
        except subprocess.TimeoutExpired:
            problem = f"not finished after {TRAINING_TIMEOUT_S:.0f} s"
        if not made.exists():
            progress(f"no archive was made, so Spark starts as slowly as before: {problem}")
            return False
        made.rename(path)
    return True


def _newest_part() -> float:
    # Imported here because Airflow, which has no pyspark, needs the options.
    import pyspark

    parts = (Path(java()).resolve(), Path(pyspark.__file__).parent / "jars")
    return max(part.stat().st_mtime for part in parts)
