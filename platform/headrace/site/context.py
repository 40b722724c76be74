"""A context: by which addresses commands reach an installation, on this machine or elsewhere.

Owns `Context` and how it is made: of a site on this machine, or of the outputs of `terraform output -json`.
Pure. `site.context_store` keeps contexts on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from headrace.process.nearest import question
from headrace.site.errors import SiteError
from headrace.site.site import Site

SITE: Final = "site"
"""The name of the context that every home has: what its site.yaml describes, or the one-machine default."""
NAME_PATTERN: Final = r"^[a-z][a-z0-9-]{0,39}$"
# Terraform's values are nested as deeply as modules are: outputs, maps of datacenters, their fields.
DEPTH_MAX: Final = 6
INPUT_SHOWN_MAX: Final = 100
_WANTED: Final = (
    "a datacenter is an object with bootstrap_servers, such as an output of the module datacenter: "
    'output "datacenters" { value = { east = module.east } }'
)


class ContextError(SiteError):
    """A context lacks what a command needs, or cannot be made; the user can correct it."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class ContextDatacenter(_Part):
    """The addresses of one datacenter; None for what it does not have, or what nobody has said.

    `broker_ids` are those of `bootstrap_servers`, in their order; empty if they are not known.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,60}$")
    bootstrap_servers: tuple[str, ...] = Field(min_length=1)
    broker_ids: tuple[int, ...] = ()
    balancer: str | None = None
    registry_url: str | None = None
    zookeeper_servers: str | None = None

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_bootstrap(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # Imported here because commands that need no broker need not wait for it.
        from headrace.client.cluster import parse_bootstrap

        parse_bootstrap(value)
        return value

    @field_validator("registry_url")
    @classmethod
    def _check_registry(cls, value: str | None) -> str | None:
        from headrace.registry.urls import parse_urls

        if value is not None:
            parse_urls(value)
        return value

    @property
    def bootstrap(self) -> str:
        """The brokers, for consumers and administration."""
        return ",".join(self.bootstrap_servers)

    @property
    def zookeeper(self) -> str:
        """Raises `ContextError` if it is not known."""
        return _needed(self.zookeeper_servers, f"the ZooKeeper of {self.name}", "zookeeper")

    @property
    def registry(self) -> str:
        """The registry's URL. Raises `ContextError` if it is not known."""
        return _needed(self.registry_url, f"the schema registry of {self.name}", "registry_url")


class ContextMirror(_Part):
    """One mirror, and the URL of its status."""

    source: str
    target: str
    status_url: str


class Context(_Part):
    """An installation. `origin` says what it was made of; `warehouse` names the datacenter with HDFS.

    `audit_store` may hold a password.
    """

    name: str
    origin: str
    datacenters: tuple[ContextDatacenter, ...]
    mirrors: tuple[ContextMirror, ...] = ()
    warehouse: str | None = None
    hdfs: str | None = None
    webhdfs: str | None = None
    airflow_url: str | None = None
    audit_store: str | None = None

    def datacenter(self, name: str) -> ContextDatacenter:
        """Raises `ContextError`."""
        for datacenter in self.datacenters:
            if datacenter.name == name:
                return datacenter
        known = [datacenter.name for datacenter in self.datacenters]
        what = f"{'this site' if self.name == SITE else f'context {self.name}'}{question(name, known)}"
        raise ContextError(f"datacenter {name!r} is not part of {what}; it has {', '.join(known)}")

    @property
    def sources(self) -> tuple[ContextDatacenter, ...]:
        """The datacenters that a mirror copies, which are those where services publish."""
        copied = {mirror.source for mirror in self.mirrors}
        return tuple(datacenter for datacenter in self.datacenters if datacenter.name in copied)

    @property
    def default_datacenter(self) -> ContextDatacenter:
        """The first one where services publish."""
        return (self.sources or self.datacenters)[0]

    @property
    def analysis(self) -> ContextDatacenter:
        """The datacenter with the warehouse. Raises `ContextError` if there is none."""
        return self.datacenter(_needed(self.warehouse, "a warehouse", "webhdfs_url"))

    @property
    def hdfs_url(self) -> str:
        return _needed(self.hdfs, "the URL of HDFS", "hdfs_url")

    @property
    def webhdfs_url(self) -> str:
        return _needed(self.webhdfs, "the URL of WebHDFS", "webhdfs_url")

    @property
    def audit_store_url(self) -> str:
        return _needed(self.audit_store, "the audit store", "audit_store")


def _needed(value: str | None, what: str, field: str) -> str:
    if value is None:
        raise ContextError(
            f"this context does not have {what}; if there is one, add {field} to Terraform's outputs and "
            "import the context again"
        )
    return value


def context_of(site: Site, name: str = SITE) -> Context:
    """The context of a site on this machine."""
    return Context(
        name=name,
        origin="site.yaml" if name != SITE else SITE,
        datacenters=tuple(
            ContextDatacenter(
                name=each.name,
                bootstrap_servers=tuple(map(str, each.bootstrap_brokers.values())),
                broker_ids=tuple(each.bootstrap_brokers),
                balancer=str(each.balancer) if each in site.sources else None,
                registry_url=each.registry_url,
                zookeeper_servers=str(each.zookeeper),
            )
            for each in site.datacenters
        ),
        mirrors=tuple(
            ContextMirror(
                source=mirror.source,
                target=mirror.target,
                status_url=f"http://{site.mirror_status(mirror)}/status",
            )
            for mirror in site.mirrors
        ),
        warehouse=site.warehouse,
        hdfs=site.hdfs_url,
        webhdfs=site.webhdfs_url,
        airflow_url=f"http://{site.airflow_address}" if site.airflow else None,
        audit_store=site.audit_store_url,
    )


# --- from Terraform ---


def parse_outputs(text: str, name: str) -> Context:
    """Makes a context of what `terraform output -json` prints. Raises `ContextError`.

    Every object with `bootstrap_servers` in the outputs is a datacenter, by its `name`, or else by its key.
    """
    try:
        outputs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContextError(
            f"this is not what `terraform output -json` prints ({error}); write "
            f"`terraform output -json | headrace context import {name}`"
        ) from None
    values = _values(outputs)
    found: dict[str, Mapping[str, Any]] = {}
    for key, fields in _datacenters("", values, DEPTH_MAX):
        datacenter_name = str(fields.get("name") or key)
        other = found.setdefault(datacenter_name, fields)
        if other["bootstrap_servers"] != fields["bootstrap_servers"]:
            raise ContextError(
                f"the outputs have two datacenters {datacenter_name!r}, with other brokers each; "
                "give one of them another key or `name`"
            )
    if not found:
        names = ", ".join(sorted(values)) or "nothing at all"
        raise ContextError(f"no datacenter is among the outputs, which are {names}; {_WANTED}")
    return _context(name, found, values)


def _values(outputs: object) -> dict[str, Any]:
    """The values of the outputs, without Terraform's types around them."""
    if not isinstance(outputs, dict) or not all(
        isinstance(each, dict) and "value" in each for each in outputs.values()
    ):
        raise ContextError(
            "these are no outputs: expected the JSON object that `terraform output -json` prints for all "
            "outputs; leave out the name of a single output, and -raw"
        )
    return {key: each["value"] for key, each in outputs.items()}


def _datacenters(key: str, value: object, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, list) and depth:
        for each in value:
            yield from _datacenters(key, each, depth - 1)
    if not isinstance(value, dict):
        return
    if _texts(value.get("bootstrap_servers")):
        yield key, value
    elif depth:
        for name, each in value.items():
            yield from _datacenters(name, each, depth - 1)


def _context(name: str, found: Mapping[str, Mapping[str, Any]], outputs: Mapping[str, Any]) -> Context:
    warehouse = next((each for each, fields in found.items() if _text(fields.get("webhdfs_url"))), None)
    of_warehouse = found[warehouse] if warehouse is not None else {}
    try:
        return Context(
            name=name,
            origin="terraform",
            datacenters=tuple(
                ContextDatacenter(
                    name=each,
                    bootstrap_servers=tuple(_texts(fields["bootstrap_servers"])),
                    balancer=_text(fields.get("balancer")),
                    registry_url=_text(fields.get("registry_url")),
                    zookeeper_servers=_text(fields.get("zookeeper")),
                )
                for each, fields in found.items()
            ),
            mirrors=tuple(
                ContextMirror(source=source, target=target, status_url=url)
                for target, fields in found.items()
                for source, url in _mirrors(target, fields)
            ),
            warehouse=warehouse,
            hdfs=_text(of_warehouse.get("hdfs_url")),
            webhdfs=_text(of_warehouse.get("webhdfs_url")),
            airflow_url=_text(of_warehouse.get("airflow_url")),
            audit_store=_text(of_warehouse.get("audit_store")) or _text(outputs.get("audit_store")),
        )
    except ValueError as error:
        problem = _described(error)
        raise ContextError(f"the outputs do not describe an installation: {problem}; {_WANTED}") from error


def _described(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where} {str(first['input'])[:INPUT_SHOWN_MAX]!r}: {first['msg'].removeprefix('Value error, ')}"


def _mirrors(target: str, fields: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    found = fields.get("mirrors") or {}
    if not isinstance(found, dict):
        raise ValueError(f"mirrors of {target} is {found!r}, expected an object of source = URL")
    return found.items()


def _texts(value: object) -> list[str]:
    """The servers of a list, or of a text with commas; empty for anything else."""
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    return []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
