"""Who may restart something now: of things that stand in for each other, one at a time.

Owns the queues. Terraform changes ten resources at once, and knows nothing of a cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.provider.values import ResourceError, Trouble


class Turn:
    """One's turn in a group. Whose turn does not go well is the group's last."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.failed: str | None = None
        self.lock = threading.Lock()

    def check(self, name: str) -> None:
        """Raises `ResourceError` when one before has failed: this one is all the more needed as it is."""
        if self.failed is not None:
            raise ResourceError(
                Trouble(
                    f"{name} was left as it is",
                    f"{self.failed} did not come back after its change, and both are of the same group "
                    f"({self.group}). Mend that one, then apply again.",
                )
            )
        self.failed = name

    def went_well(self) -> None:
        self.failed = None


class Turns:
    """All groups of one apply."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, Turn] = {}

    @contextmanager
    def of(self, group: str) -> Iterator[Turn]:
        """Waits for the turn, and gives it back at the end."""
        with self._lock:
            turn = self._turns.setdefault(group, Turn(group))
        with turn.lock:
            yield turn
