"""A service that publishes events and is killed before all of them are sent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from fix_zookeeper import die_with_parent

PROGRAM: Final = Path(__file__).parent / "programs" / "killed_publisher.py"


def publish_until_killed(**options: Any) -> None:
    """Runs `programs/killed_publisher.py` with these options, until it has killed itself."""
    words = [sys.executable, str(PROGRAM), json.dumps(options, default=str)]
    died = subprocess.run(words, preexec_fn=die_with_parent, check=False)
    assert died.returncode == -signal.SIGKILL
