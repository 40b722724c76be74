"""One run of the demo, step by step: the site, the flow, the account.

Owns the order of the steps and when each is over. What the processes do is theirs; what is printed at the end
is `ending`'s.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from headrace.agent.probes import BalancerProbe
from headrace.agent.unit import Unit
from headrace.audit.report import Report, report, wait_until_resolved
from headrace.audit.store import AuditStore
from headrace.client import Admin
from headrace.client.errors import BrokerError
from headrace.demo.access_log import HOUR_MS, count_by_hour
from headrace.demo.children import start_reader, start_service, start_watcher
from headrace.demo.latency import Latencies
from headrace.demo.loads import (
    Loads,
    Sealing,
    loads_of,
    wait_for_seals,
)
from headrace.demo.outcome import Load, latency_to_hdfs
from headrace.demo.plan import PARTITION_COUNT, TOPIC, DemoPlan
from headrace.demo.progress import Bars, Stage
from headrace.demo.recount import Start, next_load
from headrace.demo.told import Child, end_all
from headrace.demo.watcher import Notes
from headrace.fleet import operate, terraform
from headrace.fleet.terraform import Said
from headrace.fleet.units import units_of
from headrace.site.errors import SiteError
from headrace.wire.errors import ErrorCode

POLL_INTERVAL_S: Final = 0.2
READY_TIMEOUT_S: Final = 90.0
# How long everything may stand still before the demo stops waiting and lets the audit say what is missing.
STANDSTILL_S: Final = 20.0
LAST_LOAD_TIMEOUT_S: Final = 600.0
SETTLE_TIMEOUT_S: Final = 60.0

PUBLISHED = "published"
READ = "read in {}"
ARRIVED = "in analysis"
LOADED = "in HDFS"


@dataclass
class Flow:
    """The processes of a run, and what they came to."""

    services: list[Child]
    readers: list[Child]
    watcher: Child
    loading: Loads
    published: int = 0
    aside_hours: Counter[int] = field(default_factory=Counter)
    published_hours: Counter[int] = field(default_factory=Counter)
    dropped: list[dict[str, int]] = field(default_factory=list)
    latencies: dict[str, Latencies] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)

    @property
    def children(self) -> list[Child]:
        return [*self.services, *self.readers, self.watcher]

    def count(self, children: Sequence[Child], what: str) -> int:
        return sum(child.said(what, 0) for child in children)


def bring_up(plan: DemoPlan, stage: Stage) -> None:
    units = units_of(plan.site)
    kinds = Counter(unit.kind for unit in units)
    stage.step(f"{len(plan.site.datacenters)} datacenters on this machine, {len(units)} processes")
    stage.say(", ".join(f"{count} × {kind}" for kind, count in kinds.items()))
    if reason := terraform.missing(plan.site):
        stage.say(f"{reason}: provisioned as `headrace up` does it")
        _bring_up_alone(plan, stage, units)
    else:
        _apply(plan, stage, units)
    for datacenter in plan.site.datacenters:
        hosts = [address.host for address in datacenter.brokers.values()]
        front = f", services publish to {datacenter.balancer}" if datacenter in plan.site.sources else ""
        stage.say(
            f"{datacenter.name:<9} ZooKeeper {datacenter.zookeeper}, brokers {hosts[0]}"
            + "".join(f", .{host.rpartition('.')[2]}" for host in hosts[1:])
            + front
        )
    for note in {unit.probe.note() for unit in units if isinstance(unit.probe, BalancerProbe)} - {""}:
        stage.say(note)


def _bring_up_alone(plan: DemoPlan, stage: Stage, units: Sequence[Unit]) -> None:
    with stage.bars({"ready": len(units)}) as bars:
        ready: list[str] = []

        def tell(unit: Unit, what: str) -> None:
            if what == "ready":
                ready.append(unit.name)
                bars.show("ready", len(ready))

        operate.up(plan.site, tell)


def _apply(plan: DemoPlan, stage: Stage, units: Sequence[Unit]) -> None:
    stage.say(f"terraform apply in {terraform.folder_of(plan.site)}")
    with stage.bars({"ready": len(units)}) as bars:

        def tell(said: Said) -> None:
            if said.is_planned:
                bars.show("ready", len(units) - len(terraform.units_among(said.planned - said.done)))

        said = terraform.apply(plan.site, units, tell, stage.warn)
    stage.say(f"Terraform: {said.outcome()}")


def make_topics(plan: DemoPlan, stage: Stage) -> Start:
    """The topic in every datacenter of services. Returns where this run begins."""
    stage.step(f"topic {TOPIC}: {PARTITION_COUNT} partitions in each datacenter of services")
    for datacenter in plan.site.sources:
        with Admin(datacenter.bootstrap) as admin:
            try:
                admin.create_topic(TOPIC, PARTITION_COUNT)
                stage.say(f"created in {datacenter.name}")
            except BrokerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                stage.say(f"{datacenter.name} has it already: this run publishes into the same topic")
    with Admin(plan.site.analysis.bootstrap) as admin:
        is_there = TOPIC in admin.topics()
        ends = (
            {partition: end.offset for partition, end in admin.list_offsets(TOPIC).items()}
            if is_there
            else {}
        )
    return Start(ends, next_load(plan.site.webhdfs_url, TOPIC))


def flow(plan: DemoPlan, stage: Stage, start: Start) -> Flow:
    """Publishes, reads, mirrors and loads, all at the same time; returns when all of it has arrived."""
    here = plan.real_time.name
    stage.step("events flow: published, read in real time, mirrored, loaded")
    plan.directory.mkdir(parents=True, exist_ok=True)
    if plan.access_log:
        stage.say(f"{plan.event_count:,} lines of {plan.access_log}, each at its own time")
        if plan.unreadable_line_count:
            stage.say(f"{plan.unreadable_line_count:,} lines have no time: they will be kept aside")
    else:
        hours = (plan.until_ms - plan.from_ms) // HOUR_MS
        stage.say(f"{plan.event_count:,} page views of the last {hours} whole hours")
    with ExitStack() as stack:
        loads = stack.enter_context(loads_of(plan.site, TOPIC, start.load_sequence))
        watcher = start_watcher(plan)
        stack.callback(end_all, [watcher])
        readers = [start_reader(plan, number) for number in (1, 2)]
        stack.callback(end_all, readers)
        _wait_for(
            "the consumer group to share the partitions", lambda: _have_shared(readers), [*readers, watcher]
        )
        shares = " and ".join(f"{reader.said('partitions')}" for reader in readers)
        stage.say(f"a consumer group of two in {here} shares its partitions: {shares}")
        services = [start_service(plan, service) for service in plan.services]
        stack.callback(end_all, services)
        in_each = len(services) // len(plan.site.sources)
        places = " and ".join(datacenter.name for datacenter in plan.site.sources)
        stage.say(f"{len(services)} services publish, {in_each} each in {places}")
        stage.say(f"Airflow loads what arrives: DAG load-{TOPIC}, triggered over its REST API")
        done = Flow(services, readers, watcher, loads)
        totals = {
            PUBLISHED: plan.event_count,
            READ.format(here): plan.real_time_event_count,
            ARRIVED: plan.event_count,
            LOADED: plan.event_count,
        }
        with stage.bars(totals) as bars:
            _follow(plan, done, bars, stage)
        _collect(plan, done)
    return done


def _have_shared(readers: Sequence[Child]) -> bool:
    return all(reader.said("partitions") for reader in readers)


def _wait_for(what: str, is_true: Callable[[], bool], children: Sequence[Child]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not is_true():
        _check(children)
        if time.monotonic() > deadline:
            raise SiteError(f"waited {READY_TIMEOUT_S:.0f} s in vain for {what}; see {children[0].log_path}")
        time.sleep(POLL_INTERVAL_S)


def _check(children: Sequence[Child]) -> None:
    for child in children:
        if failure := child.failure():
            raise SiteError(failure)


def _follow(plan: DemoPlan, done: Flow, bars: Bars, stage: Stage) -> None:
    """Shows how far everything is until nothing is missing any more, or nothing moves any more."""
    expected = plan.event_count
    here = sum(service.drop for service in plan.services if service.datacenter == plan.real_time)
    moved_at, before = time.monotonic(), (0, 0, 0, 0)
    has_left = is_told = False
    while True:
        _check(done.children)
        services_closed = all(service.said("closed") for service in done.services)
        published = done.count(done.services, "published")
        in_real_time = [
            child
            for child, service in zip(done.services, plan.services, strict=True)
            if service.datacenter == plan.real_time
        ]
        if services_closed:
            expected = published - plan.drop
        expected_here = (
            done.count(in_real_time, "published") - here if services_closed else plan.real_time_event_count
        )
        now = (
            published,
            done.count(done.readers, "read"),
            done.watcher.said("arrived", 0),
            done.loading.rows,
        )
        bars.show_all(
            {
                PUBLISHED: (published, published if services_closed else None),
                READ.format(plan.real_time.name): (now[1], expected_here),
                ARRIVED: (now[2], expected),
                LOADED: (now[3], expected),
            }
        )
        if not has_left and now[1] >= plan.real_time_event_count // 2:
            has_left = True
            done.readers[1].ask_to_stop()
        if (
            has_left
            and not is_told
            and not done.readers[1].is_running()
            and done.readers[1].said("latencies")
        ):
            owned = done.readers[0].said("partitions")
            if len(owned) == PARTITION_COUNT:
                is_told = True
                left = f"half way: reader 2 leaves after {done.readers[1].said('read'):,} events"
                stage.say(f"{left}; reader 1 takes over {owned}")
        if now != before:
            moved_at, before = time.monotonic(), now
        is_over = services_closed and is_told and now[1] >= expected_here and now[2] >= expected
        if is_over or (services_closed and time.monotonic() - moved_at > STANDSTILL_S):
            break
        done.loading.look(now[2], is_all=False)
        time.sleep(POLL_INTERVAL_S)
    end_all([*done.readers, done.watcher])
    end_all(done.services)
    _check(done.children)
    deadline = time.monotonic() + LAST_LOAD_TIMEOUT_S
    while not done.loading.is_done:
        if time.monotonic() > deadline:
            raise SiteError(
                f"load-{TOPIC} has not ended after {LAST_LOAD_TIMEOUT_S:.0f} s; look at it in Airflow"
            )
        done.loading.look(now[2], is_all=True)
        bars.show(LOADED, done.loading.rows, total=expected)
        time.sleep(POLL_INTERVAL_S)


def _collect(plan: DemoPlan, done: Flow) -> None:
    done.published = done.count(done.services, "published")
    for service in done.services:
        done.published_hours.update({int(hour): count for hour, count in service.said("hours", {}).items()})
        done.dropped += service.said("dropped", [])
    for path in plan.directory.glob("*.unparsable.log"):
        with path.open("rb") as lines:
            done.aside_hours.update(count_by_hour(lines))
    done.loads = done.loading.committed()
    real_time = Latencies()
    real_time.update(Latencies.from_json(reader.said("latencies", {})) for reader in done.readers)
    arrivals = Notes.read(plan.directory / "arrivals.bin")
    done.latencies = {
        f"service → consumer in {plan.real_time.name}": real_time,
        "service → analysis datacenter": Latencies.from_json(done.watcher.said("latencies", {})),
        "service → readable in HDFS": latency_to_hdfs(arrivals, done.loads),
    }


def hours_of(plan: DemoPlan, done: Flow) -> tuple[int, int]:
    """The hours of event time that this run touched: [from, to), Unix ms."""
    hours = done.published_hours or Counter({plan.from_ms - plan.from_ms % HOUR_MS: 0})
    return min(hours), max(hours) + HOUR_MS


def account(plan: DemoPlan, stage: Stage, done: Flow) -> Report:
    """Waits until every tier has spoken, and judges."""
    stage.step("the account: what each tier counted")
    from_ms, to_ms = hours_of(plan, done)
    store = AuditStore(plan.site.audit_store_url)
    try:
        with stage.bars({"rows complete": 1}) as bars:

            def show(now: Report) -> None:
                complete = sum(verdict.status == "complete" for verdict in now.verdicts)
                bars.show("rows complete", complete, total=max(1, len(now.verdicts)))

            return wait_until_resolved(
                lambda: report(store, TOPIC, from_ms, to_ms), SETTLE_TIMEOUT_S, progress=show
            )
    finally:
        store.close()


def seal(plan: DemoPlan, stage: Stage, done: Flow) -> Sealing:
    """Waits until Airflow has sealed what the audit vouches for."""
    stage.step(f"the hours are sealed: DAG seal-{TOPIC}, on the audit's proof")
    assert done.loading.last is not None
    return wait_for_seals(plan.site, TOPIC, done.loading.last)


def report_before(plan: DemoPlan) -> Report:
    """What the audit knew of the topic before this run."""
    store = AuditStore(plan.site.audit_store_url)
    try:
        return report(store, TOPIC)
    finally:
        store.close()
