"""What programs say of the warehouse's tables: records of `_audit_analysis`, as values.

A *verification* reads a table's files again and compares them with its manifests (`warehouse.verify`). Each
one says all that is wrong with the table now, and replaces what was said before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, NamedTuple

PROBLEMS_PER_RECORD_MAX: Final = 300
NO_HOUR_MS: Final = -1
"""Of a problem that is the table's, and of no single hour."""
ALL: Final = "all"
RECENT: Final = "recent"
CHECKED: Final = (ALL, RECENT)
"""Which hours a verification read: every one; or those with new files, and a share of the others."""
IN_NO_MANIFEST: Final = "is in no manifest"
"""In the text about a file that lies in a table's folder, and that no change of the table has written."""


class TableProblem(NamedTuple):
    """What is wrong with a table: `hour_ms` and `rows` of the file at `path`; `path` is empty if it is of no
    single file. `is_gone`: the rows are not there any more.
    """

    hour_ms: int
    path: str
    rows: int
    is_gone: bool
    text: str


@dataclass(frozen=True, slots=True)
class VerifiedRecord:
    """`audit-verified.avsc` describes the fields."""

    schema_file: ClassVar[str] = "audit-verified.avsc"

    warehouse: str
    topic: str
    checked: str
    files: int
    rows: int
    problem_count: int
    problems: tuple[TableProblem, ...]

    def key(self) -> str:
        return f"verified/{self.topic}"

    def to_avro(self) -> dict[str, Any]:
        problems = [each._asdict() for each in self.problems]
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "problems": problems}

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> VerifiedRecord:
        problems = tuple(TableProblem(**each) for each in data["problems"])
        values = {field.name: data[field.name] for field in fields(cls)}
        return cls(**{**values, "problems": problems})
