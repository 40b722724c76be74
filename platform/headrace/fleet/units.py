"""The units of a site: the configuration of each, and which units must be ready before it.

Converts a site into unit configurations, which are put to a host's agent; `agent.kinds` makes units of them.
Pure, except that Airflow's paths depend on where it is installed: starts nothing, writes no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from headrace.agent import configuration
from headrace.agent.configuration import Configuration
from headrace.agent.host import Host
from headrace.agent.kinds import unit_of
from headrace.agent.unit import Unit, in_order
from headrace.fleet.airflow_units import airflow_configurations
from headrace.site.errors import SiteFileError
from headrace.site.site import Datacenter, MirrorRoute, Site

# Broker settings of the one-machine site that differ from the broker's defaults. Events of any age are kept
# (the demo may publish an access log of 2015), up to a number of bytes per partition.
BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
    "log.retention.ms": "-1",
    "log.retention.bytes": str(2 << 30),
}


def units_of(site: Site) -> tuple[Unit, ...]:
    """Returns all units of the site, each after those it requires. Raises `SiteFileError`."""
    host = Host.here(site.home)
    try:
        configurations = configurations_of(site)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(map(str, first["loc"]))
        raise SiteFileError(
            f"the site in {site.home} is invalid: {error.title}: {field_name}: {first['msg']}"
            f" (its value is {first['input']!r})"
        ) from error
    return tuple(in_order(unit_of(name, value, host) for name, value in configurations.items()))


def configurations_of(site: Site) -> dict[str, Configuration]:
    """Returns the configuration of each unit of the site, by the unit's name."""
    configurations: dict[str, Configuration] = {}
    for datacenter in site.datacenters:
        configurations[f"{datacenter.name}-zookeeper"] = _zookeeper(site, datacenter)
        for broker_id in datacenter.brokers:
            configurations[f"{datacenter.name}-broker-{broker_id}"] = _broker(site, datacenter, broker_id)
        configurations[f"{datacenter.name}-registry"] = _registry(site, datacenter)
    for datacenter in site.sources:
        configurations[f"{datacenter.name}-balancer"] = _balancer(site, datacenter)
    configurations[f"{site.warehouse}-hdfs"] = _hdfs(site)
    for mirror in site.mirrors:
        configurations[f"{mirror.target}-mirror-{mirror.source}"] = _mirror(site, mirror)
    for datacenter in site.datacenters:
        configurations[f"{datacenter.name}-auditor"] = _auditor(site, datacenter)
    if site.airflow:
        configurations |= airflow_configurations(site)
    return configurations


def _data(site: Site, datacenter: str, name: str) -> Path:
    return site.home / "data" / datacenter / name


def _zookeeper(site: Site, datacenter: Datacenter) -> Configuration:
    return configuration.ZooKeeperConfiguration(
        datacenter=datacenter.name,
        listen=datacenter.zookeeper,
        data_dir=_data(site, datacenter.name, "zookeeper"),
    )


def _broker(site: Site, datacenter: Datacenter, broker_id: int) -> Configuration:
    has_balancer = datacenter in site.sources
    return configuration.BrokerConfiguration(
        datacenter=datacenter.name,
        requires=(f"{datacenter.name}-zookeeper",),
        broker_id=broker_id,
        listen=datacenter.brokers[broker_id],
        front_listen=datacenter.front(broker_id) if has_balancer else None,
        front_advertise=datacenter.balancer if has_balancer else None,
        status=datacenter.broker_status(broker_id),
        zookeeper=str(datacenter.zookeeper),
        data_dir=_data(site, datacenter.name, f"broker-{broker_id}"),
        settings={**BROKER_SETTINGS, **datacenter.broker_settings},
    )


def _balancer(site: Site, datacenter: Datacenter) -> Configuration:
    return configuration.BalancerConfiguration(
        datacenter=datacenter.name,
        # It discovers brokers in ZooKeeper by itself; the requirement makes it stop before they do.
        requires=_brokers(datacenter),
        listen=datacenter.balancer,
        zookeeper=str(datacenter.zookeeper),
        status=datacenter.balancer_status,
        statistics=datacenter.haproxy_statistics,
        data_dir=_data(site, datacenter.name, "balancer"),
    )


def _registry(site: Site, datacenter: Datacenter) -> Configuration:
    mirrored = [site.datacenter(mirror.source) for mirror in site.mirrors if mirror.target == datacenter.name]
    return configuration.RegistryConfiguration(
        datacenter=datacenter.name,
        requires=(f"{datacenter.name}-zookeeper",),
        listen=datacenter.registry,
        zookeeper=str(datacenter.zookeeper),
        sources=tuple(f"{source.name}={source.registry_url}" for source in mirrored),
    )


def _hdfs(site: Site) -> Configuration:
    return configuration.HdfsConfiguration(
        datacenter=site.warehouse,
        host=site.namenode.host,
        data_dir=_data(site, site.warehouse, "hdfs"),
    )


def _mirror(site: Site, mirror: MirrorRoute) -> Configuration:
    source, target = site.datacenter(mirror.source), site.datacenter(mirror.target)
    return configuration.MirrorConfiguration(
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
    return configuration.AuditorConfiguration(
        datacenter=datacenter.name,
        requires=(*_brokers(datacenter), f"{datacenter.name}-registry"),
        bootstrap=tuple(datacenter.bootstrap_brokers.values()),
        # Mirrored events carry schema ids of their source datacenter's registry.
        registry_urls=tuple(site.datacenter(name).registry_url for name in (datacenter.name, *mirrored)),
        status=datacenter.auditor,
        mirrors_zookeeper=str(datacenter.zookeeper) if mirrored else None,
        store=site.audit_store_url if datacenter.name == site.warehouse else None,
    )


def _brokers(datacenter: Datacenter) -> tuple[str, ...]:
    return tuple(f"{datacenter.name}-broker-{broker_id}" for broker_id in datacenter.bootstrap_brokers)
