"""One supervised process as data, and the order in which units start.

Owns `Unit`: a process and what must be ready before it, and `UnitState`. Starts nothing and touches no file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from headrace.agent.configuration import Configuration
from headrace.agent.probes import Probe
from headrace.site.addresses import Address
from headrace.site.errors import SiteError


@dataclass(frozen=True, kw_only=True)
class UnitProcess:
    """How a unit's process is started and probed: what its kind decides.

    `files` are written before the start: path → text. `data_dir` belongs to this unit alone. `page_url`: its
    page for people, None if it has none. `kept_before`: folder → where an earlier version had it, from where
    it is brought before the start.
    """

    command: tuple[str, ...]
    listens: tuple[Address, ...]
    probe: Probe
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    kept_before: Mapping[Path, Path] = field(default_factory=dict)
    start_timeout_s: float = 60.0
    stop_timeout_s: int = 15
    stop_signal: str = "TERM"
    data_dir: Path | None = None
    page_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class Unit(UnitProcess):
    """One supervised process of a host.

    `requires` names the units that must be ready before this one is first started; after a crash it comes
    back alone and has to wait for them by itself. `configuration` is what it was made of, `version` that of
    its software.
    """

    name: str
    datacenter: str
    kind: str
    log_path: Path
    requires: tuple[str, ...]
    configuration: Configuration
    version: str

    @cached_property
    def definition(self) -> str:
        """A digest of all that the process depends on; when it changes, the unit has to be restarted."""
        files = {str(path): text for path, text in self.files.items()}
        parts = [self.command, dict(self.environment), files, str(self.log_path), self.version]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class UnitState(NamedTuple):
    """What supervisord reports of a unit; `state` is its name there: RUNNING, BACKOFF, STOPPED, …"""

    name: str
    state: str
    pid: int
    uptime_s: int
    note: str
    ended_s: int = 0
    """When its last process ended, in Unix seconds; 0 if none has."""

    @property
    def is_running(self) -> bool:
        return self.state in ("STARTING", "RUNNING")


def in_order(units: Iterable[Unit]) -> list[Unit]:
    """Sorts units by the depth of their requirements; to stop them, go through the result backwards."""
    by_name = {unit.name: unit for unit in units}
    depths: dict[str, int] = {}

    def depth(name: str, required_by: tuple[str, ...] = ()) -> int:
        if name in required_by:
            raise SiteError(f"units require each other in a circle: {' → '.join((*required_by, name))}")
        if name not in by_name:
            raise SiteError(f"unit {required_by[-1]} requires {name}, which is not a unit of this site")
        if name not in depths:
            path = (*required_by, name)
            depths[name] = 1 + max((depth(other, path) for other in by_name[name].requires), default=-1)
        return depths[name]

    return sorted(by_name.values(), key=lambda unit: depth(unit.name))


def levels(units: Iterable[Unit]) -> list[list[Unit]]:
    """Groups units so that each requires only units of earlier groups."""
    grouped: list[list[Unit]] = []
    level_of: dict[str, int] = {}
    for unit in in_order(units):
        level = 1 + max((level_of[name] for name in unit.requires), default=-1)
        level_of[unit.name] = level
        if level == len(grouped):
            grouped.append([])
        grouped[level].append(unit)
    return grouped
