"""The agent's report of a unit, and its form in JSON.

Owns `UnitReport`, which the agent writes and its clients read, and what counts as drift. Pure, but for
`probed_report`, which probes the unit, and `drift_here`, which reads its files.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.agent.probes import BalancerProbe
from headrace.agent.unit import Unit, UnitState
from headrace.process.disk import DiskSpace, space_of

HIDDEN: Final = "(hidden)"
UNSUPERVISED: Final = "UNSUPERVISED"
"""The state of a unit that runs although its supervisor was killed. supervisord has no such state."""


class ChangeOutcome(StrEnum):
    """The result of a PUT, or of its dry run."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


class DriftKind(StrEnum):
    """What differs between the host and the desired unit."""

    PROCESS = "process"
    DEFINITION = "definition"
    FILE = "file"


class Drift(NamedTuple):
    """One difference. A PUT of the same configuration, or a restart, removes it."""

    what: DriftKind
    message: str


class DataDisk(NamedTuple):
    """The disk of a unit's data: the unit's folder there, and the room that the disk has."""

    directory: str
    free_bytes: int
    size_bytes: int

    @property
    def is_nearly_full(self) -> bool:
        return DiskSpace(Path(self.directory), self.free_bytes, self.size_bytes).is_nearly_full


class UnitReport(NamedTuple):
    """One unit as it is now.

    `state` and `note` come from supervisord; `state` is None if it does not have the unit. `problem` is None
    if the unit is ready; `notice` then says what else is worth knowing. `definition` changes whenever the
    process would be started differently. `made_by` names the program that put the unit, "" if that is not
    known. `disk` is the disk of its data, None if it keeps none. `failing`: the process ended in every
    attempt to start it, with the error that `problem` has.
    """

    name: str
    kind: str
    datacenter: str
    configuration: Mapping[str, Any]
    state: str | None
    note: str
    problem: str | None
    notice: str
    drift: tuple[Drift, ...]
    pid: int | None
    uptime_s: int
    version: str
    definition: str
    requires: tuple[str, ...]
    listens: tuple[str, ...]
    log: str
    made_by: str = ""
    disk: DataDisk | None = None
    failing: bool = False

    @property
    def is_ready(self) -> bool:
        return self.problem is None

    @property
    def has_failed(self) -> bool:
        """Whether waiting is of no use: supervisord has given up, or every attempt ended in the same way."""
        return self.state == "FATAL" or self.failing

    def to_json(self) -> dict[str, Any]:
        fields = {_JSON_KEYS.get(name, name): value for name, value in self._asdict().items()}
        fields["drift"] = [drift._asdict() for drift in self.drift]
        fields["disk"] = None if self.disk is None else self.disk._asdict()
        return {"name": fields.pop("name"), "ready": self.is_ready, **fields}

    def without(self, secret_fields: Container[str]) -> UnitReport:
        """This report for readers who must not see these fields of the configuration."""
        shown = {
            name: HIDDEN if name in secret_fields and value else value
            for name, value in self.configuration.items()
        }
        return self._replace(configuration=shown)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> UnitReport:
        """Reads a report. Raises KeyError, TypeError or ValueError for what is none."""
        # An agent of an earlier version does not report these.
        data = {"made_by": "", "disk": None, "failing": False, **data}
        values = {name: data[_JSON_KEYS.get(name, name)] for name in UnitReport._fields}
        values["drift"] = tuple(Drift(DriftKind(row["what"]), row["message"]) for row in data["drift"])
        values["disk"] = None if data["disk"] is None else DataDisk(**data["disk"])
        values["requires"], values["listens"] = tuple(data["requires"]), tuple(data["listens"])
        return UnitReport(**values)


# Fields that JSON has by another name.
_JSON_KEYS = {"notice": "remark"}


def report_of(
    unit: Unit, state: UnitState | None, problem: str | None, drift: tuple[Drift, ...], notice: str = ""
) -> UnitReport:
    """The report of a unit. `problem` comes from its probe; a process that does not run takes precedence."""
    if state is None:
        problem = "not started"
    elif not state.is_running:
        problem = state.state.lower()
    return UnitReport(
        name=unit.name,
        kind=unit.kind,
        datacenter=unit.datacenter,
        configuration=unit.configuration.model_dump(mode="json"),
        state=state.state if state else None,
        note=state.note if state else "",
        problem=problem,
        notice=notice if problem is None else "",
        drift=drift,
        pid=state.pid if state and state.pid else None,
        uptime_s=state.uptime_s if state else 0,
        version=unit.version,
        definition=unit.definition,
        requires=unit.requires,
        listens=tuple(map(str, unit.listens)),
        log=str(unit.log_path),
    )


def probed_report(unit: Unit, state: UnitState | None, drift: tuple[Drift, ...] = ()) -> UnitReport:
    """The report of a unit, which is probed if its process runs."""
    problem, notice = None, ""
    if state is not None and state.is_running:
        if isinstance(unit.probe, BalancerProbe):
            problem, notice = unit.probe.look()
        else:
            problem = unit.probe.check()
    return report_of(unit, state, problem, drift, notice)._replace(disk=_disk_of(unit))


def unsupervised_report(unit: Unit, pid: int, uptime_s: int) -> UnitReport:
    """The report of a unit whose process has outlived its supervisor."""
    problem = unit.probe.check()
    return report_of(unit, None, None, ())._replace(
        state=UNSUPERVISED,
        problem="running, supervised by nobody" + (f", and not ready: {problem}" if problem else ""),
        pid=pid,
        uptime_s=uptime_s,
        disk=_disk_of(unit),
    )


def _disk_of(unit: Unit) -> DataDisk | None:
    if unit.data_dir is None:
        return None
    try:
        space = space_of(unit.data_dir)
    except OSError:
        return None
    return DataDisk(str(unit.data_dir), space.free_bytes, space.size_bytes)


# supervisord takes no further action for a unit in one of these states.
_FINAL_STATES = ("STOPPED", "EXITED", "FATAL", "UNKNOWN")


def drift_of(
    unit: Unit, state: UnitState | None, *, is_changed: bool, on_disk: Mapping[Path, str | None]
) -> tuple[Drift, ...]:
    """The differences between the host and the unit.

    `is_changed`: supervisord runs it by an earlier definition. `on_disk`: the texts of the unit's files, None
    for a missing one.
    """
    found = []
    if state is None:
        found.append(Drift(DriftKind.PROCESS, "supervisord does not have it"))
    elif state.state in _FINAL_STATES:
        note = f" ({state.note})" if state.note else ""
        message = f"it is {state.state}{note}, and supervisord will not start it"
        found.append(Drift(DriftKind.PROCESS, message))
    if is_changed:
        found.append(Drift(DriftKind.DEFINITION, "its process was started by an earlier definition"))
    for path, text in unit.files.items():
        if on_disk.get(path) != text:
            what = "is missing" if on_disk.get(path) is None else "was changed by somebody else"
            found.append(Drift(DriftKind.FILE, f"{path} {what}"))
    return tuple(found)


def drift_here(unit: Unit, state: UnitState | None, is_changed: bool) -> tuple[Drift, ...]:
    """The differences between this host and the unit. `is_changed`: as for `drift_of`."""
    on_disk = {path: _text_of(path) for path in unit.files}
    return drift_of(unit, state, is_changed=is_changed, on_disk=on_disk)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None


def outcome_of(is_known: bool, is_same: bool, drift: tuple[Drift, ...]) -> ChangeOutcome:
    """What a PUT does. `is_same`: the unit is defined and configured as before."""
    if not is_known:
        return ChangeOutcome.CREATED
    return ChangeOutcome.UNCHANGED if is_same and not drift else ChangeOutcome.CHANGED
