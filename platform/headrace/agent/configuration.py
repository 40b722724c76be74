"""The configuration of a unit: one typed model for each kind.

Owns the fields of every kind, their defaults and their valid values. Knows nothing of the host: `kinds` makes
a process of a configuration.

These values reach command lines and configuration files of other programs. So no text holds a control
character (a new line could start another setting), and none begins with `-` (it could pass for an option).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from headrace.process.text import has_control
from headrace.site.addresses import Address
from headrace.site.site import (
    AIRFLOW_PORT,
    BALANCER_STATUS_PORT,
    BROKER_PORT,
    DATANODE_PORTS,
    NAMENODE_PORT,
    REGISTRY_PORT,
    WEBHDFS_PORT,
    ZOOKEEPER_PORT,
)

NAME_LENGTH_MAX: Final = 63
TEXT_LENGTH_MAX: Final = 1000
PATH_LENGTH_MAX: Final = 500
LIST_LENGTH_MAX: Final = 64
HEAP_MIB_MIN: Final = 32
RACK_SETTING: Final = "broker.rack"
HEAP_MIB_MAX: Final = 4096

NAME_PATTERN: Final = r"^[a-z][a-z0-9-]{0,62}$"
_HOST: Final = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_ADDRESS: Final = re.compile(rf"({_HOST}):([0-9]{{1,5}})")
_ZOOKEEPER: Final = rf"^{_HOST}:[0-9]{{1,5}}(,{_HOST}:[0-9]{{1,5}})*(/([A-Za-z0-9_-][A-Za-z0-9._-]*)?)*$"
_PLAIN: Final = r"^[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*$"


def parse_address(value: object) -> Address:
    """`"127.1.0.11:9092"` → `Address`. Raises ValueError."""
    if isinstance(value, Address):
        return value
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise ValueError("expected HOST:PORT, such as 127.1.0.11:9092, with a port from 1 to 65535")
    return Address(match[1], int(match[3]))


def _check_text(text: str) -> str:
    # Some end a line for supervisord, whose file holds all units: one of them would keep every unit from
    # being changed.
    if has_control(text):
        raise ValueError("expected no control characters, none that end a line, none that are not seen")
    return text


def _check_path(path: PurePosixPath) -> PurePosixPath:
    text = str(path)
    if not path.is_absolute() or path == PurePosixPath("/"):
        raise ValueError("expected an absolute path below /")
    if has_control(text) or len(text) > PATH_LENGTH_MAX:
        raise ValueError(f"expected at most {PATH_LENGTH_MAX} characters, none of them a control character")
    return path


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


HostPort = Annotated[
    Address,
    BeforeValidator(parse_address),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^{_ADDRESS.pattern}$"}),
]
Port = Annotated[int, Field(ge=1, le=65535)]
HostName = Annotated[str, StringConstraints(pattern=f"^{_HOST}$")]
Text = Annotated[
    str, StringConstraints(max_length=TEXT_LENGTH_MAX, pattern=_PLAIN), AfterValidator(_check_text)
]
# A URL that may hold a password: never shown to people.
Secret = Annotated[Text, Field(json_schema_extra={"format": "password"})]
Pattern = Annotated[Text, AfterValidator(_check_pattern)]
Url = Annotated[
    str,
    StringConstraints(max_length=TEXT_LENGTH_MAX, pattern=r"^https?://[^\s\x00-\x1f\x7f]+$"),
    AfterValidator(_check_text),
]
SourceUrl = Annotated[
    str,
    StringConstraints(
        max_length=TEXT_LENGTH_MAX, pattern=r"^[a-z][a-z0-9]{0,30}=https?://[^\s,\x00-\x1f\x7f]+$"
    ),
    AfterValidator(_check_text),
]
ZooKeeperHosts = Annotated[str, StringConstraints(max_length=TEXT_LENGTH_MAX, pattern=_ZOOKEEPER)]
UnitName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
DatacenterName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,30}$")]
SettingName = Annotated[str, StringConstraints(max_length=200, pattern=r"^[A-Za-z][A-Za-z0-9._-]*$")]
SettingValue = Annotated[
    str,
    StringConstraints(max_length=TEXT_LENGTH_MAX, pattern=r"^[^\x00-\x1f\x7f]*$"),
    AfterValidator(_check_text),
]
Directory = Annotated[Path, AfterValidator(_check_path)]
HostPorts = Annotated[tuple[HostPort, ...], Field(min_length=1, max_length=LIST_LENGTH_MAX)]


def _loopback(port: int) -> Any:
    # A string, so that the JSON schema shows the default as a user would write it.
    return Field(default=f"127.0.0.1:{port}", validate_default=True)


class Configuration(BaseModel):
    """The fields that all kinds have.

    `requires` names units that must be ready before this one is first started, by `headrace up` or by an
    agent that restarts its units. After a crash a unit comes back alone and waits for them by itself.
    """

    # The title in the served JSON schema is the kind's name alone.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        model_title_generator=lambda model: model.__name__.removesuffix("Configuration"),
    )

    kind: str
    datacenter: DatacenterName
    requires: Annotated[tuple[UnitName, ...], Field(max_length=LIST_LENGTH_MAX)] = ()


@lru_cache(maxsize=64)
def secret_fields(configuration: type[Configuration]) -> frozenset[str]:
    """The fields whose values may hold a password."""
    properties = configuration.model_json_schema()["properties"]
    return frozenset(
        name
        for name, schema in properties.items()
        if name == "connections"
        or any(each.get("format") == "password" for each in (schema, *schema.get("anyOf", ())))
    )


class ZooKeeperConfiguration(Configuration):
    """One ZooKeeper server. `data_dir` is by default a folder below the agent's home, named like the unit."""

    kind: Literal["zookeeper"] = "zookeeper"
    listen: HostPort = _loopback(ZOOKEEPER_PORT)
    data_dir: Directory | None = None
    heap_mib_max: Annotated[int, Field(ge=HEAP_MIB_MIN, le=HEAP_MIB_MAX)] = 128


class BrokerConfiguration(Configuration):
    """One broker. `front_listen` is the listener that a TCP balancer connects to, `front_advertise` the
    balancer's own address; `status` is the address of its page, and of its status as JSON: without one it has
    neither. `settings` have Kafka's names; `rack` is the setting `broker.rack`.
    """

    kind: Literal["broker"] = "broker"
    broker_id: Annotated[int, Field(ge=0, le=2**31 - 1)]
    zookeeper: ZooKeeperHosts
    listen: HostPort = _loopback(BROKER_PORT)
    advertise: HostPort | None = None
    front_listen: HostPort | None = None
    front_advertise: HostPort | None = None
    status: HostPort | None = None
    data_dir: Directory | None = None
    rack: Text | None = None
    settings: Annotated[Mapping[SettingName, SettingValue], Field(max_length=LIST_LENGTH_MAX)] = {}

    @model_validator(mode="after")
    def _check_rack(self) -> Self:
        if self.rack is not None and RACK_SETTING in self.settings:
            raise ValueError(f"rack and the setting {RACK_SETTING} say the same: give one of them")
        return self

    @model_validator(mode="after")
    def _check_front(self) -> Self:
        if (self.front_listen is None) != (self.front_advertise is None):
            raise ValueError("front_listen and front_advertise go together: give both, or neither")
        return self


class BalancerConfiguration(Configuration):
    """One address for producers, before all brokers of a datacenter. `status` is the address of its status
    page, `statistics` that of HAProxy's own; engine `auto` is HAProxy where it is installed.
    """

    kind: Literal["balancer"] = "balancer"
    zookeeper: ZooKeeperHosts
    listen: HostPort = _loopback(BROKER_PORT)
    status: HostPort = _loopback(BALANCER_STATUS_PORT)
    statistics: HostPort | None = None
    engine: Literal["auto", "haproxy", "embedded"] = "auto"
    connections_max: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    data_dir: Directory | None = None


class RegistryConfiguration(Configuration):
    """One schema registry; it keeps everything in ZooKeeper. `sources` are the registries of the datacenters
    that are mirrored here, DATACENTER=URL: it copies their subjects, and asks them for ids it does not know.
    """

    kind: Literal["registry"] = "registry"
    zookeeper: ZooKeeperHosts
    listen: HostPort = _loopback(REGISTRY_PORT)
    sources: Annotated[tuple[SourceUrl, ...], Field(max_length=LIST_LENGTH_MAX)] = ()


class MirrorConfiguration(Configuration):
    """Copies one datacenter's topics into another's brokers. `status` is the address of its status page."""

    kind: Literal["mirror"] = "mirror"
    source: DatacenterName
    source_bootstrap: HostPorts
    target_bootstrap: HostPorts
    target_zookeeper: ZooKeeperHosts
    status: HostPort
    registry_url: Url | None = None
    topics: Pattern | None = None
    exclude: Pattern | None = None


class AuditorConfiguration(Configuration):
    """Counts a datacenter's logs. `registry_urls`: its own first, then those of mirrored datacenters;
    with `store`, an SQLAlchemy URL, it folds all reports of counts into that audit store.
    """

    kind: Literal["auditor"] = "auditor"
    bootstrap: HostPorts
    registry_urls: Annotated[tuple[Url, ...], Field(min_length=1, max_length=LIST_LENGTH_MAX)]
    status: HostPort
    mirrors_zookeeper: ZooKeeperHosts | None = None
    store: Secret | None = None
    keep_days: Annotated[float, Field(gt=0, le=36_500)] | None = None


class HdfsConfiguration(Configuration):
    """NameNode and DataNode in one JVM. The ports have Hadoop's names."""

    kind: Literal["hdfs"] = "hdfs"
    host: HostName = "127.0.0.1"
    rpc_port: Port = NAMENODE_PORT
    http_port: Port = WEBHDFS_PORT
    data_port: Port = DATANODE_PORTS[0]
    data_ipc_port: Port = DATANODE_PORTS[1]
    data_http_port: Port = DATANODE_PORTS[2]
    data_dir: Directory | None = None
    settings: Annotated[Mapping[SettingName, SettingValue], Field(max_length=LIST_LENGTH_MAX)] = {}


class PostgresqlConfiguration(Configuration):
    """The PostgreSQL server of Airflow's database. It listens on a Unix socket alone, for the agent's user.

    `python`: the interpreter of Airflow's environment, which may have a wheel of PostgreSQL's programs.
    """

    kind: Literal["postgresql"] = "postgresql"
    data_dir: Directory | None = None
    python: Directory | None = None


class AirflowConfiguration(Configuration):
    """One component of Airflow; those of one installation share `home`, and `listen` is its api-server's.

    `connections` (for the api-server only): id → Airflow's JSON form of a connection. `python`: the
    interpreter of Airflow's environment, by default the host's. Its database is that of `database_url`, or of
    the unit `postgresql` of this host, else an SQLite file.
    """

    kind: Literal["airflow"] = "airflow"
    component: Literal["api-server", "scheduler", "dag-processor", "triggerer"]
    listen: HostPort = _loopback(AIRFLOW_PORT)
    home: Directory | None = None
    dags: Directory | None = None
    python: Directory | None = None
    database_url: Secret | None = None
    postgresql: UnitName | None = None
    connections: Annotated[Mapping[str, Mapping[str, Any]], Field(max_length=LIST_LENGTH_MAX)] = {}

    @model_validator(mode="after")
    def _check_connections(self) -> Self:
        if self.connections and self.component != "api-server":
            raise ValueError("connections are set up by the api-server alone: configure them there")
        return self

    @model_validator(mode="after")
    def _check_database(self) -> Self:
        if self.database_url and self.postgresql:
            raise ValueError("database_url and postgresql are two databases: give one of them")
        return self
