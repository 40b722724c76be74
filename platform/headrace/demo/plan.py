"""The plan of one run of the demo: its input, its services, and where it writes.

Owns the run's options and what follows from them. Pure, except that it reads the access log once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.demo.access_log import HOUR_MS, count_by_hour
from headrace.site.errors import SiteError
from headrace.site.site import Datacenter, Site

TOPIC: Final = "page-view"
PARTITION_COUNT: Final = 3
SERVICES_PER_DATACENTER: Final = 3
GROUP: Final = "page-view-dashboard"
EVENT_COUNT: Final = 20_000
SPAN_MS: Final = 3 * HOUR_MS
# An hour is closed, and may be sealed, this long after its end (`grace` in dags/topics.yaml).
GRACE_MS: Final = 10 * 60_000
PUBLISHING_S: Final = 15.0
# Each service publishes at least at this rate, however small the input is.
PER_SECOND_MIN: Final = 50.0
DROP_MAX: Final = 1_000


@dataclass(frozen=True)
class DemoService:
    """One publishing process: its name, its datacenter, and its share of the input.

    `number`: its index among all services; `drop`: how many events its client loses on purpose.
    """

    name: str
    server: str
    datacenter: Datacenter
    number: int
    drop: int = 0


@dataclass(frozen=True)
class DemoPlan:
    """One run. Times are Unix ms. `line_hours`: lines of the access log by hour (Unix ms). `kills`: a broker
    is killed for good in the middle.
    """

    site: Site
    started_ms: int
    directory: Path
    access_log: Path | None
    event_count: int
    per_second: float
    services: tuple[DemoService, ...]
    line_hours: Counter[int] = field(default_factory=Counter)
    unreadable_line_count: int = 0
    kills: bool = False

    @property
    def until_ms(self) -> int:
        """The end of the last closed hour: page views are generated for the hours before it."""
        return (self.started_ms - GRACE_MS) // HOUR_MS * HOUR_MS

    @property
    def from_ms(self) -> int:
        return self.until_ms - SPAN_MS

    @property
    def real_time(self) -> Datacenter:
        """The datacenter whose events are read in real time: the first one that has services."""
        return self.site.sources[0]

    @property
    def real_time_event_count(self) -> int:
        """Estimates how many events are published in the `real_time` datacenter."""
        here = sum(service.datacenter == self.real_time for service in self.services)
        return self.event_count * here // len(self.services)


def make_plan(
    site: Site,
    *,
    access_log: Path | None,
    drop: int,
    event_count: int,
    publishing_s: float,
    now_ms: int,
    kills: bool = False,
) -> DemoPlan:
    """Raises `SiteError` if the access log cannot be read or an option is out of range."""
    if not 0 <= drop <= DROP_MAX:
        raise SiteError(f"--drop {drop} is out of range; it takes 0 to {DROP_MAX} events")
    hours: Counter[int] = Counter()
    if access_log is not None:
        try:
            with access_log.open("rb") as lines:
                hours = count_by_hour(lines)
        except OSError as error:
            raise SiteError(f"access log {access_log} cannot be read: {error.strerror}") from error
        event_count = sum(hours.values())
    unreadable = hours.pop(-1, 0)
    event_count -= unreadable
    if event_count < 2 * (drop + 1):
        source = f"access log {access_log} has" if access_log else "--count asks for"
        raise SiteError(f"{source} {event_count} events; the demo needs at least {2 * (drop + 1)}")
    services = _services(site, drop)
    return DemoPlan(
        site=site,
        started_ms=now_ms,
        directory=site.home / "demo" / str(now_ms),
        access_log=access_log.resolve() if access_log else None,
        event_count=event_count,
        per_second=max(PER_SECOND_MIN, event_count / publishing_s / len(services)),
        services=services,
        line_hours=hours,
        unreadable_line_count=unreadable,
        kills=kills,
    )


def _services(site: Site, drop: int) -> tuple[DemoService, ...]:
    # Datacenters alternate, so that each gets lines from all parts of the log.
    places = [
        (number, datacenter) for number in range(SERVICES_PER_DATACENTER) for datacenter in site.sources
    ]
    return tuple(
        DemoService(
            name=f"frontend-{number + 1}",
            server=f"fe{number + 1}.{datacenter.name}",
            datacenter=datacenter,
            number=index,
            # The last service is in a datacenter whose events are not read in real time.
            drop=drop if index == len(places) - 1 else 0,
        )
        for index, (number, datacenter) in enumerate(places)
    )
