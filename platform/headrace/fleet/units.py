"""The units of a site: what each supervised process is, as data.

Owns every unit's command, environment, files, addresses, readiness probe and what must be ready before it.
Starts nothing and touches no file: `fleet.supervisor` runs units, `fleet.operate` decides when.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .errors import FleetError
from .probes import BalancerProbe, BrokerProbe, HdfsProbe, HttpProbe, Probe, ZooKeeperProbe
from .site import Address, Datacenter, Mirror, Site

# Bounded heaps: the whole site shares one machine with Spark.
ZOOKEEPER_HEAP: Final = ("-Xms24m", "-Xmx128m")
# One core's worth of threads and no optimising compiler: these servers start often and do little.
SMALL_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")

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


def units_of(site: Site) -> tuple[Unit, ...]:
    """All units of the site, each after those it requires."""
    units: list[Unit] = []
    for datacenter in site.datacenters:
        units.append(_zookeeper(site, datacenter))
        units += (_broker(site, datacenter, broker_id) for broker_id in datacenter.brokers)
        units.append(_registry(site, datacenter))
    units += (_balancer(site, datacenter) for datacenter in site.sources)
    units.append(_hdfs(site))
    units += (_mirror(site, mirror) for mirror in site.mirrors)
    units += (_auditor(site, datacenter) for datacenter in site.datacenters)
    if site.airflow:
        # Its units are built of this module's.
        from .airflow_units import airflow_units

        units += airflow_units(site)
    return tuple(in_order(units))


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


def pyspark_jars() -> Path:
    """The folder of PySpark's own jars, which hold a whole ZooKeeper server.

    Raises `FleetError` when PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise FleetError(
            "pyspark is not installed here; run `make` or pip install 'headrace[warehouse,fleet]'"
        )
    return Path(spec.submodule_search_locations[0]) / "jars"


def _python(module: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *(str(argument) for argument in arguments))


def _log(site: Site, name: str) -> Path:
    return site.home / "logs" / f"{name}.log"


def _zookeeper(site: Site, datacenter: Datacenter) -> Unit:
    name = f"{datacenter.name}-zookeeper"
    directory = site.home / "data" / datacenter.name / "zookeeper"
    address = datacenter.zookeeper
    configuration = {
        "tickTime": 2000,
        "dataDir": directory / "data",
        "clientPortAddress": address.host,
        "clientPort": address.port,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr",
        # kB; the default of 64 MB is for ensembles with a disk of their own.
        "preAllocSize": 1024,
        "maxClientCnxns": 1000,
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 12,
    }
    zoo_cfg, log4j = directory / "zoo.cfg", directory / "log4j2.properties"
    return Unit(
        name=name,
        datacenter=datacenter.name,
        kind="zookeeper",
        command=(
            java(),
            *ZOOKEEPER_HEAP,
            *SMALL_JVM,
            f"-Dlog4j2.configurationFile={log4j}",
            "-cp",
            f"{pyspark_jars()}/*",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(zoo_cfg),
        ),
        listens=(address,),
        probe=ZooKeeperProbe(address),
        log_path=_log(site, name),
        files={
            zoo_cfg: "".join(f"{key}={value}\n" for key, value in configuration.items()),
            log4j: _LOG4J_TO_CONSOLE,
        },
    )


_LOG4J_TO_CONSOLE = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""


def _broker(site: Site, datacenter: Datacenter, broker_id: int) -> Unit:
    name = f"{datacenter.name}-broker-{broker_id}"
    address = datacenter.brokers[broker_id]
    settings = {**BROKER_SETTINGS, **datacenter.broker_settings}
    listens = [address]
    front: list[object] = []
    if datacenter in site.sources:
        listens.append(datacenter.front(broker_id))
        front = ["--front-listen", listens[-1], "--front-advertise", datacenter.balancer]
    return Unit(
        name=name,
        datacenter=datacenter.name,
        kind="broker",
        command=_python(
            "headrace.broker",
            *("--broker-id", broker_id),
            *("--datacenter", datacenter.name),
            *("--listen", address),
            *front,
            *("--zookeeper", datacenter.zookeeper),
            *("--data-dir", site.home / "data" / datacenter.name / f"broker-{broker_id}"),
            *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
        ),
        listens=tuple(listens),
        probe=BrokerProbe(address, broker_id),
        log_path=_log(site, name),
        requires=(f"{datacenter.name}-zookeeper",),
    )


def _balancer(site: Site, datacenter: Datacenter) -> Unit:
    name = f"{datacenter.name}-balancer"
    return Unit(
        name=name,
        datacenter=datacenter.name,
        kind="balancer",
        command=_python(
            "headrace.fleet.balancer",
            *("--listen", datacenter.balancer),
            *("--zookeeper", datacenter.zookeeper),
            *("--directory", site.home / "data" / datacenter.name / "balancer"),
            *("--status", datacenter.balancer_status),
            *("--statistics", datacenter.haproxy_statistics),
        ),
        listens=(datacenter.balancer, datacenter.balancer_status, datacenter.haproxy_statistics),
        probe=BalancerProbe(f"http://{datacenter.balancer_status}/status"),
        log_path=_log(site, name),
        # It finds brokers as they come and go; that they are required makes it leave before they do.
        requires=_brokers(datacenter),
    )


def _registry(site: Site, datacenter: Datacenter) -> Unit:
    name = f"{datacenter.name}-registry"
    return Unit(
        name=name,
        datacenter=datacenter.name,
        kind="registry",
        command=_python(
            "headrace.registry", "--listen", datacenter.registry, "--zookeeper", datacenter.zookeeper
        ),
        listens=(datacenter.registry,),
        probe=HttpProbe(f"{datacenter.registry_url}/subjects"),
        log_path=_log(site, name),
        requires=(f"{datacenter.name}-zookeeper",),
    )


def _hdfs(site: Site) -> Unit:
    name = f"{site.warehouse}-hdfs"
    return Unit(
        name=name,
        datacenter=site.warehouse,
        kind="hdfs",
        command=_python(
            "headrace.warehouse.hdfs",
            *("--host", site.namenode.host),
            *("--data-dir", site.home / "data" / site.warehouse / "hdfs"),
        ),
        listens=(site.namenode, site.webhdfs, *site.datanode),
        probe=HdfsProbe(site.webhdfs_url),
        log_path=_log(site, name),
        # Read by the java launcher; a start costs 5 s of CPU so, and 8 s with the optimising compiler.
        environment={"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
        start_timeout_s=120.0,
    )


def _mirror(site: Site, mirror: Mirror) -> Unit:
    name = f"{mirror.target}-mirror-{mirror.source}"
    source, target = site.datacenter(mirror.source), site.datacenter(mirror.target)
    status = site.mirror_status(mirror)
    return Unit(
        name=name,
        datacenter=mirror.target,
        kind="mirror",
        command=_python(
            "headrace.mirror",
            *("--source-datacenter", source.name),
            *("--source-bootstrap", source.bootstrap),
            *("--target-bootstrap", target.bootstrap),
            *("--target-zookeeper", target.zookeeper),
            *("--registry", target.registry_url),
            *("--status", status),
        ),
        listens=(status,),
        probe=HttpProbe(f"http://{status}/status"),
        log_path=_log(site, name),
        requires=_brokers(source) + _brokers(target),
    )


def _auditor(site: Site, datacenter: Datacenter) -> Unit:
    name = f"{datacenter.name}-auditor"
    extra: list[object] = []
    mirrored = [mirror.source for mirror in site.mirrors if mirror.target == datacenter.name]
    if mirrored:
        extra += ["--mirrors-zookeeper", datacenter.zookeeper]
    # What is mirrored was written with schemas of its own datacenter's registry.
    registries = [site.datacenter(name).registry_url for name in (datacenter.name, *mirrored)]
    if datacenter.name == site.warehouse:
        extra += ["--store", site.audit_store_url]
    return Unit(
        name=name,
        datacenter=datacenter.name,
        kind="auditor",
        command=_python(
            "headrace.audit",
            *("--datacenter", datacenter.name),
            *("--bootstrap", datacenter.bootstrap),
            *("--registry", ",".join(registries)),
            *("--status", datacenter.auditor),
            *extra,
        ),
        listens=(datacenter.auditor,),
        probe=HttpProbe(f"http://{datacenter.auditor}/status"),
        log_path=_log(site, name),
        requires=(*_brokers(datacenter), f"{datacenter.name}-registry"),
    )


def _brokers(datacenter: Datacenter) -> tuple[str, ...]:
    return tuple(f"{datacenter.name}-broker-{broker_id}" for broker_id in datacenter.brokers)
