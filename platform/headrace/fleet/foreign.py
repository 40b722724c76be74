"""What `headrace up` would take from others: units of this host that it did not make.

Owns which units count as another program's, and the sentence that names them. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace.agent.report import UnitReport
from headrace.site.errors import SiteError

MADE_BY: Final = "headrace up"
"""What the agent keeps with each unit that `headrace up` puts."""


class ForeignUnit(NamedTuple):
    """A unit that `headrace up` did not make. `is_removed`: it would be removed, else configured anew."""

    name: str
    made_by: str
    is_removed: bool

    def __str__(self) -> str:
        return f"{self.name} ({f'made by {self.made_by}' if self.made_by else 'maker unknown'})"


class ForeignUnitsError(SiteError):
    """`headrace up` would remove or change units that it did not make, and nobody has agreed to that."""

    def __init__(self, units: Sequence[ForeignUnit]) -> None:
        self.units = tuple(units)
        super().__init__(
            f"`headrace up` would {sentence(units)}. Nothing was changed. The program that made them can "
            "change them (`terraform apply`); a site of its own needs another HEADRACE_HOME; "
            "`headrace up --yes` does it anyway"
        )


def foreign_units(
    reports: Iterable[UnitReport],
    wanted: Mapping[str, Mapping[str, Any]],
    conflicting: Collection[str | None],
) -> list[ForeignUnit]:
    """The units of the agent that `headrace up` did not make, and would remove or change.

    `wanted`: name → configuration of each unit of the site. `conflicting` names the units that hold an
    address or a folder which a unit of the site needs.
    """
    found = []
    for report in reports:
        if report.made_by == MADE_BY:
            continue
        if report.name not in wanted or report.name in conflicting:
            found.append(ForeignUnit(report.name, report.made_by, is_removed=True))
        # Earlier versions did not say who made a unit; one with a name of the site is the site's.
        elif report.made_by and dict(report.configuration) != dict(wanted[report.name]):
            found.append(ForeignUnit(report.name, report.made_by, is_removed=False))
    return found


def sentence(units: Sequence[ForeignUnit]) -> str:
    """Names what would happen to the units: `remove 2 units that it did not make: …`."""
    parts = []
    for is_removed, verb in ((True, "remove"), (False, "give another configuration to")):
        named = [str(unit) for unit in units if unit.is_removed is is_removed]
        if named:
            noun = "a unit" if len(named) == 1 else f"{len(named)} units"
            parts.append(f"{verb} {noun} that it did not make: {', '.join(named)}")
    return "; and ".join(parts)
