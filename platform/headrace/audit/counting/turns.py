"""Turns of an auditor's clock: from one moment at which it was set back to the next. Pure.

Beats are times of the auditor's clock. If that was ahead and is set back, later heartbeats have lower beats
than earlier ones for a while. The order within each log of the audit topic tells which are the later ones.
"""

from __future__ import annotations

from typing import Final

from headrace.audit.topic.records import HeartbeatRecord

SET_BACK_MIN_MS: Final = 60_000
"""Records that were sent again, or by two auditors at once, may be out of order by less."""
Log = tuple[str, int] | None
"""An audit topic and a partition; None if it is not known."""


class Turns:
    """Counts the turns in records of one datacenter's auditors, in the order of their logs."""

    def __init__(self) -> None:
        self._last_ms: dict[Log, int] = {}
        self._turns: dict[Log, int] = {}
        self.of_beats: dict[tuple[str, int], int] = {}
        """The turn of each heartbeat, by (tier, beat). Each log has a copy of it."""

    def note_beat(self, log: Log, beat: HeartbeatRecord) -> None:
        """Notes a heartbeat that was read."""
        key = (beat.tier, beat.beat)
        self.of_beats[key] = max(self.turn(log, beat.beat), self.of_beats.get(key, 0))

    def turn(self, log: Log, time_ms: int) -> int:
        """Returns the turn of a record that was read, by its time."""
        turn = self._turns.get(log, 0)
        if time_ms < self._last_ms.get(log, time_ms) - SET_BACK_MIN_MS:
            turn += 1
        self._turns[log], self._last_ms[log] = turn, time_ms
        return turn
