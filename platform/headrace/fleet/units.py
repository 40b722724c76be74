"""The units of a site: what each supervised process is told, and what must be ready before it.

Owns `Unit`, one supervised process as data, and the way from a site to the typed configurations of its units,
which are the ones that a host's agent is put. What a configuration becomes on a host is `fleet.agent.kinds`'.
Starts nothing and touches no file: `fleet.supervisor` runs units, `fleet.agent` and `fleet.operate` decide
when.
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
from typing import Final

from pydantic import ValidationError

from headrace.fleet.agent import configuration as said
from headrace.fleet.agent.configuration import Configuration
from headrace.fleet.airflow_units import airflow_configurations
from headrace.fleet.errors import FleetError, SiteFileError
from headrace.fleet.probes import Probe
from headrace.fleet.site import (
    Address,
    Datacenter,
    Mirror,
    Site,
)

# What a broker of this one machine is told beyond its own defaults. Events of any age are kept (an access log
# of 2015 is as good an input as today's), within a bound of bytes a partition.
BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
    "log.retention.ms": "-1",
    "log.retention.bytes": str(2 << 30),
}


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


def units_of(site: Site) -> tuple[Unit, ...]:
    """All units of the site on this host, each after those it requires."""
    # The agent's units are this module's: it is imported late.
    from headrace.fleet.agent.kinds import Host, unit_of

    host = Host.here(site.home)
    try:
        configurations = configurations_of(site)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(map(str, first["loc"]))
        raise SiteFileError(
            f"the site in {site.home} cannot be: {error.title}: {field_name}: {first['msg']}"
            f" (it says {first['input']!r})"
        ) from error
    return tuple(in_order(unit_of(name, each, host) for name, each in configurations.items()))


def configurations_of(site: Site) -> dict[str, Configuration]:
    """What each unit of the site is told, by its name."""
    made: dict[str, Configuration] = {}
    for datacenter in site.datacenters:
        made[f"{datacenter.name}-zookeeper"] = _zookeeper(site, datacenter)
        for broker_id in datacenter.brokers:
            made[f"{datacenter.name}-broker-{broker_id}"] = _broker(site, datacenter, broker_id)
        made[f"{datacenter.name}-registry"] = _registry(datacenter)
    for datacenter in site.sources:
        made[f"{datacenter.name}-balancer"] = _balancer(site, datacenter)
    made[f"{site.warehouse}-hdfs"] = _hdfs(site)
    for mirror in site.mirrors:
        made[f"{mirror.target}-mirror-{mirror.source}"] = _mirror(site, mirror)
    for datacenter in site.datacenters:
        made[f"{datacenter.name}-auditor"] = _auditor(site, datacenter)
    if site.airflow:
        made |= airflow_configurations(site)
    return made


def in_order(units: Iterable[Unit]) -> list[Unit]:
    """The same units, sorted by depth of their requirements; stopping goes through them backwards."""
    by_name = {unit.name: unit for unit in units}
    depths: dict[str, int] = {}

    def depth(name: str, below: tuple[str, ...] = ()) -> int:
        if name in below:
            raise FleetError(f"units require each other in a circle: {' → '.join((*below, name))}")
        if name not in by_name:
            raise FleetError(f"unit {below[-1]} requires {name}, which is not a unit of this site")
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


def _data(site: Site, datacenter: str, name: str) -> Path:
    return site.home / "data" / datacenter / name


def _zookeeper(site: Site, datacenter: Datacenter) -> Configuration:
    return said.ZooKeeper(
        datacenter=datacenter.name,
        listen=datacenter.zookeeper,
        data_dir=_data(site, datacenter.name, "zookeeper"),
    )


def _broker(site: Site, datacenter: Datacenter, broker_id: int) -> Configuration:
    has_balancer = datacenter in site.sources
    return said.Broker(
        datacenter=datacenter.name,
        requires=(f"{datacenter.name}-zookeeper",),
        broker_id=broker_id,
        listen=datacenter.brokers[broker_id],
        front_listen=datacenter.front(broker_id) if has_balancer else None,
        front_advertise=datacenter.balancer if has_balancer else None,
        zookeeper=str(datacenter.zookeeper),
        data_dir=_data(site, datacenter.name, f"broker-{broker_id}"),
        settings={**BROKER_SETTINGS, **datacenter.broker_settings},
    )


def _balancer(site: Site, datacenter: Datacenter) -> Configuration:
    return said.Balancer(
        datacenter=datacenter.name,
        # It finds brokers as they come and go; that they are required makes it leave before they do.
        requires=_brokers(datacenter),
        listen=datacenter.balancer,
        zookeeper=str(datacenter.zookeeper),
        status=datacenter.balancer_status,
        statistics=datacenter.haproxy_statistics,
        data_dir=_data(site, datacenter.name, "balancer"),
    )


def _registry(datacenter: Datacenter) -> Configuration:
    return said.Registry(
        datacenter=datacenter.name,
        requires=(f"{datacenter.name}-zookeeper",),
        listen=datacenter.registry,
        zookeeper=str(datacenter.zookeeper),
    )


def _hdfs(site: Site) -> Configuration:
    return said.Hdfs(
        datacenter=site.warehouse,
        host=site.namenode.host,
        data_dir=_data(site, site.warehouse, "hdfs"),
    )


def _mirror(site: Site, mirror: Mirror) -> Configuration:
    source, target = site.datacenter(mirror.source), site.datacenter(mirror.target)
    return said.Mirror(
        datacenter=target.name,
        requires=_brokers(source) + _brokers(target),
        source=source.name,
        source_bootstrap=tuple(source.bootstrap_brokers.values()),
        target_bootstrap=tuple(target.bootstrap_brokers.values()),
        target_zookeeper=str(target.zookeeper),
        registry_url=target.registry_url,
        status=site.mirror_status(mirror),
    )


def _auditor(site: Site, datacenter: Datacenter) -> Configuration:
    mirrored = [mirror.source for mirror in site.mirrors if mirror.target == datacenter.name]
    return said.Auditor(
        datacenter=datacenter.name,
        requires=(*_brokers(datacenter), f"{datacenter.name}-registry"),
        bootstrap=tuple(datacenter.bootstrap_brokers.values()),
        # What is mirrored was written with schemas of its own datacenter's registry.
        registry_urls=tuple(site.datacenter(name).registry_url for name in (datacenter.name, *mirrored)),
        status=datacenter.auditor,
        mirrors_zookeeper=str(datacenter.zookeeper) if mirrored else None,
        store=site.audit_store_url if datacenter.name == site.warehouse else None,
    )


def _brokers(datacenter: Datacenter) -> tuple[str, ...]:
    return tuple(f"{datacenter.name}-broker-{broker_id}" for broker_id in datacenter.bootstrap_brokers)
