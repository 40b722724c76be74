"""A whole run: its machine, rows and judgements, as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from side_by_side.bars import Bar, Judgement, Verdict
from side_by_side.figures import Row

FORMAT: Final = 1


class ReportError(Exception):
    """A file does not hold the figures of a run. The message names it."""


@dataclass
class Report:
    """What `make bench` measured. `skipped`: what was left out, and why."""

    date: str
    quick: bool
    machine: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    judgements: dict[str, list[Judgement]] = field(default_factory=dict)  # by the row's key
    skipped: list[str] = field(default_factory=list)

    def add(self, row: Row, judgements: Sequence[Judgement]) -> None:
        """Adds a row, in place of one with the same key."""
        row.date = row.date or self.date
        if row.key in self.judgements:
            self.rows = [row if each.key == row.key else each for each in self.rows]
        else:
            self.rows.append(row)
        self.judgements[row.key] = list(judgements)

    def row(self, key: str) -> Row | None:
        return next((row for row in self.rows if row.key == key), None)

    def with_verdict(self, *verdicts: Verdict) -> list[tuple[Row, Judgement]]:
        """Returns the judgements with one of these verdicts, in the order of the rows."""
        return [
            (row, each) for row in self.rows for each in self.judgements[row.key] if each.verdict in verdicts
        ]

    def write(self, path: Path) -> None:
        told = {
            "format": FORMAT,
            "date": self.date,
            "quick": self.quick,
            "machine": self.machine,
            "skipped": self.skipped,
            "rows": [
                {
                    **row.to_json(),
                    "bars": [_judgement_to_json(each) for each in self.judgements[row.key]],
                }
                for row in self.rows
            ],
        }
        path.write_text(json.dumps(_rounded(told), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        """Raises `ReportError`."""
        try:
            told = json.loads(path.read_text())
            if told["format"] != FORMAT:
                raise ReportError(f"{path}: format {told['format']}, known is {FORMAT}")
            report = cls(told["date"], told["quick"], told["machine"], skipped=told["skipped"])
            for each in told["rows"]:
                report.add(Row.from_json(each), [_judgement_from_json(bar) for bar in each["bars"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReportError(f"{path} does not hold the figures of make bench: {error}") from None
        return report


def _rounded(told: Any) -> Any:
    """Six digits are more than a measurement has; they keep the file small."""
    if isinstance(told, float):
        return float(f"{told:.6g}")
    if isinstance(told, dict):
        return {name: _rounded(value) for name, value in told.items()}
    if isinstance(told, list):
        return [_rounded(value) for value in told]
    return told


def _judgement_to_json(judged: Judgement) -> dict[str, Any]:
    bar = judged.bar
    return {
        "metric": bar.metric,
        "ours": bar.ours,
        "theirs": bar.theirs,
        "limit": bar.limit,
        "at_least": bar.at_least,
        "value": judged.value,
        "verdict": judged.verdict.name,
    }


def _judgement_from_json(told: dict[str, Any]) -> Judgement:
    bar = Bar(told["metric"], told["ours"], told["theirs"], told["limit"], told["at_least"])
    return Judgement(bar, told["value"], Verdict[told["verdict"]])
