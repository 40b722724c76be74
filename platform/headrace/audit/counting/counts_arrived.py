"""Which report of each publisher by `POST /counts` arrived last: its next report names that one, so that the
audit misses it if the audit's topic loses it.

Two know it. The publisher may say which report was answered with 200 last. The auditor remembers what it
wrote, of the publishers that were heard last and until it is restarted. The later of both is named: an answer
may have been lost on its way.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

PUBLISHERS_MAX: Final = 20_000


class Named(NamedTuple):
    """A report that arrived; `made_ms`: when it was written at the latest, by the auditor's clock, None if it
    is not known. Number 0: none is known.
    """

    report_number: int
    made_ms: int | None


NONE: Final = Named(0, None)


class CountsArrived:
    """What arrived of the `PUBLISHERS_MAX` publishers that reported last. One thread uses it at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Named, Named]] = OrderedDict()
        """Of each publisher the last report that arrived, and the one that was named in it: a report whose
        answer was lost is sent again under its number.
        """

    def before(self, publisher: str, report_number: int, claimed: int = 0) -> Named:
        """Returns the last report before `report_number` that arrived. `claimed`: which one the publisher
        says it is, 0 if it says none.
        """
        known = self._known.get(publisher, ())
        earlier = (each for each in known if each.report_number < report_number)
        last = max(earlier, default=NONE, key=lambda each: each.report_number)
        return Named(claimed, None) if claimed > last.report_number else last

    def note(self, publisher: str, arrived: Named, named: Named) -> None:
        """Remembers that a report arrived, which named another one."""
        known, _ = self._known.get(publisher, (NONE, NONE))
        if arrived.report_number >= known.report_number:
            self._known[publisher] = (arrived, named)
        self._known.move_to_end(publisher)
        if len(self._known) > PUBLISHERS_MAX:
            self._known.popitem(last=False)
