"""Today's brokers beside those of an earlier commit: what a change has cost, or gained.

Both run on the same Python packages. The clients are today's.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from experiments.context import BEFORE, HEADRACE
from side_by_side.bars import Bar
from side_by_side.figures import BROKER_CPU, RECORDS_PER_S

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("platform", "broker", "mirror", "terraform")
"""Each holds a part of the package `headrace`."""
ROWS: Final = (
    "produce-batch-1",
    "produce-batch-50",
    "produce-default",
    "java-default",
    "java-256k",
    "java-acks-1",
    "consume",
    "latency",
    "windows-batch-1",
    "windows-batch-50",
)
"""What is measured if no rows are named."""
ALSO: Final = (
    "produce-batch-1-two-clients",
    "confluent-consume",
    "python-produce",
    "python-consume",
    "partitions-produce",
    "partitions-consume",
)
"""What can be measured besides."""
BARS: Final = (
    Bar(RECORDS_PER_S, HEADRACE, BEFORE, 0.97, unless_client_limits=True),
    Bar(BROKER_CPU, HEADRACE, BEFORE, 1.03, at_least=False),
)


class NoSuchCommitError(Exception):
    """Git does not know the commit that was named. The message says which."""


def earlier_code(commit: str, folder: Path) -> dict[str, str]:
    """Writes the code of a commit below `folder`, and returns the environment in which processes run it.

    Raises `NoSuchCommitError`.
    """
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", commit, *FOLDERS],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise NoSuchCommitError(f"SINCE={commit}: git has no code of this commit: {said}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return {"PYTHONPATH": ":".join(str(folder.absolute() / part) for part in FOLDERS)}
