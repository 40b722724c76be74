"""Rolling restarts: one unit of a host after another, and never while one of those before it is missing.

Owns the order, when to refuse, and when to stop. `keeper` restarts each unit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.agent.errors import BusyError, NotReadyError, NotReadyForRestartError
from headrace.agent.in_sync import InSyncWatch
from headrace.agent.keeper import Keeper
from headrace.agent.report import UnitReport


class Rolling:
    """The rolling restarts of one host, one at a time. Any thread may call."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()

    def roll(self, names: Sequence[str], wait_s: float) -> Iterator[UnitReport]:
        """Restarts one unit after another, each once those before it are ready; a broker is ready when it has
        in sync again what it had before.

        Raises `NotReadyForRestartError` before anything is restarted if one of them is not ready, and
        `NotReadyError` if one does not come back within `wait_s`, or does not stay; the units after it are
        not restarted.
        """
        if not self._lock.acquire(blocking=False):
            raise BusyError("another rolling restart of this host is in progress; wait for it to end")
        try:
            for report in self._keeper.reports(names):
                if not report.is_ready:
                    raise NotReadyForRestartError(
                        f"unit {report.name} is not ready ({report.problem}), so no unit was restarted; "
                        "fix it first, or restart it alone",
                        {"unit": report.to_json()},
                    )
            for number, name in enumerate(names):
                self._check_still_ready(names, number)
                replicas = InSyncWatch(self._keeper.unit(name))
                deadline_s = time.monotonic() + wait_s
                self._keeper.restart(name)
                report = self._keeper.wait_ready(name, wait_s)
                problem = report.problem
                if problem is None:
                    problem = replicas.wait(deadline_s - time.monotonic(), self._keeper.ending)
                if problem is not None:
                    raise NotReadyError(
                        f"unit {name} is not ready within {wait_s:g} s of its restart: {problem}",
                        _details(report, restarted=names[:number], left_alone=names[number + 1 :]),
                    )
                yield report
        finally:
            self._lock.release()

    def _check_still_ready(self, names: Sequence[str], number: int) -> None:
        """A unit may end a moment after it was ready: the next one has what is wrong with it, too."""
        for report in self._keeper.reports(names[:number], with_drift=False):
            if not report.is_ready:
                raise NotReadyError(
                    f"unit {report.name} was ready after its restart, and is not any more: {report.problem}",
                    _details(report, restarted=names[:number], left_alone=names[number:]),
                )


def _details(report: UnitReport, *, restarted: Sequence[str], left_alone: Sequence[str]) -> dict[str, Any]:
    return {"unit": report.to_json(), "restarted": list(restarted), "left_alone": list(left_alone)}
