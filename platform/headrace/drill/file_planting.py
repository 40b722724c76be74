"""The warehouse's part of a drill: the steps that `drill.run` takes with the canary's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event

from headrace.audit.topic.drills import DrillPlant
from headrace.drill.canary_table import CanaryTable
from headrace.drill.errors import DrillError
from headrace.drill.file_kinds import FileKind, harm_file, of_file
from headrace.warehouse.errors import known_error


class FilePlanter:
    """Plants these kinds in files of the canary's table. One thread uses it."""

    def __init__(self, table: CanaryTable, kinds: Mapping[str, FileKind]) -> None:
        self.kinds = kinds
        self._table = table

    def prepare(self) -> None:
        """Chooses the table, and removes from it what is old."""
        self._table.prepare()

    def due(self, plant: DrillPlant) -> DrillPlant:
        """Returns the truth about a plant before it has a file."""
        return of_file(plant, self.kinds[plant.kind])

    def load(self, stopping: Event) -> None:
        """Loads what the copy has of the canary topic."""
        self._table.load(stopping)

    def harm(self, plant: DrillPlant, tell: Callable[[DrillPlant], None]) -> None:
        """Harms the file with the plant's events, after it told the truth."""
        file = self._table.file_of(plant.service, plant.hour_ms)
        harm_file(self._table.hdfs, self.kinds[plant.kind], plant, file, tell)

    def verify(self) -> None:
        """Has the table verified, and the audit told of it."""
        self._table.verify()

    def explain(self, error: Exception) -> str:
        """Returns a line for what a step raised."""
        if isinstance(error, DrillError):
            return str(error)
        lines = str(error).splitlines()
        return known_error(error, "the drill") or (lines[0] if lines else type(error).__name__)
