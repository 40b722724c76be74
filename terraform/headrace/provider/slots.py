"""Slots: units of one kind and datacenter are changed one after another.

Terraform changes ten resources at once and knows nothing of clusters; without slots all brokers of a
datacenter could restart together. After one change fails, the group's remaining changes are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.provider.problems import Problem, ResourceError


class SlotGroup:
    """Units of which only one may change at a time. Hold `lock` to read or set `failed_unit`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.failed_unit: str | None = None


class Slots:
    """All groups of one provider process, which Terraform starts for one apply."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, SlotGroup] = {}

    @contextmanager
    def hold(self, group_name: str, unit: str) -> Iterator[None]:
        """Waits for the group's slot and holds it. If the block raises, the group is marked failed.

        Raises `ResourceError` if the group is marked failed: its units that still run must stay up.
        """
        with self._lock:
            group = self._groups.setdefault(group_name, SlotGroup(group_name))
        with group.lock:
            if group.failed_unit is not None:
                raise ResourceError(
                    Problem(
                        f"{unit} was not changed",
                        f"{group.failed_unit} did not become ready after its change, and both belong to the "
                        f"same group ({group.name}). Repair {group.failed_unit}, then apply again.",
                    )
                )
            try:
                yield
            except BaseException:
                group.failed_unit = unit
                raise
