"""What Terraform says with `-json`, line by line: what it plans, what is done, what is wrong.

Owns the reading of it (https://developer.hashicorp.com/terraform/internals/machine-readable-ui) and the words
for its errors. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ERRORS_SHOWN_MAX: Final = 3
_NO_UNITS: Final = ("headrace_topic", "headrace_schema", "headrace_load")
_CHANGES: Final = {"add": "added", "change": "changed", "remove": "destroyed"}


@dataclass(frozen=True)
class Complaint:
    """An error: in short, at length, and at which resource and line."""

    summary: str
    detail: str
    where: str

    def words(self) -> str:
        where = f"\n  {self.where}" if self.where else ""
        detail = "".join(f"\n  {line}".rstrip() for line in self.detail.splitlines())
        return f"{self.summary}{where}{detail}"


@dataclass
class Said:
    """All that a run has said so far.

    `planned`: the address of each resource that is to be made or changed; `done` those that are;
    `is_planned` once nothing more will be; `changes` is the outcome: added, changed, destroyed.
    """

    planned: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    is_planned: bool = False
    changes: dict[str, int] | None = None
    complaints: list[Complaint] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """One line; one that is no JSON object is passed over."""
        try:
            told = json.loads(line)
        except ValueError:
            return
        if isinstance(told, dict):
            self._hear(told)

    def _hear(self, told: Mapping[str, Any]) -> None:
        kind = told.get("type")
        if kind == "planned_change" and told["change"]["action"] in ("create", "update", "replace"):
            self.planned.add(told["change"]["resource"]["addr"])
        elif kind == "apply_complete" and told["hook"]["action"] in ("create", "update"):
            self.done.add(told["hook"]["resource"]["addr"])
        elif kind == "change_summary":
            self.is_planned = True
            if told["changes"]["operation"] == "apply":
                self.changes = {words: told["changes"][what] for what, words in _CHANGES.items()}
        elif kind == "diagnostic" and told["diagnostic"]["severity"] == "error":
            complaint = _complaint(told["diagnostic"])
            if complaint not in self.complaints:
                self.complaints.append(complaint)

    def outcome(self) -> str:
        """`28 added, 1 changed`, or that there was nothing to do."""
        said = [f"{count} {what}" for what, count in (self.changes or {}).items() if count]
        return ", ".join(said) or "no changes"

    def troubles(self) -> str:
        """The errors in words, the first few of them."""
        shown = "\n".join(each.words() for each in self.complaints[:ERRORS_SHOWN_MAX])
        more = len(self.complaints) - ERRORS_SHOWN_MAX
        return shown + (f"\n… and {more} more" if more > 0 else "")


def units_among(addresses: Iterable[str]) -> set[str]:
    """Those resources that are units of hosts."""
    return {each for each in addresses if _type_of(each) not in _NO_UNITS}


def _type_of(address: str) -> str:
    """`module.east.headrace_broker.this["1"]` → `headrace_broker`. Keys hold dots, too, but no such word."""
    return next((part for part in address.split(".") if part.startswith("headrace_")), address)


def _complaint(diagnostic: Mapping[str, Any]) -> Complaint:
    place = diagnostic.get("range") or {}
    line = f"{place['filename']} line {place['start']['line']}" if place.get("filename") else ""
    where = ", ".join(part for part in (diagnostic.get("address", ""), line) if part)
    return Complaint(diagnostic["summary"], diagnostic.get("detail", ""), where)
