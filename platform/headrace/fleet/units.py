"""The units of a site: what each supervised process is told, and what must be ready before it.

Owns `Unit`, one supervised process as data, and the way from a site to the typed configurations of its units,
which are the ones that a host's agent is put. What a configuration becomes on a host is `agent.kinds`'.
Starts nothing and touches no file: `agent.supervisor` runs units, `agent` and `fleet.operate` decide
when.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from headrace.agent import configuration as said
from headrace.agent.configuration import Configuration
from headrace.agent.host import Host
from headrace.agent.kinds import unit_of
from headrace.agent.unit import Unit, in_order
from headrace.fleet.airflow_units import airflow_configurations
from headrace.site.errors import SiteFileError
from headrace.site.site import Datacenter, MirrorRoute, Site

# What a broker of this one machine is told beyond its own defaults. Events of any age are kept (an access log
# of 2015 is as good an input as today's), within a bound of bytes a partition.
BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
    "log.retention.ms": "-1",
    "log.retention.bytes": str(2 << 30),
}


def units_of(site: Site) -> tuple[Unit, ...]:
    """All units of the site on this host, each after those it requires."""
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


def _data(site: Site, datacenter: str, name: str) -> Path:
    return site.home / "data" / datacenter / name


def _zookeeper(site: Site, datacenter: Datacenter) -> Configuration:
    return said.ZooKeeperConfiguration(
        datacenter=datacenter.name,
        listen=datacenter.zookeeper,
        data_dir=_data(site, datacenter.name, "zookeeper"),
    )


def _broker(site: Site, datacenter: Datacenter, broker_id: int) -> Configuration:
    has_balancer = datacenter in site.sources
    return said.BrokerConfiguration(
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
    return said.BalancerConfiguration(
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
    return said.RegistryConfiguration(
        datacenter=datacenter.name,
        requires=(f"{datacenter.name}-zookeeper",),
        listen=datacenter.registry,
        zookeeper=str(datacenter.zookeeper),
    )


def _hdfs(site: Site) -> Configuration:
    return said.HdfsConfiguration(
        datacenter=site.warehouse,
        host=site.namenode.host,
        data_dir=_data(site, site.warehouse, "hdfs"),
    )


def _mirror(site: Site, mirror: MirrorRoute) -> Configuration:
    source, target = site.datacenter(mirror.source), site.datacenter(mirror.target)
    return said.MirrorConfiguration(
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
    return said.AuditorConfiguration(
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
