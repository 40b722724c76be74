"""Units whose process ends again and again while it should start: known after a few attempts.

supervisord tries for minutes before it gives up, which is right for a unit that waits for another one after
a crash. The client that has just put a unit has to know sooner that it cannot start. Owns when that is so.
"""

from __future__ import annotations

import re
import threading
from typing import Final, NamedTuple

from headrace.agent.logs import log_tail
from headrace.agent.unit import Unit, UnitState

ATTEMPTS_MIN: Final = 3
"""So many attempts have to end with the same last line before a start counts as hopeless."""
LAST_LINES: Final = 12
# PostgreSQL says why it cannot start, and then goes on for some lines until it "is shut down".
_FATAL: Final = re.compile(
    r"\b(PANIC|FATAL): (?!.*database system is (starting up|shutting down|in recovery|not yet))"
)
# Two attempts write the same error at other times, and from other processes.
_CHANGING: Final = re.compile(r"\d+")


class _Attempts(NamedTuple):
    """The attempts of one unit that ended in the same way, since it was last put or restarted."""

    ended_s: int = 0
    ended_alike: int = 0
    line: str = ""


class StartWatch:
    """Counts the failed attempts of each unit from the states that it is shown. Any thread may call.

    It sees every attempt only while somebody waits for the unit, which is when it matters.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[str, _Attempts] = {}

    def begin(self, name: str) -> None:
        """Forgets the attempts of a unit that is started anew."""
        with self._lock:
            self._attempts[name] = _Attempts()

    def problem(self, unit: Unit, state: UnitState | None) -> str | None:
        """Notes the state; returns why the unit cannot start, once that is certain."""
        with self._lock:
            known = self._attempts.get(unit.name)
            if known is None or state is None or state.state == "RUNNING":
                # supervisord calls it running once it has lasted: the next end is another matter.
                self._attempts.pop(unit.name, None)
                return None
            has_ended_again = state.state in ("BACKOFF", "EXITED", "FATAL") and state.ended_s > known.ended_s
            if has_ended_again:
                line = last_error(log_tail(unit.log_path, LAST_LINES))
                is_same = _CHANGING.sub("", line) == _CHANGING.sub("", known.line)
                known = _Attempts(state.ended_s, known.ended_alike + 1 if is_same else 1, line)
                self._attempts[unit.name] = known
            if known.ended_alike < ATTEMPTS_MIN:
                return None
            line = known.line or "(its log is empty)"
            return f"it does not start, {known.ended_alike} attempts ended with: {line}"


def last_error(text: str) -> str:
    """The last line of a log that says something; one that is called fatal before any other."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if _FATAL.search(line)]
    return (fatal or lines or [""])[-1]
