"""Starts the processes of one run: services, readers and a watcher.

Owns the arguments of each.
"""

from __future__ import annotations

from typing import Final

from headrace.demo.child import Child
from headrace.demo.plan import GROUP, TOPIC, DemoPlan, DemoService

ARRIVALS_NAME: Final = "arrivals.bin"
_PACKAGE: Final = __name__.rpartition(".")[0]


def start_service(plan: DemoPlan, service: DemoService) -> Child:
    name = f"{service.datacenter.name}-{service.name}"
    arguments: dict[str, object] = {
        "datacenter": service.datacenter.name,
        "service": service.name,
        "server": service.server,
        "bootstrap": service.datacenter.producer_bootstrap,
        "registry": service.datacenter.registry_url,
        "topic": TOPIC,
        "share": f"{service.number}/{len(plan.services)}",
        "per_second": plan.per_second,
    }
    if plan.access_log is not None:
        arguments |= {"access_log": plan.access_log, "aside": plan.directory / f"{name}.unparsable.log"}
    else:
        arguments |= {
            "count": plan.event_count,
            "seed": plan.started_ms,
            "from_ms": plan.from_ms,
            "until_ms": plan.until_ms,
        }
    if service.drop:
        # Half way, so that there are events on both sides of the gap.
        arguments |= {"drop": service.drop, "drop_after": plan.event_count // len(plan.services) // 2}
    return Child(name, f"{_PACKAGE}.service", arguments, plan.directory)


def start_reader(plan: DemoPlan, number: int) -> Child:
    datacenter = plan.real_time
    arguments = {
        "zookeeper": datacenter.zookeeper,
        "bootstrap": datacenter.bootstrap,
        "group": GROUP,
        "topic": TOPIC,
        "since_ms": plan.started_ms,
    }
    return Child(f"{datacenter.name}-reader-{number}", f"{_PACKAGE}.reader", arguments, plan.directory)


def start_watcher(plan: DemoPlan) -> Child:
    arguments = {
        "bootstrap": plan.site.analysis.bootstrap,
        "topic": TOPIC,
        "since_ms": plan.started_ms,
        "arrivals": plan.directory / ARRIVALS_NAME,
    }
    return Child("analysis-watcher", f"{_PACKAGE}.watcher", arguments, plan.directory)
