"""From (name, configuration, host) to the process: every kind's command, files, addresses, probe.

Owns the table `KINDS`, the one way in which a unit is defined. Pure: what of the machine matters is in
`Host`. A further kind is a configuration, a function here, and a line in the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from headrace.agent.airflow_environment import (
    HEARTBEATS,
    AirflowProbe,
    airflow_python,
    airflow_version,
    dags_folder,
)
from headrace.agent.configuration import (
    Airflow,
    Auditor,
    Balancer,
    Broker,
    Configuration,
    Hdfs,
    Mirror,
    Registry,
    ZooKeeper,
)
from headrace.agent.errors import ConfigurationError, FieldProblem
from headrace.agent.probes import (
    BalancerProbe,
    BrokerProbe,
    HdfsProbe,
    HttpProbe,
    ZooKeeperProbe,
)
from headrace.agent.unit import Unit, java, zookeeper_jars
from headrace.site.addresses import Address
from headrace.site.errors import SiteError

# Bounded heaps: a whole site may share one machine with Spark.
ZOOKEEPER_HEAP_START: Final = "-Xms24m"
# One core's worth of threads and no optimising compiler: these servers start often and do little.
SMALL_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")

_LOG4J_TO_CONSOLE: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""


@dataclass(frozen=True)
class Host:
    """What a unit's process needs to know of its machine. `versions`: kind → version of its software."""

    home: Path
    python: str
    java: str
    zookeeper_jars: Path | None
    airflow_python: Path
    dags: Path
    versions: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def here(home: Path) -> Host:
        """This machine, with `home` as the place for state, data and logs."""
        home = home.absolute()
        jars = zookeeper_jars(home)
        try:
            ours = version_of("headrace")
        except PackageNotFoundError:
            ours = "unknown"
        versions = dict.fromkeys(("broker", "balancer", "registry", "mirror", "auditor"), ours)
        versions["zookeeper"] = _version_of_jar(jars, "zookeeper")
        versions["hdfs"] = _version_of_jar(home / "jars" / "hdfs", "hadoop-hdfs")
        versions["airflow"] = airflow_version() or "unknown"
        return Host(home, sys.executable, java(), jars, airflow_python(), dags_folder(), versions)

    def log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def module(self, name: str, *words: object) -> tuple[str, ...]:
        """A command that runs a module of ours."""
        return (self.python, "-m", name, *(str(word) for word in words))


def _version_of_jar(folder: Path | None, name: str) -> str:
    if folder is not None:
        for path in folder.glob(f"{name}-[0-9]*.jar"):
            return path.stem.removeprefix(f"{name}-")
    return "unknown"


def _in_order(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """A mapping has no order: who says the same in another one must not restart the unit."""
    return sorted(settings.items())


def _zookeeper(name: str, said: ZooKeeper, host: Host) -> Unit:
    if host.zookeeper_jars is None:
        raise SiteError(
            f"unit {name} needs ZooKeeper's jars, and they are not here: PySpark brings them (run `make` or "
            "pip install 'headrace[warehouse,fleet]'), or `python -m headrace.warehouse.jars zookeeper` "
            f"fetches them alone into {host.home}"
        )
    directory = said.data_dir or host.home / "data" / name
    settings = {
        "tickTime": 2000,
        "dataDir": directory / "data",
        "clientPortAddress": said.listen.host,
        "clientPort": said.listen.port,
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
        datacenter=said.datacenter,
        kind=said.kind,
        command=(
            host.java,
            *(ZOOKEEPER_HEAP_START, f"-Xmx{said.heap_mib_max}m"),
            *SMALL_JVM,
            f"-Dlog4j2.configurationFile={log4j}",
            "-cp",
            f"{host.zookeeper_jars}/*",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(zoo_cfg),
        ),
        listens=(said.listen,),
        probe=ZooKeeperProbe(said.listen),
        log_path=host.log(name),
        requires=said.requires,
        files={
            zoo_cfg: "".join(f"{key}={value}\n" for key, value in settings.items()),
            log4j: _LOG4J_TO_CONSOLE,
        },
        data_dir=directory,
    )


def _broker(name: str, said: Broker, host: Host) -> Unit:
    directory = said.data_dir or host.home / "data" / name
    return Unit(
        name=name,
        datacenter=said.datacenter,
        kind=said.kind,
        command=host.module(
            "headrace.broker",
            *("--broker-id", said.broker_id),
            *("--datacenter", said.datacenter),
            *("--listen", said.listen),
            *_option("--advertise", said.advertise),
            *_option("--front-listen", said.front_listen),
            *_option("--front-advertise", said.front_advertise),
            *("--zookeeper", said.zookeeper),
            *("--data-dir", directory),
            *(word for key, value in _in_order(said.settings) for word in ("--set", f"{key}={value}")),
        ),
        listens=(said.listen, *([said.front_listen] if said.front_listen else [])),
        probe=BrokerProbe(said.listen, said.broker_id),
        log_path=host.log(name),
        requires=said.requires,
        data_dir=directory,
    )


def _balancer(name: str, said: Balancer, host: Host) -> Unit:
    directory = said.data_dir or host.home / "data" / name
    return Unit(
        name=name,
        datacenter=said.datacenter,
        kind=said.kind,
        command=host.module(
            "headrace.balancer",
            *("--listen", said.listen),
            *("--zookeeper", said.zookeeper),
            *("--directory", directory),
            *("--status", said.status),
            *_option("--statistics", said.statistics),
            *("--engine", said.engine),
            *("--connections-max", said.connections_max),
        ),
        listens=(said.listen, said.status, *([said.statistics] if said.statistics else [])),
        probe=BalancerProbe(f"http://{said.status}/status"),
        log_path=host.log(name),
        requires=said.requires,
        data_dir=directory,
    )


def _registry(name: str, said: Registry, host: Host) -> Unit:
    return Unit(
        name=name,
        datacenter=said.datacenter,
        kind=said.kind,
        command=host.module("headrace.registry", "--listen", said.listen, "--zookeeper", said.zookeeper),
        listens=(said.listen,),
        probe=HttpProbe(f"http://{said.listen}/subjects"),
        log_path=host.log(name),
        requires=said.requires,
    )


def _mirror(name: str, said: Mirror, host: Host) -> Unit:
    return Unit(
        name=name,
        datacenter=said.datacenter,
        kind=said.kind,
        command=host.module(
            "headrace.mirror",
            *("--source-datacenter", said.source),
            *("--source-bootstrap", _together(said.source_bootstrap)),
            *("--target-datacenter", said.datacenter),
            *("--target-bootstrap", _together(said.target_bootstrap)),
            *("--target-zookeeper", said.target_zookeeper),
            *_option("--registry", said.registry_url),
            *_option("--topics", said.topics),
            *_option("--exclude", said.exclude),
            *("--status", said.status),
        ),
        listens=(said.status,),
        probe=HttpProbe(f"http://{said.status}/status"),
        log_path=host.log(name),
        requires=said.requires,
    )


def _auditor(name: str, said: Auditor, host: Host) -> Unit:
    return Unit(
        name=name,
        datacenter=said.datacenter,
        kind=said.kind,
        command=host.module(
            "headrace.audit",
            *("--datacenter", said.datacenter),
            *("--bootstrap", _together(said.bootstrap)),
            *("--registry", ",".join(said.registry_urls)),
            *("--status", said.status),
            *_option("--mirrors-zookeeper", said.mirrors_zookeeper),
            *_option("--store", said.store),
            *_option("--keep-days", said.keep_days),
        ),
        listens=(said.status,),
        probe=HttpProbe(f"http://{said.status}/status"),
        log_path=host.log(name),
        requires=said.requires,
    )


def _hdfs(name: str, said: Hdfs, host: Host) -> Unit:
    directory = said.data_dir or host.home / "data" / name
    ports = (said.rpc_port, said.http_port, said.data_port, said.data_ipc_port, said.data_http_port)
    options = ("--rpc-port", "--http-port", "--data-port", "--data-ipc-port", "--data-http-port")
    return Unit(
        name=name,
        datacenter=said.datacenter,
        kind=said.kind,
        command=host.module(
            "headrace.warehouse.hdfs",
            *("--host", said.host),
            *("--data-dir", directory),
            *(word for pair in zip(options, ports, strict=True) for word in pair),
            *(word for key, value in _in_order(said.settings) for word in ("--set", f"{key}={value}")),
        ),
        listens=tuple(Address(said.host, port) for port in ports),
        probe=HdfsProbe(f"http://{said.host}:{said.http_port}"),
        log_path=host.log(name),
        requires=said.requires,
        # Read by the java launcher; a start costs 5 s of CPU so, and 8 s with the optimising compiler.
        environment={"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
        start_timeout_s=120.0,
        data_dir=directory,
    )


def _airflow(name: str, said: Airflow, host: Host) -> Unit:
    home, url = said.home or host.home / "airflow", f"http://{said.listen}"
    connections = home / "connections.json"
    is_api = said.component == "api-server"
    return Unit(
        name=name,
        datacenter=said.datacenter,
        kind=said.kind,
        command=(
            str(said.python or host.airflow_python),
            *("-m", "headrace.airflow.run", said.component),
            *("--home", str(home)),
            *("--listen", str(said.listen)),
            *("--dags", str(said.dags or host.dags)),
            *(("--connections", str(connections)) if is_api else ()),
            *(("--database-url", said.database_url) if said.database_url else ()),
        ),
        listens=(said.listen,) if is_api else (),
        probe=(
            HttpProbe(f"{url}/api/v2/monitor/health")
            if is_api
            else AirflowProbe(url, HEARTBEATS[said.component])
        ),
        log_path=host.log(name),
        requires=said.requires,
        files={connections: json.dumps(said.connections, indent=1, sort_keys=True)} if is_api else {},
        # The first start makes the database.
        start_timeout_s=120.0,
        # A running task is told to stop, and to stop its Spark application.
        stop_timeout_s=20,
    )


def _together(addresses: tuple[Address, ...]) -> str:
    return ",".join(map(str, addresses))


def _option(name: str, value: object) -> tuple[object, ...]:
    return () if value is None else (name, value)


class Kind(NamedTuple):
    """A kind of unit: its configuration, and what it becomes on a host."""

    configuration: type[Configuration]
    make: Callable[[str, Any, Host], Unit]


Kinds = Mapping[str, Kind]
KINDS: Final[Kinds] = {
    "zookeeper": Kind(ZooKeeper, _zookeeper),
    "broker": Kind(Broker, _broker),
    "balancer": Kind(Balancer, _balancer),
    "registry": Kind(Registry, _registry),
    "mirror": Kind(Mirror, _mirror),
    "auditor": Kind(Auditor, _auditor),
    "hdfs": Kind(Hdfs, _hdfs),
    "airflow": Kind(Airflow, _airflow),
}


def unit_of(name: str, configuration: Configuration, host: Host, kinds: Kinds = KINDS) -> Unit:
    """The unit that a configuration means on a host. Raises `SiteError` for what the host does not have."""
    made = kinds[configuration.kind].make(name, configuration, host)
    return made.put_as(configuration, host.versions.get(configuration.kind, ""))


def parse_configuration(name: str, data: object, kinds: Kinds = KINDS) -> Configuration:
    """JSON data as a configuration.

    Raises `ConfigurationError` that names the unit, and each wrong field with its value.
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        reason = f"no kind of unit; there are {', '.join(sorted(kinds))}"
        raise ConfigurationError(name, [FieldProblem("kind", repr(kind), reason)])
    try:
        return kinds[kind].configuration.model_validate(data)
    except ValidationError as error:
        known = ", ".join(kinds[kind].configuration.model_fields)
        raise ConfigurationError(name, [_problem(dict(each), known) for each in error.errors()]) from error


def _problem(error: Mapping[str, Any], known: str) -> FieldProblem:
    field_name = ".".join(str(part) for part in error["loc"]) or "configuration"
    if error["type"] == "missing":
        return FieldProblem(field_name, "not said", "this kind needs it")
    if error["type"] == "extra_forbidden":
        return FieldProblem(field_name, repr(error["input"]), f"no field of this kind, which has {known}")
    value = repr(error["input"]) if error["loc"] else "as a whole"
    return FieldProblem(field_name, value, error["msg"].removeprefix("Value error, "))
