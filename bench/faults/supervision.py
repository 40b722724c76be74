"""What a host's agent does for its broker: it ends the session that a killed process leaves in ZooKeeper.

It is the agent's own code, in a thread of the judge. A power cut takes the agent, too: `end` it before.
"""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.agent.endings import Endings


class HostAgent:
    """Watches the broker of one data directory, from now until `end`."""

    def __init__(self, data_dir: Path) -> None:
        self._ending = threading.Event()
        self._endings = Endings(lambda: [data_dir], self._ending)
        self._endings.start()

    def end(self) -> None:
        self._ending.set()
        self._endings.join()
