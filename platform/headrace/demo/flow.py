"""The flow of events in one run: published, read in real time, mirrored and loaded, all at the same time.

Owns when the flow is over, the handover in the consumer group, and the counts of all processes at the end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.demo.access_log import HOUR_MS, count_by_hour
from headrace.demo.child import Child, stop_all
from headrace.demo.killing import Killing
from headrace.demo.latency import Latencies
from headrace.demo.loads import DemoLoads, loads_of
from headrace.demo.outcome import DemoLoad, latency_to_hdfs
from headrace.demo.plan import PARTITION_COUNT, TOPIC, DemoPlan
from headrace.demo.processes import ARRIVALS_NAME, start_reader, start_service, start_watcher
from headrace.demo.recount import RunStart
from headrace.demo.screen import Bars, Screen
from headrace.demo.watcher import Arrivals
from headrace.fleet.airflow_client import Run
from headrace.site.errors import SiteError

POLL_INTERVAL_S: Final = 0.2
READY_TIMEOUT_S: Final = 90.0
# The demo stops waiting when no count has changed for so long; the audit then names what is missing.
STANDSTILL_MAX_S: Final = 20.0
LAST_LOAD_TIMEOUT_S: Final = 600.0
KILL_AT_SHARE: Final = 3  # a broker is killed after a third of the events: enough come afterwards

PUBLISHED: Final = "published"
READ: Final = "read in {}"
ARRIVED: Final = "in analysis"
LOADED: Final = "in HDFS"


class Progress(NamedTuple):
    """How many events have passed each hop so far."""

    published: int
    read: int
    arrived: int
    loaded: int


class Expected(NamedTuple):
    """How many events will be read and will arrive: estimates until every service has closed."""

    read: int
    arrived: int
    is_final: bool


@dataclass(frozen=True)
class FlowResult:
    """What the processes of a run have counted.

    `published_hours`: events by hour (Unix ms); `aside_hours`: lines that do not parse; `dropped`: the
    batches lost on purpose; `brought_back_hours`: events of earlier runs that this run's repair brought.
    """

    published: int
    published_hours: Counter[int]
    aside_hours: Counter[int]
    dropped: list[dict[str, int]]
    latencies: dict[str, Latencies]
    loads: list[DemoLoad]
    last_load: Run
    brought_back_hours: Counter[int] = field(default_factory=Counter)


def expected_events(plan: DemoPlan, published: Sequence[int], *, is_final: bool) -> Expected:
    """Returns how many events to expect downstream of the services.

    `published`: the count of each of the plan's services; `is_final`: every service has closed.
    """
    if not is_final:
        return Expected(plan.real_time_event_count, plan.event_count, is_final)
    delivered = [count - service.drop for count, service in zip(published, plan.services, strict=True)]
    read = sum(
        count
        for count, service in zip(delivered, plan.services, strict=True)
        if service.datacenter == plan.real_time
    )
    return Expected(read, sum(delivered), is_final)


def is_over(progress: Progress, expected: Expected, *, has_handed_over: bool, unchanged_s: float) -> bool:
    """Returns whether all events have been read and have arrived, or no more will.

    `has_handed_over`: reader 1 owns all partitions; `unchanged_s`: how long `progress` has been the same.
    """
    if not expected.is_final:
        return False
    is_complete = progress.read >= expected.read and progress.arrived >= expected.arrived
    return (is_complete and has_handed_over) or unchanged_s > STANDSTILL_MAX_S


class Handover:
    """Reader 2 leaves the group once `at` events are read, and reader 1 takes over its partitions."""

    def __init__(self, readers: Sequence[Child], at: int) -> None:
        self._stays, self._leaves = readers
        self._at = at
        self._has_begun = self.is_done = False

    def poll(self, read: int, screen: Screen) -> None:
        if not self._has_begun and read >= self._at:
            self._has_begun = True
            self._leaves.ask_to_stop()
        if self.is_done or not self._has_begun or self._leaves.is_running():
            return
        owned = self._stays.latest("partitions")
        if self._leaves.latest("latencies") and len(owned) == PARTITION_COUNT:
            self.is_done = True
            count = self._leaves.latest("read")
            screen.print(f"half way: reader 2 leaves after {count:,} events; reader 1 takes over {owned}")


@dataclass(frozen=True)
class Flow:
    """The processes and loads of a run; `services` in the order of the plan's."""

    plan: DemoPlan
    services: Sequence[Child]
    readers: Sequence[Child]
    watcher: Child
    loads: DemoLoads

    def check(self) -> None:
        """Raises `SiteError` if one of the processes has failed."""
        _check([*self.services, *self.readers, self.watcher])

    def expected(self) -> Expected:
        # Read before the counts, which are final only once a service has closed.
        is_final = all(service.latest("closed") for service in self.services)
        return expected_events(self.plan, _latest(self.services, "published"), is_final=is_final)

    def progress(self) -> Progress:
        return Progress(
            published=sum(_latest(self.services, "published")),
            read=sum(_latest(self.readers, "read")),
            arrived=self.watcher.latest("arrived", 0),
            loaded=self.loads.rows,
        )

    def stop(self) -> None:
        """Ends all processes; returns once their last progress is here."""
        stop_all([*self.readers, self.watcher])
        stop_all(self.services)
        self.check()

    def result(self) -> FlowResult:
        aside_hours: Counter[int] = Counter()
        for path in self.plan.directory.glob("*.unparsable.log"):
            with path.open("rb") as lines:
                aside_hours.update(count_by_hour(lines))
        loads = self.loads.committed()
        real_time = Latencies()
        real_time.update(Latencies.from_json(reader.latest("latencies", {})) for reader in self.readers)
        arrivals = Arrivals.read(self.plan.directory / ARRIVALS_NAME)
        hours: Counter[int] = Counter()
        for service in self.services:
            hours.update({int(hour_ms): count for hour_ms, count in service.latest("hours", {}).items()})
        assert self.loads.last is not None, "the flow is over once a load has ended"
        return FlowResult(
            published=sum(_latest(self.services, "published")),
            published_hours=hours,
            aside_hours=aside_hours,
            dropped=[batch for service in self.services for batch in service.latest("dropped", [])],
            latencies={
                f"service → consumer in {self.plan.real_time.name}": real_time,
                "service → analysis datacenter": Latencies.from_json(self.watcher.latest("latencies", {})),
                "service → readable in HDFS": latency_to_hdfs(arrivals, loads),
            },
            loads=loads,
            last_load=self.loads.last,
        )


def run_flow(plan: DemoPlan, screen: Screen, start: RunStart) -> FlowResult:
    """Publishes, reads, mirrors and loads, all at the same time; returns when all events are loaded."""
    here = plan.real_time.name
    screen.step("events flow: published, read in real time, mirrored, loaded")
    plan.directory.mkdir(parents=True, exist_ok=True)
    if plan.access_log:
        screen.print(f"{plan.event_count:,} lines of {plan.access_log}, each at its own time")
        if plan.unreadable_line_count:
            screen.print(f"{plan.unreadable_line_count:,} lines have no time: they will be kept aside")
    else:
        hours = (plan.until_ms - plan.from_ms) // HOUR_MS
        screen.print(f"{plan.event_count:,} page views of the last {hours} whole hours")
    with ExitStack() as stack:
        loads = stack.enter_context(loads_of(plan.site, TOPIC, start.load_sequence))
        watcher = start_watcher(plan)
        stack.callback(stop_all, [watcher])
        readers = [start_reader(plan, number) for number in (1, 2)]
        stack.callback(stop_all, readers)
        _wait_until_shared(readers, watcher)
        shares = " and ".join(f"{reader.latest('partitions')}" for reader in readers)
        screen.print(f"a consumer group of two in {here} shares its partitions: {shares}")
        services = [start_service(plan, service) for service in plan.services]
        stack.callback(stop_all, services)
        in_each = len(services) // len(plan.site.sources)
        places = " and ".join(datacenter.name for datacenter in plan.site.sources)
        screen.print(f"{len(services)} services publish, {in_each} each in {places}")
        screen.print(f"Airflow loads what arrives: DAG load-{TOPIC}, triggered over its REST API")
        flow = Flow(plan, services, readers, watcher, loads)
        totals = {
            PUBLISHED: plan.event_count,
            READ.format(here): plan.real_time_event_count,
            ARRIVED: plan.event_count,
            LOADED: plan.event_count,
        }
        with screen.bars(totals) as bars, _killing(flow) as killing:
            arrived = _follow(flow, killing, bars, screen)
            flow.stop()
            _finish_loads(flow, arrived, bars)
        return flow.result()


def _latest(children: Sequence[Child], field: str) -> list[int]:
    return [child.latest(field, 0) for child in children]


def _check(children: Sequence[Child]) -> None:
    for child in children:
        if failure := child.failure():
            raise SiteError(failure)


def _wait_until_shared(readers: Sequence[Child], watcher: Child) -> None:
    """Waits until each reader owns partitions."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not all(reader.latest("partitions") for reader in readers):
        _check([*readers, watcher])
        if time.monotonic() > deadline:
            raise SiteError(
                f"the consumer group has not shared its partitions within {READY_TIMEOUT_S:.0f} s; "
                f"see {readers[0].log_path}"
            )
        time.sleep(POLL_INTERVAL_S)


def _killing(flow: Flow) -> AbstractContextManager[Killing | None]:
    """Kills a broker in the middle, if the run is to."""
    if not flow.plan.kills:
        return nullcontext()
    return Killing(flow.plan, flow.plan.event_count // KILL_AT_SHARE, lambda: flow.progress().published)


def _follow(flow: Flow, killing: Killing | None, bars: Bars, screen: Screen) -> int:
    """Shows the progress until the flow is over; returns how many events have arrived."""
    handover = Handover(flow.readers, at=flow.plan.real_time_event_count // 2)
    changed_at, before = time.monotonic(), None
    while True:
        flow.check()
        expected, progress = flow.expected(), flow.progress()
        bars.show_all(
            {
                PUBLISHED: (progress.published, progress.published if expected.is_final else None),
                READ.format(flow.plan.real_time.name): (progress.read, expected.read),
                ARRIVED: (progress.arrived, expected.arrived),
                LOADED: (progress.loaded, expected.arrived),
            }
        )
        handover.poll(progress.read, screen)
        if killing is not None:
            killing.poll(screen)
        if progress != before:
            changed_at, before = time.monotonic(), progress
        unchanged_s = time.monotonic() - changed_at
        if is_over(progress, expected, has_handed_over=handover.is_done, unchanged_s=unchanged_s):
            if killing is not None:
                killing.end(screen)
            return progress.arrived
        flow.loads.poll(progress.arrived, is_all=False)
        time.sleep(POLL_INTERVAL_S)


def _finish_loads(flow: Flow, arrived: int, bars: Bars) -> None:
    """Waits until all events that have arrived are loaded."""
    expected = flow.expected().arrived
    deadline = time.monotonic() + LAST_LOAD_TIMEOUT_S
    while not flow.loads.is_done:
        if time.monotonic() > deadline:
            raise SiteError(f"load-{TOPIC} has not ended after {LAST_LOAD_TIMEOUT_S:.0f} s; see Airflow")
        flow.loads.poll(arrived, is_all=True)
        bars.show(LOADED, flow.loads.rows, total=expected)
        time.sleep(POLL_INTERVAL_S)
