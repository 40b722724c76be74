"""Names that shells complete: datacenters, topics, groups, brokers, subjects, units.

Asks for a second and a half at most. `selection` has the contexts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from headrace.cli import selection
from headrace.cli.selection import completes

ANSWER_MAX_MS: Final = 1_500.0


@completes
def datacenters(given: dict[str, Any]) -> Iterable[str]:
    return [each.name for each in selection.current().datacenters]


@completes
def topics(given: dict[str, Any]) -> Iterable[str]:
    from headrace.client.admin import Admin

    with Admin(_bootstrap(given), timeout_ms=ANSWER_MAX_MS, total_ms=ANSWER_MAX_MS) as admin:
        return list(admin.topics())


@completes
def groups(given: dict[str, Any]) -> Iterable[str]:
    from headrace.client.group_admin import GroupAdmin

    with GroupAdmin(_bootstrap(given), timeout_ms=ANSWER_MAX_MS, total_ms=ANSWER_MAX_MS) as admin:
        return admin.groups()


@completes
def broker_ids(given: dict[str, Any]) -> Iterable[str]:
    from headrace.client.admin import Admin

    with Admin(_bootstrap(given), timeout_ms=ANSWER_MAX_MS, total_ms=ANSWER_MAX_MS) as admin:
        return map(str, admin.describe_cluster().brokers)


@completes
def subjects(given: dict[str, Any]) -> Iterable[str]:
    from headrace.registry.client import SchemaRegistryClient

    url = given.get("registry") or _datacenter(given).registry
    with SchemaRegistryClient(url, timeout_s=ANSWER_MAX_MS / 1000, retry_rounds=1) as client:
        return client.subjects()


@completes
def units(given: dict[str, Any]) -> Iterable[str]:
    from headrace.fleet.units import units_of
    from headrace.site.site import Site

    return [unit.name for unit in units_of(Site.load())]


def _datacenter(given: dict[str, Any]) -> Any:
    here = selection.current()
    where = given.get("where")
    return here.datacenter(where) if where else here.default_datacenter


def _bootstrap(given: dict[str, Any]) -> str:
    return str(given.get("brokers") or _datacenter(given).bootstrap)
