"""The next deadline of each group, the earliest first. Owns nothing else: time is an argument.

A heap whose outdated entries stay until they come up, so that no call looks at all groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

OUTDATED_MAX: Final = 1_000  # outdated entries beyond the number of groups, at which the heap is built again


class Deadlines:
    """A deadline that is put off keeps its earlier entry: it is found to be early when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._noted_ms: dict[str, int] = {}  # the earliest entry of each group

    def __len__(self) -> int:
        return len(self._noted_ms)

    def put(self, group_id: str, deadline_ms: int) -> None:
        noted_ms = self._noted_ms.get(group_id)
        if noted_ms is not None and noted_ms <= deadline_ms:
            return
        self._noted_ms[group_id] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, group_id))
        if len(self._heap) > len(self._noted_ms) + OUTDATED_MAX:
            self._heap = [(noted_ms, group_id) for group_id, noted_ms in self._noted_ms.items()]
            heapq.heapify(self._heap)

    def remove(self, group_id: str) -> None:
        self._noted_ms.pop(group_id, None)

    def first_ms(self) -> int | None:
        """Returns the earliest deadline; None if there is none."""
        heap = self._heap
        while heap and self._noted_ms.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now_ms: int, is_enough: Callable[[str], bool] = lambda _: False) -> list[str]:
        """Removes and returns the groups whose deadline was reached, up to one that `is_enough`. Put their
        next deadlines.
        """
        due: list[str] = []
        while (first_ms := self.first_ms()) is not None and first_ms <= now_ms:
            if due and is_enough(due[-1]):
                break
            _, group_id = heapq.heappop(self._heap)
            del self._noted_ms[group_id]
            due.append(group_id)
        return due
