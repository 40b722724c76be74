"""One supervised process as data, and the order in which units start.

Owns `Unit`: what a process is told and what must be ready before it. Starts nothing and touches no file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from headrace.agent.configuration import Configuration
from headrace.agent.probes import Probe
from headrace.site.addresses import Address
from headrace.site.errors import SiteError


@dataclass(frozen=True)
class Unit:
    """One supervised process.

    `requires` names the units that must be ready before this one is first started; after a crash it comes
    back alone and has to wait for them by itself. `files` are written before the start: path → text.
    `data_dir` is the unit's alone. `configuration` is what it was made of, `version` that of its software.
    """

    name: str
    datacenter: str
    kind: str
    command: tuple[str, ...]
    listens: tuple[Address, ...]
    probe: Probe
    log_path: Path
    requires: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    start_timeout_s: float = 60.0
    stop_timeout_s: int = 15
    data_dir: Path | None = None
    configuration: Configuration | None = None
    version: str = ""

    def put_as(self, configuration: Configuration, version: str) -> Unit:
        """The same unit, with what it was made of."""
        return replace(self, configuration=configuration, version=version)

    @cached_property
    def definition(self) -> str:
        """A short name for all that the process depends on; a unit with another one has to be restarted."""
        files = {str(path): text for path, text in self.files.items()}
        told = [self.command, dict(self.environment), files, str(self.log_path), self.version]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def in_order(units: Iterable[Unit]) -> list[Unit]:
    """The same units, sorted by depth of their requirements; stopping goes through them backwards."""
    by_name = {unit.name: unit for unit in units}
    depths: dict[str, int] = {}

    def depth(name: str, below: tuple[str, ...] = ()) -> int:
        if name in below:
            raise SiteError(f"units require each other in a circle: {' → '.join((*below, name))}")
        if name not in by_name:
            raise SiteError(f"unit {below[-1]} requires {name}, which is not a unit of this site")
        if name not in depths:
            depths[name] = 1 + max(
                (depth(other, (*below, name)) for other in by_name[name].requires), default=-1
            )
        return depths[name]

    return sorted(by_name.values(), key=lambda unit: depth(unit.name))


def levels(units: Iterable[Unit]) -> list[list[Unit]]:
    """Units grouped so that each requires only units of earlier groups."""
    grouped: list[list[Unit]] = []
    placed: dict[str, int] = {}
    for unit in in_order(units):
        level = 1 + max((placed[name] for name in unit.requires), default=-1)
        placed[unit.name] = level
        if level == len(grouped):
            grouped.append([])
        grouped[level].append(unit)
    return grouped


def java() -> str:
    """The `java` to start: of `$JAVA_HOME` when set, else of the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def zookeeper_jars(home: Path) -> Path | None:
    """A folder of jars that hold a whole ZooKeeper server: PySpark's own, else those that
    `python -m headrace.warehouse.jars zookeeper` has fetched into this home. None: neither is here.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "jars"
    fetched = home / "jars" / "zookeeper"
    return fetched if fetched.is_dir() else None
