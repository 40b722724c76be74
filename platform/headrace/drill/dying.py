"""A service of the drill that kills itself: `python -m headrace.drill.dying`, told on stdin what to publish.

It reports `sent` events that arrive, is handed `unsent` more, and ends by SIGKILL before it sends them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from headrace.drill.errors import DrillError
from headrace.drill.place import FLUSH_WAIT_MAX_S, Place, publish

LIFE_MAX_S: Final = 120


def kill_a_service(
    place: Place, service: str, state_dir: Path, base_ms: int, sent: int, unsent: int, *, journal: bool
) -> None:
    """Runs such a process until it is dead. Raises `DrillError`."""
    told = {
        "place": list(place),
        "service": service,
        "state_dir": str(state_dir),
        "base_ms": base_ms,
        "sent": sent,
        "unsent": unsent,
        "journal": journal,
    }
    command = [sys.executable, "-m", "headrace.drill.dying"]
    try:
        ended = subprocess.run(
            command, input=json.dumps(told), capture_output=True, text=True, timeout=LIFE_MAX_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DrillError(f"a publisher of {place.datacenter} did not end within {LIFE_MAX_S} s") from error
    if ended.returncode != -signal.SIGKILL:
        last = (ended.stderr.strip() or "it said nothing").splitlines()[-1]
        raise DrillError(f"a publisher of {place.datacenter} ended with {ended.returncode}: {last}")


def _publish_and_die(told: dict[str, Any]) -> None:
    publisher = Place(*told["place"]).publisher(
        told["service"],
        Path(told["state_dir"]),
        journal=told["journal"],
    )
    publish(publisher, range(told["sent"]), told["base_ms"])
    publisher.flush(FLUSH_WAIT_MAX_S)
    publish(publisher, range(told["sent"], told["sent"] + told["unsent"]), told["base_ms"])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    signal.alarm(LIFE_MAX_S)  # its parent may have died before it
    _publish_and_die(json.load(sys.stdin))
