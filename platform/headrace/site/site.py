"""The description of an installation: its datacenters, the mirrors between them, and every address.

Owns the site file (YAML) and the address plan of one machine. Knows nothing of processes: `fleet.units`
converts a site into units. Reads one file and the environment; writes nothing.

The address plan of a datacenter whose network is `127.1.0`:

    .2   ZooKeeper :2181          .4  auditor's status :8082      .11, .12, …  brokers :9092, fronts :9093,
    .3   registry :8081           .7  Airflow :8080                            status :8085
    .3   balancer :9092, status   .9  agent :8084                 .21, .22, …  mirrors' status :8083
         :8084, HAProxy's :8404                                   .31          HDFS
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from headrace.process import yaml_text
from headrace.process.nearest import question
from headrace.process.yaml_lines import line_of, lines_of
from headrace.site.addresses import Address
from headrace.site.environment_variables import HOME_VARIABLE
from headrace.site.errors import SiteFileError

SITE_FILE_NAME: Final = "site.yaml"

BROKERS_MAX: Final = 9
BLOCK_MAX: Final = 240
# Clients bootstrap from this many brokers and discover the others: adding a broker restarts no client.
BOOTSTRAP_BROKERS_MAX: Final = 3

ZOOKEEPER_PORT: Final = 2181
BROKER_PORT: Final = 9092
FRONT_PORT: Final = 9093
BROKER_STATUS_PORT: Final = 8085
BALANCER_STATUS_PORT: Final = 8084
HAPROXY_STATISTICS_PORT: Final = 8404
REGISTRY_PORT: Final = 8081
AUDITOR_PORT: Final = 8082
MIRROR_PORT: Final = 8083
NAMENODE_PORT: Final = 8020
WEBHDFS_PORT: Final = 9870
DATANODE_PORTS: Final = (9866, 9867, 9864)
AIRFLOW_PORT: Final = 8080
AGENT_PORT: Final = 8084

POSTGRESQL: Final = "postgresql"
SQLITE: Final = "sqlite"
AIRFLOW_DATABASE_PATTERN: Final = rf"^({POSTGRESQL}|{SQLITE}|[A-Za-z][A-Za-z0-9+.-]*://.*)$"


def _network(text: str) -> str:
    """A /24 network of loopback, without leading zeros: 127.01.0 would be 127.1.0 under another text."""
    numbers = text.split(".")
    if len(numbers) != 3 or numbers[0] != "127" or any(each not in map(str, range(256)) for each in numbers):
        raise ValueError("expected 127.A.B, with numbers from 0 to 255 without leading zeros")
    return text


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Datacenter(_Part):
    """One datacenter: a /24 network of loopback and what runs there."""

    name: str = Field(pattern=r"^[a-z][a-z0-9]{0,30}$")
    network: Annotated[str, AfterValidator(_network)]
    broker_count: Annotated[int, Field(ge=1, le=BROKERS_MAX)] = 3
    broker_settings: Mapping[str, str] = {}

    def host(self, number: int) -> str:
        return f"{self.network}.{number}"

    @property
    def zookeeper(self) -> Address:
        return Address(self.host(2), ZOOKEEPER_PORT)

    @property
    def registry(self) -> Address:
        return Address(self.host(3), REGISTRY_PORT)

    @property
    def registry_url(self) -> str:
        return f"http://{self.registry}"

    @property
    def auditor(self) -> Address:
        return Address(self.host(4), AUDITOR_PORT)

    @property
    def brokers(self) -> dict[int, Address]:
        """Broker id → address. Ids are unique within a datacenter: each has its own ZooKeeper."""
        return {n: Address(self.host(10 + n), BROKER_PORT) for n in range(1, self.broker_count + 1)}

    @property
    def bootstrap_brokers(self) -> dict[int, Address]:
        """The brokers that clients bootstrap from."""
        return dict(list(self.brokers.items())[:BOOTSTRAP_BROKERS_MAX])

    @property
    def bootstrap(self) -> str:
        """The bootstrap list for consumers, administration and mirrors."""
        return ",".join(map(str, self.bootstrap_brokers.values()))

    def front(self, broker_id: int) -> Address:
        """Where the balancer reaches a broker."""
        return Address(self.brokers[broker_id].host, FRONT_PORT)

    def broker_status(self, broker_id: int) -> Address:
        """Where a broker serves its page."""
        return Address(self.brokers[broker_id].host, BROKER_STATUS_PORT)

    @property
    def balancer(self) -> Address:
        return Address(self.host(3), BROKER_PORT)

    @property
    def balancer_status(self) -> Address:
        return Address(self.host(3), BALANCER_STATUS_PORT)

    @property
    def haproxy_statistics(self) -> Address:
        return Address(self.host(3), HAPROXY_STATISTICS_PORT)

    @property
    def producer_bootstrap(self) -> str:
        """The one address that services publish to, in the datacenters of `Site.sources`."""
        return str(self.balancer)


class MirrorRoute(_Part):
    """One mirror: everything of `source` is copied verbatim into `target`."""

    source: str
    target: str


class Site(_Part):
    """A whole installation.

    `warehouse` names the datacenter that runs HDFS and Airflow, and whose auditor keeps the audit store.
    `airflow` False leaves Airflow out. `airflow_database` is `postgresql` (a unit of the site), `sqlite` (a
    file), or an SQLAlchemy URL; None leaves the choice to the host, see `fleet.airflow_database`.
    """

    home: Path
    datacenters: tuple[Datacenter, ...]
    mirrors: tuple[MirrorRoute, ...]
    warehouse: str
    airflow: bool = True
    airflow_database: str | None = None

    @staticmethod
    def one_machine(home: Path, *, block: int = 0) -> Site:
        """Three datacenters on loopback: 127.(block+1) east, 127.(block+2) west, 127.(block+9) analysis.

        A second site of the same machine takes another `block` and another `home`.
        """
        if not 0 <= block <= BLOCK_MAX:
            raise SiteFileError(f"block {block} is out of range; take one from 0 to {BLOCK_MAX}")
        return Site(
            home=home.absolute(),
            datacenters=(
                Datacenter(name="east", network=f"127.{block + 1}.0"),
                Datacenter(name="west", network=f"127.{block + 2}.0"),
                Datacenter(name="analysis", network=f"127.{block + 9}.0", broker_count=2),
            ),
            mirrors=(
                MirrorRoute(source="east", target="analysis"),
                MirrorRoute(source="west", target="analysis"),
            ),
            warehouse="analysis",
        )

    @staticmethod
    def load(home: Path | None = None, environment: Mapping[str, str] = os.environ) -> Site:
        """Reads `site.yaml` of `home` (default `$HEADRACE_HOME`, else `.headrace` here).

        Without a file the site is the one-machine default. Raises `SiteFileError` for a wrong file.
        """
        if home is None:
            home = Path(environment.get(HOME_VARIABLE) or ".headrace")
        path = home / SITE_FILE_NAME
        try:
            text = path.read_text()
        except FileNotFoundError:
            return Site.one_machine(home)
        except OSError as error:
            raise SiteFileError(f"site file {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            problem = f"{error.reason} at byte {error.start}"
            raise SiteFileError(f"site file {path} is not UTF-8: {problem}") from error
        return parse_site(text, home=home, where=str(path))

    def datacenter(self, name: str) -> Datacenter:
        for datacenter in self.datacenters:
            if datacenter.name == name:
                return datacenter
        known = [datacenter.name for datacenter in self.datacenters]
        what = f"this site{question(name, known)}"
        raise SiteFileError(f"datacenter {name!r} is not part of {what}; it has {', '.join(known)}")

    @property
    def sources(self) -> tuple[Datacenter, ...]:
        """The datacenters that a mirror copies, which are those where services publish."""
        return tuple(
            dc for dc in self.datacenters if any(mirror.source == dc.name for mirror in self.mirrors)
        )

    @property
    def analysis(self) -> Datacenter:
        return self.datacenter(self.warehouse)

    def mirror_status(self, mirror: MirrorRoute) -> Address:
        into_same_target = [other for other in self.mirrors if other.target == mirror.target]
        return Address(self.datacenter(mirror.target).host(21 + into_same_target.index(mirror)), MIRROR_PORT)

    @property
    def namenode(self) -> Address:
        return Address(self.analysis.host(31), NAMENODE_PORT)

    @property
    def webhdfs(self) -> Address:
        return Address(self.analysis.host(31), WEBHDFS_PORT)

    @property
    def airflow_address(self) -> Address:
        return Address(self.analysis.host(7), AIRFLOW_PORT)

    @property
    def agent_address(self) -> Address:
        """Where the agent of this machine listens, unless it is started with another `--listen`."""
        return Address(self.analysis.host(9), AGENT_PORT)

    @property
    def hdfs_url(self) -> str:
        return f"hdfs://{self.namenode}"

    @property
    def webhdfs_url(self) -> str:
        return f"http://{self.webhdfs}"

    @property
    def audit_store_url(self) -> str:
        return f"sqlite:///{self.home / 'data' / self.warehouse / 'audit.db'}"


class _SiteFile(_Part):
    """The fields of a `site.yaml`; the defaults are those of the one-machine site."""

    block: Annotated[int, Field(ge=0, le=BLOCK_MAX)] = 0
    datacenters: dict[str, dict[str, object]] | None = None
    mirrors: tuple[MirrorRoute, ...] | None = None
    warehouse: str | None = None
    airflow: bool = True
    airflow_database: Annotated[str, Field(pattern=AIRFLOW_DATABASE_PATTERN)] | None = None


class _Problem(NamedTuple):
    """One field of a site file that is wrong."""

    path: tuple[str | int, ...]
    message: str


def parse_site(text: str, *, home: Path, where: str) -> Site:
    """Parses a site file.

    `where` names the text in errors. Raises `SiteFileError`, one line that names each wrong field with its
    line in the file.
    """
    try:
        data = yaml_text.load(text) or {}
    except yaml_text.YamlError as error:
        raise SiteFileError(f"site file {where} {error}") from error
    problems: list[_Problem] = []
    site = _site_of(data, home, problems)
    if site is not None:
        problems += _contradictions(site)
    if site is None or problems:
        lines = lines_of(text)
        raise SiteFileError(f"site file {where}: " + "; ".join(_text(each, lines) for each in problems))
    return site


def _text(problem: _Problem, lines: Mapping[tuple[str | int, ...], int]) -> str:
    line = line_of(lines, problem.path)
    field = ".".join(map(str, problem.path)) or "the whole file"
    return f"{'' if line is None else f'line {line}: '}{field}: {problem.message}"


def _problems_in(error: ValidationError, prefix: tuple[str | int, ...] = ()) -> list[_Problem]:
    problems = []
    for row in error.errors():
        message, value = row["msg"].removeprefix("Value error, "), yaml_text.shown(row["input"])
        text = f"{message} (its value is {value}){_hint(row['type'], row['loc'])}"
        problems.append(_Problem((*prefix, *row["loc"]), text))
    return problems


def _hint(kind: str, path: Sequence[str | int]) -> str:
    """Returns which field is meant by one that there is not."""
    known = [*_SiteFile.model_fields, *Datacenter.model_fields, *MirrorRoute.model_fields]
    return question(str(path[-1]), known) if kind == "extra_forbidden" and path else ""


def _site_of(data: object, home: Path, problems: list[_Problem]) -> Site | None:
    """Returns the site; None, after adding to `problems`, if a field is wrong."""
    try:
        file = _SiteFile.model_validate(data)
    except ValidationError as error:
        problems += _problems_in(error)
        return None
    default = Site.one_machine(home, block=file.block)
    datacenters = default.datacenters if file.datacenters is None else ()
    for name, fields in (file.datacenters or {}).items():
        try:
            datacenters += (Datacenter.model_validate({"name": name, **fields}),)
        except ValidationError as error:
            problems += _problems_in(error, ("datacenters", name))
    if problems:
        return None
    return Site(
        home=home.absolute(),
        datacenters=datacenters,
        mirrors=default.mirrors if file.mirrors is None else file.mirrors,
        warehouse=file.warehouse or default.warehouse,
        airflow=file.airflow,
        airflow_database=file.airflow_database,
    )


def _contradictions(site: Site) -> list[_Problem]:
    """What is wrong with fields that are right by themselves."""
    problems = []
    networks: dict[str, str] = {}
    for datacenter in site.datacenters:
        if other := networks.get(datacenter.network):
            problems.append(
                _Problem(
                    ("datacenters", datacenter.name, "network"),
                    f"{datacenter.name} and {other} share the network {datacenter.network}; "
                    "give each its own",
                )
            )
        networks.setdefault(datacenter.network, datacenter.name)
    names = {datacenter.name for datacenter in site.datacenters}
    named: list[tuple[tuple[str | int, ...], str]] = [(("warehouse",), site.warehouse)]
    for number, mirror in enumerate(site.mirrors):
        named += [(("mirrors", number, side), name) for side, name in mirror]
    problems += [
        _Problem(path, f"{name!r} is not a datacenter; there are {', '.join(sorted(names))}")
        for path, name in named
        if name not in names
    ]
    return problems + _wrong_routes(site)


def _wrong_routes(site: Site) -> list[_Problem]:
    problems = []
    for number, mirror in enumerate(site.mirrors):
        if mirror.source == mirror.target:
            text = f"source and target are both {mirror.source!r}; a mirror copies into another datacenter"
            problems.append(_Problem(("mirrors", number), text))
        elif (first := site.mirrors.index(mirror)) != number:
            text = f"mirror {first} copies {mirror.source} into {mirror.target} already; leave one out"
            problems.append(_Problem(("mirrors", number), text))
    return problems
