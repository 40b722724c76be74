"""A reader of audit topics that has its records in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.audit.topic.reader import Polled
from headrace.audit.topic.records import ReceivedRecord

LOG_OF_RECORDS: Final = ("_audit", 0)


class RecordsReader:
    """Stands for the audit topics, with one record at each address of one partition."""

    unreadable_count = 0

    def __init__(self, records: Sequence[ReceivedRecord], at: int, ended: Callable[[], None]) -> None:
        self.set_aside: dict[tuple[str, int], Any] = {}
        self._records, self.at, self._ended = records, at, ended

    def discover(self) -> None:
        return

    def know(self, _last: object, _marks: object) -> None:
        return

    def keep_records(self, _keep_ms: int) -> bool:
        return True

    def poll(self, timeout_s: float) -> Polled:
        if self.at == len(self._records):
            self._ended()
            return Polled([], {})
        self.at += 1
        return Polled([self._records[self.at - 1]], {LOG_OF_RECORDS: self.at})

    def close(self) -> None:
        return
