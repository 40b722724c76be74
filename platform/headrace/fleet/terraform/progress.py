"""The progress of a Terraform run, read from its `-json` output line by line.

Owns the reading of that format (https://developer.hashicorp.com/terraform/internals/machine-readable-ui) and
the text of Terraform's errors. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ERRORS_SHOWN_MAX: Final = 3
_NOT_UNITS: Final = ("headrace_topic", "headrace_schema", "headrace_load")
_CHANGES: Final = {"add": "added", "change": "changed", "remove": "destroyed"}


@dataclass(frozen=True)
class Diagnostic:
    """One of Terraform's errors; `location` is its resource and its line of HCL."""

    summary: str
    detail: str
    location: str

    def __str__(self) -> str:
        location = f"\n  {self.location}" if self.location else ""
        detail = "".join(f"\n  {line}".rstrip() for line in self.detail.splitlines())
        return f"{self.summary}{location}{detail}"


@dataclass
class TerraformProgress:
    """What a run has planned and done so far.

    `planned`: the addresses of the resources to create or update; `done`: those that are finished;
    `is_planned`: true once the plan is complete; `changes`: how many were added, changed and destroyed, None
    until the run has ended.
    """

    planned: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    is_planned: bool = False
    changes: dict[str, int] | None = None
    errors: list[Diagnostic] = field(default_factory=list)

    def read_line(self, line: str) -> None:
        """Adds one line of output; ignores a line that is not a JSON object."""
        try:
            message = json.loads(line)
        except ValueError:
            return
        if isinstance(message, dict):
            self._add(message)

    def _add(self, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "planned_change" and message["change"]["action"] in ("create", "update", "replace"):
            self.planned.add(message["change"]["resource"]["addr"])
        elif kind == "apply_complete" and message["hook"]["action"] in ("create", "update"):
            self.done.add(message["hook"]["resource"]["addr"])
        elif kind == "change_summary":
            self.is_planned = True
            if message["changes"]["operation"] == "apply":
                self.changes = {name: message["changes"][key] for key, name in _CHANGES.items()}
        elif kind == "diagnostic" and message["diagnostic"]["severity"] == "error":
            error = _diagnostic(message["diagnostic"])
            if error not in self.errors:
                self.errors.append(error)

    def pending_units(self) -> set[str]:
        """The addresses of the units that are planned and not done."""
        return {address for address in self.planned - self.done if _type_of(address) not in _NOT_UNITS}

    def outcome(self) -> str:
        """`28 added, 1 changed`, or `no changes`."""
        counts = [f"{count} {name}" for name, count in (self.changes or {}).items() if count]
        return ", ".join(counts) or "no changes"

    def error_text(self) -> str:
        """The first `ERRORS_SHOWN_MAX` errors, and how many more there are."""
        shown = "\n".join(str(error) for error in self.errors[:ERRORS_SHOWN_MAX])
        more = len(self.errors) - ERRORS_SHOWN_MAX
        return shown + (f"\n… and {more} more" if more > 0 else "")


def _type_of(address: str) -> str:
    """`module.east.headrace_broker.this["1"]` → `headrace_broker`; a key may contain dots, too."""
    return next((part for part in address.split(".") if part.startswith("headrace_")), address)


def _diagnostic(fields: Mapping[str, Any]) -> Diagnostic:
    place = fields.get("range") or {}
    line = f"{place['filename']} line {place['start']['line']}" if place.get("filename") else ""
    location = ", ".join(part for part in (fields.get("address", ""), line) if part)
    return Diagnostic(fields["summary"], fields.get("detail", ""), location)
