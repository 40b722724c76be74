"""The steps of one run of the demo around its flow: site, topics, audit report, seals.

Owns what each step does and prints, and its timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from headrace.agent.probes import BalancerProbe
from headrace.agent.unit import Unit
from headrace.audit.report.report import Report, report, wait_until_resolved
from headrace.audit.store.store import AuditStore
from headrace.client import Admin
from headrace.client.errors import BrokerError
from headrace.demo.access_log import HOUR_MS
from headrace.demo.flow import FlowResult
from headrace.demo.loads import Sealing, wait_for_seals
from headrace.demo.plan import PARTITION_COUNT, TOPIC, DemoPlan
from headrace.demo.recount import RunStart, next_load
from headrace.demo.screen import Screen
from headrace.fleet import operate, terraform
from headrace.fleet.terraform import TerraformProgress
from headrace.fleet.units import units_of
from headrace.wire.errors import ErrorCode

REPORT_TIMEOUT_S: Final = 60.0


def bring_up(plan: DemoPlan, screen: Screen) -> None:
    """Starts the site: by Terraform if it can, else as `headrace up` does."""
    units = units_of(plan.site)
    kinds = Counter(unit.kind for unit in units)
    screen.step(f"{len(plan.site.datacenters)} datacenters on this machine, {len(units)} processes")
    screen.print(", ".join(f"{count} × {kind}" for kind, count in kinds.items()))
    if problem := terraform.missing(plan.site):
        screen.print(f"{problem}: started as by `headrace up`")
        _up(plan, screen, units)
    else:
        _apply(plan, screen, units)
    for datacenter in plan.site.datacenters:
        hosts = [address.host for address in datacenter.brokers.values()]
        front = f", services publish to {datacenter.balancer}" if datacenter in plan.site.sources else ""
        screen.print(
            f"{datacenter.name:<9} ZooKeeper {datacenter.zookeeper}, brokers {hosts[0]}"
            + "".join(f", .{host.rpartition('.')[2]}" for host in hosts[1:])
            + front
        )
    for note in {unit.probe.note() for unit in units if isinstance(unit.probe, BalancerProbe)} - {""}:
        screen.print(note)


def _up(plan: DemoPlan, screen: Screen, units: Sequence[Unit]) -> None:
    with screen.bars({"ready": len(units)}) as bars:
        ready: list[str] = []

        def show(unit: Unit, event: str) -> None:
            if event == "ready":
                ready.append(unit.name)
                bars.show("ready", len(ready))

        operate.up(plan.site, show)


def _apply(plan: DemoPlan, screen: Screen, units: Sequence[Unit]) -> None:
    screen.print(f"terraform apply in {terraform.folder_of(plan.site)}")
    with screen.bars({"ready": len(units)}) as bars:

        def show(progress: TerraformProgress) -> None:
            if progress.is_planned:
                bars.show("ready", len(units) - len(progress.pending_units()))

        result = terraform.apply(plan.site, units, show, screen.warn)
    screen.print(f"Terraform: {result.outcome()}")


def make_topics(plan: DemoPlan, screen: Screen) -> RunStart:
    """Creates the topic in every datacenter that has services; returns where this run begins."""
    screen.step(f"topic {TOPIC}: {PARTITION_COUNT} partitions in each datacenter of services")
    for datacenter in plan.site.sources:
        with Admin(datacenter.bootstrap) as admin:
            try:
                admin.create_topic(TOPIC, PARTITION_COUNT)
                screen.print(f"created in {datacenter.name}")
            except BrokerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                screen.print(f"{datacenter.name} already has the topic: this run publishes into it, too")
    ends = {}
    with Admin(plan.site.analysis.bootstrap) as admin:
        if TOPIC in admin.topics():
            ends = {partition: end.offset for partition, end in admin.list_offsets(TOPIC).items()}
    return RunStart(ends, next_load(plan.site.webhdfs_url, TOPIC))


def report_before(plan: DemoPlan) -> Report:
    """Returns the audit's report of the topic before this run."""
    store = AuditStore(plan.site.audit_store_url)
    try:
        return report(store, TOPIC)
    finally:
        store.close()


def report_after(plan: DemoPlan, screen: Screen, result: FlowResult) -> Report:
    """Waits until every tier has reported this run's hours; returns the audit's report of them."""
    screen.step("audit: what each tier counted")
    hours = result.published_hours or Counter({plan.from_ms - plan.from_ms % HOUR_MS: 0})
    from_ms, to_ms = min(hours), max(hours) + HOUR_MS
    store = AuditStore(plan.site.audit_store_url)
    try:
        with screen.bars({"rows complete": 1}) as bars:

            def show(now: Report) -> None:
                complete = sum(verdict.status == "complete" for verdict in now.verdicts)
                bars.show("rows complete", complete, total=max(1, len(now.verdicts)))

            return wait_until_resolved(
                lambda: report(store, TOPIC, from_ms, to_ms), REPORT_TIMEOUT_S, progress=show
            )
    finally:
        store.close()


def seal(plan: DemoPlan, screen: Screen, result: FlowResult) -> Sealing:
    """Waits until Airflow has sealed the hours that the audit proves complete."""
    screen.step(f"the hours are sealed: DAG seal-{TOPIC}, on the audit's proof")
    return wait_for_seals(plan.site, TOPIC, result.last_load)
