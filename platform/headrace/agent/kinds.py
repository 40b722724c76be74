"""The kinds of unit: from a name, a configuration and a host to the process.

Owns the table `KINDS`, the one way in which a unit is defined. Pure: what it needs to know of the machine is
in `Host`. A further kind is a model in `configuration`, a function here, and a line in the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from headrace.agent.airflow_environment import AIRFLOW_PROBE_TIMEOUT_S, HEARTBEATS, VARIABLES, AirflowProbe
from headrace.agent.configuration import (
    RACK_SETTING,
    AirflowConfiguration,
    AuditorConfiguration,
    BalancerConfiguration,
    BrokerConfiguration,
    Configuration,
    HdfsConfiguration,
    MirrorConfiguration,
    PostgresqlConfiguration,
    RegistryConfiguration,
    ZooKeeperConfiguration,
)
from headrace.agent.errors import ConfigurationError, FieldProblem
from headrace.agent.host import Host
from headrace.agent.probes import (
    BalancerProbe,
    BrokerProbe,
    HdfsProbe,
    HttpProbe,
    PostgresqlProbe,
    ZooKeeperProbe,
)
from headrace.agent.properties import misread, properties_text
from headrace.agent.unit import Unit, UnitProcess
from headrace.postgresql.place import SOCKET_NAME, database_url, socket_folder
from headrace.process.nearest import question
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


def _module(python: str | Path, module: str, *arguments: str, **options: object) -> tuple[str, ...]:
    """A command that runs a Python module with `--option VALUE` for each option, in the order given.

    None leaves an option out, a tuple is joined by commas, and a mapping repeats the option for each
    `NAME=VALUE`: sorted, so that reordering settings does not restart the unit.
    """
    words = [str(python), "-m", module, *arguments]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            for setting in sorted(value.items()):
                words += [flag, "=".join(setting)]
        elif isinstance(value, tuple) and not isinstance(value, Address):
            words += [flag, ",".join(map(str, value))]
        elif value is not None:
            words += [flag, str(value)]
    return tuple(words)


def _given(*addresses: Address | None) -> tuple[Address, ...]:
    return tuple(address for address in addresses if address is not None)


def _page(address: Address) -> str:
    return f"http://{address}/"


def _zookeeper(name: str, configuration: ZooKeeperConfiguration, host: Host) -> UnitProcess:
    if host.zookeeper_jars is None:
        raise SiteError(
            f"unit {name} needs ZooKeeper's jars, which are not installed: run `make setup` or "
            "`pip install 'headrace[warehouse,fleet]'` (PySpark has them), or fetch them alone into "
            f"{host.home} by `python -m headrace.warehouse.jars zookeeper`"
        )
    directory = configuration.data_dir or host.data(name)
    settings = {
        "tickTime": 2000,
        "dataDir": directory / "data",
        "clientPortAddress": configuration.listen.host,
        "clientPort": configuration.listen.port,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr",
        # kB; the default of 64 MB is for ensembles with a disk of their own.
        "preAllocSize": 1024,
        "maxClientCnxns": 1000,
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 12,
    }
    zoo_cfg, log4j = directory / "zoo.cfg", directory / "log4j2.properties"
    return UnitProcess(
        command=(
            host.java,
            *(ZOOKEEPER_HEAP_START, f"-Xmx{configuration.heap_mib_max}m"),
            *SMALL_JVM,
            f"-Dlog4j2.configurationFile={log4j}",
            "-cp",
            f"{host.zookeeper_jars}/*",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(zoo_cfg),
        ),
        listens=(configuration.listen,),
        probe=ZooKeeperProbe(configuration.listen),
        files={
            zoo_cfg: properties_text(settings),
            log4j: _LOG4J_TO_CONSOLE,
        },
        data_dir=directory,
        # Its files had no escapes before.
        kept_before={directory / "data": misread(directory / "data")},
    )


def _broker(name: str, configuration: BrokerConfiguration, host: Host) -> UnitProcess:
    directory = configuration.data_dir or host.data(name)
    return UnitProcess(
        command=_module(
            host.python,
            "headrace.broker",
            broker_id=configuration.broker_id,
            datacenter=configuration.datacenter,
            listen=configuration.listen,
            advertise=configuration.advertise,
            front_listen=configuration.front_listen,
            front_advertise=configuration.front_advertise,
            zookeeper=configuration.zookeeper,
            data_dir=directory,
            set={
                **configuration.settings,
                **({} if configuration.rack is None else {RACK_SETTING: configuration.rack}),
            },
            status=configuration.status,
        ),
        listens=_given(configuration.listen, configuration.front_listen, configuration.status),
        probe=BrokerProbe(configuration.listen, configuration.broker_id),
        page_url=None if configuration.status is None else _page(configuration.status),
        data_dir=directory,
    )


def _balancer(name: str, configuration: BalancerConfiguration, host: Host) -> UnitProcess:
    directory = configuration.data_dir or host.data(name)
    return UnitProcess(
        command=_module(
            host.python,
            "headrace.balancer",
            listen=configuration.listen,
            zookeeper=configuration.zookeeper,
            directory=directory,
            status=configuration.status,
            statistics=configuration.statistics,
            engine=configuration.engine,
            connections_max=configuration.connections_max,
        ),
        listens=_given(configuration.listen, configuration.status, configuration.statistics),
        probe=BalancerProbe(f"http://{configuration.status}/status"),
        page_url=_page(configuration.status),
        data_dir=directory,
    )


def _registry(name: str, configuration: RegistryConfiguration, host: Host) -> UnitProcess:
    return UnitProcess(
        command=_module(
            host.python,
            "headrace.registry",
            listen=configuration.listen,
            zookeeper=configuration.zookeeper,
            sources=configuration.sources or None,
        ),
        listens=(configuration.listen,),
        probe=HttpProbe(f"http://{configuration.listen}/subjects"),
        page_url=_page(configuration.listen),
    )


def _mirror(name: str, configuration: MirrorConfiguration, host: Host) -> UnitProcess:
    return UnitProcess(
        command=_module(
            host.python,
            "headrace.mirror",
            source_datacenter=configuration.source,
            source_bootstrap=configuration.source_bootstrap,
            target_datacenter=configuration.datacenter,
            target_bootstrap=configuration.target_bootstrap,
            target_zookeeper=configuration.target_zookeeper,
            registry=configuration.registry_url,
            topics=configuration.topics,
            exclude=configuration.exclude,
            status=configuration.status,
        ),
        listens=(configuration.status,),
        probe=HttpProbe(f"http://{configuration.status}/status"),
        page_url=_page(configuration.status),
    )


def _auditor(name: str, configuration: AuditorConfiguration, host: Host) -> UnitProcess:
    store = host.secret(name) if configuration.store else None
    return UnitProcess(
        command=_module(
            host.python,
            "headrace.audit",
            datacenter=configuration.datacenter,
            bootstrap=configuration.bootstrap,
            registry=configuration.registry_urls,
            status=configuration.status,
            mirrors_zookeeper=configuration.mirrors_zookeeper,
            store_file=store,
            keep_days=configuration.keep_days,
        ),
        listens=(configuration.status,),
        probe=HttpProbe(f"http://{configuration.status}/status"),
        page_url=_page(configuration.status),
        files={store: configuration.store} if store and configuration.store else {},
    )


def _hdfs(name: str, configuration: HdfsConfiguration, host: Host) -> UnitProcess:
    directory = configuration.data_dir or host.data(name)
    ports = {
        port: getattr(configuration, port)
        for port in ("rpc_port", "http_port", "data_port", "data_ipc_port", "data_http_port")
    }
    return UnitProcess(
        command=_module(
            host.python,
            "headrace.warehouse.hdfs",
            host=configuration.host,
            data_dir=directory,
            **ports,
            set=configuration.settings,
        ),
        listens=tuple(Address(configuration.host, port) for port in ports.values()),
        probe=HdfsProbe(f"http://{configuration.host}:{configuration.http_port}"),
        page_url=_page(Address(configuration.host, configuration.http_port)),
        # Read by the java launcher: a start takes 5 s of CPU, 8 s with the optimising compiler.
        environment={"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
        start_timeout_s=120.0,
        data_dir=directory,
    )


def _postgresql(name: str, configuration: PostgresqlConfiguration, host: Host) -> UnitProcess:
    directory, sockets = configuration.data_dir or host.data(name), socket_folder(host.home, name)
    return UnitProcess(
        command=_module(
            configuration.python or host.airflow_python,
            "headrace.postgresql",
            data_dir=directory,
            socket_folder=sockets,
        ),
        listens=(),
        probe=PostgresqlProbe(sockets / SOCKET_NAME),
        start_timeout_s=120.0,
        # The fast shutdown: sessions are ended, and what is committed is flushed.
        stop_signal="INT",
        stop_timeout_s=30,
        data_dir=directory,
    )


def _airflow(name: str, configuration: AirflowConfiguration, host: Host) -> UnitProcess:
    home, url = configuration.home or host.home / "airflow", f"http://{configuration.listen}"
    connections = home / "connections.json"
    is_api = configuration.component == "api-server"
    files = {}
    if is_api:
        files[connections] = json.dumps(configuration.connections, indent=1, sort_keys=True)
    if configuration.database_url:
        files[host.secret(name)] = configuration.database_url
    of_unit = configuration.postgresql
    return UnitProcess(
        command=_module(
            configuration.python or host.airflow_python,
            "headrace.airflow.run",
            configuration.component,
            home=home,
            listen=configuration.listen,
            dags=configuration.dags or host.dags,
            connections=connections if is_api else None,
            # No secret: the server knows its users by the kernel.
            database_url=database_url(socket_folder(host.home, of_unit)) if of_unit else None,
            database_url_file=host.secret(name) if configuration.database_url else None,
        ),
        listens=(configuration.listen,) if is_api else (),
        probe=(
            HttpProbe(f"{url}/api/v2/monitor/health", AIRFLOW_PROBE_TIMEOUT_S)
            if is_api
            else AirflowProbe(url, HEARTBEATS[configuration.component])
        ),
        files=files,
        environment=dict(VARIABLES),
        page_url=_page(configuration.listen) if is_api else None,
        # The first start creates the database.
        start_timeout_s=120.0,
        # Running tasks are stopped first, each with its Spark application.
        stop_timeout_s=20,
    )


class UnitKind(NamedTuple):
    """A kind of unit: the model of its configuration, and the process that one means on a host."""

    configuration: type[Configuration]
    process: Callable[[str, Any, Host], UnitProcess]


Kinds = Mapping[str, UnitKind]
KINDS: Final[Kinds] = {
    "zookeeper": UnitKind(ZooKeeperConfiguration, _zookeeper),
    "broker": UnitKind(BrokerConfiguration, _broker),
    "balancer": UnitKind(BalancerConfiguration, _balancer),
    "registry": UnitKind(RegistryConfiguration, _registry),
    "mirror": UnitKind(MirrorConfiguration, _mirror),
    "auditor": UnitKind(AuditorConfiguration, _auditor),
    "hdfs": UnitKind(HdfsConfiguration, _hdfs),
    "postgresql": UnitKind(PostgresqlConfiguration, _postgresql),
    "airflow": UnitKind(AirflowConfiguration, _airflow),
}


def unit_of(name: str, configuration: Configuration, host: Host, kinds: Kinds = KINDS) -> Unit:
    """The unit that a configuration means on a host. Raises `SiteError` for what the host does not have."""
    return Unit(
        **vars(kinds[configuration.kind].process(name, configuration, host)),
        name=name,
        datacenter=configuration.datacenter,
        kind=configuration.kind,
        log_path=host.log(name),
        requires=configuration.requires,
        configuration=configuration,
        version=host.version(configuration.kind),
    )


def parse_configuration(name: str, data: object, kinds: Kinds = KINDS) -> Configuration:
    """JSON data as a configuration.

    Raises `ConfigurationError` that names the unit, and each wrong field with its value.
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        message = f"not a kind of unit; the kinds are {', '.join(sorted(kinds))}"
        raise ConfigurationError(name, [FieldProblem("kind", repr(kind), message)])
    try:
        return kinds[kind].configuration.model_validate(data)
    except ValidationError as error:
        known = ", ".join(kinds[kind].configuration.model_fields)
        raise ConfigurationError(name, [_problem(dict(row), known) for row in error.errors()]) from error


def _problem(error: Mapping[str, Any], known: str) -> FieldProblem:
    field = ".".join(str(part) for part in error["loc"]) or "configuration"
    if error["type"] == "missing":
        return FieldProblem(field, "missing", "this kind requires it")
    if error["type"] == "extra_forbidden":
        hint = question(field, known.split(", "))
        return FieldProblem(field, repr(error["input"]), f"not a field of this kind{hint}; it has {known}")
    value = repr(error["input"]) if error["loc"] else "as a whole"
    return FieldProblem(field, value, error["msg"].removeprefix("Value error, "))
