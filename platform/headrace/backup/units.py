"""What a home runs and keeps: its units, the disks' folders of each, and the order in which they are copied.

Owns the order, which makes the copies fit together (docs/decisions/0021-backups.md). Reads the agent, or what
it recorded, or the site's description; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.agent.client import REQUEST_TIMEOUT_S
from headrace.agent.configuration import (
    BrokerConfiguration,
    Configuration,
    MirrorConfiguration,
    ZooKeeperConfiguration,
    secret_fields,
)
from headrace.agent.host import Host
from headrace.agent.kinds import parse_configuration, unit_of
from headrace.agent.report import UnitReport
from headrace.agent.unit import Unit
from headrace.backup.errors import UnitUnreachableError
from headrace.fleet.status import unit_reports
from headrace.site.site import Site

DATA: Final = "data"


@dataclass(frozen=True)
class HomeUnit:
    """A unit of the home: what it is, and whether it runs now. `pid` None: it does not. `is_restarting`: it
    ends again and again, and will be started the next moment.
    """

    unit: Unit
    pid: int | None
    problem: str | None
    is_restarting: bool = False

    @property
    def name(self) -> str:
        return self.unit.name

    @property
    def configuration(self) -> Configuration:
        return self.unit.configuration

    @property
    def directory(self) -> Path:
        assert self.unit.data_dir is not None, f"{self.name} keeps no data"
        return self.unit.data_dir

    def data_problem(self) -> str | None:
        """Returns why its folder cannot be read; None if it can."""
        try:
            if not self.directory.exists():
                return f"its data is not there: {self.directory}; is its disk mounted?"
            next(self.directory.iterdir(), None)
        except OSError as error:
            return f"its data cannot be read: {self.directory}: {error.strerror}"
        return None

    def is_asked(self) -> bool:
        """Whether its data is asked for, instead of read from its files. Raises `UnitUnreachableError` if it
        runs and does not answer.
        """
        if self.is_restarting:
            raise UnitUnreachableError(
                f"unit {self.name} ends again and again, and is started each time: its files would change "
                "while they are copied. Mend it (`headrace logs` says what is wrong), or stop it with "
                "`headrace down`; then repeat"
            )
        if self.pid is None:
            return False
        if self.problem is not None:
            raise UnitUnreachableError(
                f"unit {self.name} runs as process {self.pid}, and does not answer "
                f"({self.problem}): wait until "
                "it does, or stop it with `headrace down`; then repeat"
            )
        return True


def units_in(site: Site) -> list[HomeUnit]:
    """Returns all units of the home. Those that `headrace status` shows in state BACKOFF wait for their next
    start."""
    host = Host.here(site.home)
    reports = unit_reports(site, agent_max_s=REQUEST_TIMEOUT_S)
    return [_home_unit(report, host) for report in reports]


def _home_unit(report: UnitReport, host: Host) -> HomeUnit:
    configuration = parse_configuration(report.name, dict(report.configuration))
    unit = unit_of(report.name, configuration, host)
    return HomeUnit(unit, report.pid or None, report.problem, report.state == "BACKOFF")


def of_kind(units: Iterable[HomeUnit], kind: type[Configuration]) -> list[HomeUnit]:
    return [each for each in units if isinstance(each.configuration, kind)]


def datacenters_in_order(units: Sequence[HomeUnit]) -> list[str]:
    """Returns the datacenters that have logs or a ZooKeeper here; those that mirrors copy into come before
    those that they copy from: so no copy ends behind its source.
    """
    kept = {
        each.configuration.datacenter
        for each in units
        if isinstance(each.configuration, BrokerConfiguration | ZooKeeperConfiguration)
    }
    targets: dict[str, set[str]] = {}
    for each in of_kind(units, MirrorConfiguration):
        assert isinstance(each.configuration, MirrorConfiguration)
        targets.setdefault(each.configuration.source, set()).add(each.configuration.datacenter)
    ordered: list[str] = []

    def place(name: str, behind: tuple[str, ...] = ()) -> None:
        for target in sorted(targets.get(name, ())):
            if target not in behind:
                place(target, (*behind, name))
        if name in kept and name not in ordered:
            ordered.append(name)

    for name in sorted(kept):
        place(name)
    return ordered


def data_below(home: Path, unit: Unit) -> str:
    """Returns where a unit's data belongs below a home: where it is, or by its name if that is elsewhere."""
    assert unit.data_dir is not None
    try:
        return str(unit.data_dir.relative_to(home.absolute()))
    except ValueError:
        return f"{DATA}/{unit.name}"


def shown(configuration: Configuration) -> Mapping[str, Any]:
    """Returns a configuration without its passwords, for the manifest."""
    hidden = secret_fields(type(configuration))
    values = configuration.model_dump(mode="json")
    return {name: "(hidden)" if name in hidden and value else value for name, value in values.items()}
