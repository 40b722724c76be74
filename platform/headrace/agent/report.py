"""How a unit is: the answer of the agent, and its form in JSON.

Owns `UnitReport`, which the agent writes and its clients read, and what counts as drift. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from headrace.agent.probes import BalancerProbe
from headrace.agent.supervisor import UnitState
from headrace.agent.unit import Unit


class Outcome(StrEnum):
    """What a PUT has done, or would do."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


class DriftKind(StrEnum):
    """In what the host differs from what was put."""

    PROCESS = "process"
    DEFINITION = "definition"
    FILE = "file"


class Drift(NamedTuple):
    """One difference. A PUT of the same configuration, or a restart, takes it away."""

    what: DriftKind
    message: str


class UnitReport(NamedTuple):
    """One unit as it is now.

    `state` and `note` are supervisord's words, `state` None when it does not know the unit; `problem` is None
    for a unit that is ready, of which `remark` may say what is worth knowing; `definition` changes whenever
    the process would be started otherwise.
    """

    name: str
    kind: str
    datacenter: str
    configuration: Mapping[str, Any]
    state: str | None
    note: str
    problem: str | None
    remark: str
    drift: tuple[Drift, ...]
    pid: int | None
    uptime_s: int
    version: str
    definition: str
    requires: tuple[str, ...]
    listens: tuple[str, ...]
    log: str

    @property
    def is_ready(self) -> bool:
        return self.problem is None

    @property
    def has_failed(self) -> bool:
        """supervisord has given up: waiting is of no use."""
        return self.state == "FATAL"

    def to_json(self) -> dict[str, Any]:
        said = self._asdict()
        said["drift"] = [each._asdict() for each in self.drift]
        return {"name": said.pop("name"), "ready": self.is_ready, **said}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> UnitReport:
        """Raises KeyError, TypeError or ValueError for what no agent says."""
        values = {name: said[name] for name in UnitReport._fields}
        values["drift"] = tuple(Drift(DriftKind(each["what"]), each["message"]) for each in said["drift"])
        values["requires"], values["listens"] = tuple(said["requires"]), tuple(said["listens"])
        return UnitReport(**values)


def report_of(
    unit: Unit, state: UnitState | None, problem: str | None, drift: tuple[Drift, ...], remark: str = ""
) -> UnitReport:
    """`problem` is the probe's; a unit whose process does not run has that one first."""
    if state is None:
        problem = "not started"
    elif not state.is_running:
        problem = state.state.lower()
    return UnitReport(
        name=unit.name,
        kind=unit.kind,
        datacenter=unit.datacenter,
        configuration=unit.configuration.model_dump(mode="json") if unit.configuration else {},
        state=state.state if state else None,
        note=state.note if state else "",
        problem=problem,
        remark=remark if problem is None else "",
        drift=drift,
        pid=state.pid if state and state.pid else None,
        uptime_s=state.uptime_s if state else 0,
        version=unit.version,
        definition=unit.definition,
        requires=unit.requires,
        listens=tuple(map(str, unit.listens)),
        log=str(unit.log_path),
    )


# supervisord does nothing more for a unit in one of these.
_AT_REST = ("STOPPED", "EXITED", "FATAL", "UNKNOWN")


def drift_of(
    unit: Unit, state: UnitState | None, *, is_changed: bool, on_disk: Mapping[Path, str | None]
) -> tuple[Drift, ...]:
    """In what the host differs from the unit.

    `is_changed`: supervisord runs it by an earlier definition. `on_disk`: what the unit's files hold, None
    for one that is not there.
    """
    found = []
    if state is None:
        found.append(Drift(DriftKind.PROCESS, "supervisord does not know it"))
    elif state.state in _AT_REST:
        note = f" ({state.note})" if state.note else ""
        found.append(Drift(DriftKind.PROCESS, f"it is {state.state}{note}, and supervisord leaves it so"))
    if is_changed:
        found.append(Drift(DriftKind.DEFINITION, "its process was started by an earlier definition"))
    for path, text in unit.files.items():
        if on_disk.get(path) != text:
            what = "is missing" if on_disk.get(path) is None else "was changed by somebody else"
            found.append(Drift(DriftKind.FILE, f"{path} {what}"))
    return tuple(found)


def outcome_of(is_known: bool, is_same: bool, drift: tuple[Drift, ...]) -> Outcome:
    """What a PUT does: `is_same` is whether the configuration is the one that was put before."""
    if not is_known:
        return Outcome.CREATED
    return Outcome.UNCHANGED if is_same and not drift else Outcome.CHANGED


def ask(unit: Unit, state: UnitState | None) -> tuple[str | None, str]:
    """What the probe says of a process that runs: its problem; without one, what is worth knowing."""
    if state is None or not state.is_running:
        return None, ""
    probe = unit.probe
    problem = probe.problem()
    return problem, probe.note() if problem is None and isinstance(probe, BalancerProbe) else ""
