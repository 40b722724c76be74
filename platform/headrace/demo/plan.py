"""What one run of the demo is to do: its input, its services, where it writes.

Owns the run's options and what follows from them. Pure, but for reading the access log once.
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
SERVICES_A_DATACENTER: Final = 3
GROUP: Final = "page-view-dashboard"
EVENT_COUNT: Final = 20_000
SPAN_MS: Final = 3 * HOUR_MS
# Hours are closed, and may be sealed, this long after their end (`grace` in dags/topics.yaml).
GRACE_MS: Final = 10 * 60_000
PUBLISHING_S: Final = 15.0
# However small the input is, each service publishes at least so fast.
PER_SECOND_MIN: Final = 50.0
DROP_MAX: Final = 1_000


@dataclass(frozen=True)
class Service:
    """One publishing process: its name, where it runs, and which share of the input is its."""

    name: str
    server: str
    datacenter: Datacenter
    number: int
    drop: int = 0


@dataclass(frozen=True)
class DemoPlan:
    """One run. Times are Unix ms; `line_hours` is what awk would count in the access log."""

    site: Site
    started_ms: int
    directory: Path
    access_log: Path | None
    event_count: int
    per_second: float
    services: tuple[Service, ...]
    drop: int
    line_hours: Counter[int] = field(default_factory=Counter)
    unreadable_line_count: int = 0

    @property
    def until_ms(self) -> int:
        """The end of the last hour that is closed: page views are made up for the hours before it."""
        return (self.started_ms - GRACE_MS) // HOUR_MS * HOUR_MS

    @property
    def from_ms(self) -> int:
        return self.until_ms - SPAN_MS

    @property
    def real_time(self) -> Datacenter:
        """The datacenter whose events are read in real time: the first one."""
        return self.site.sources[0]

    @property
    def real_time_event_count(self) -> int:
        """About how many events are published there."""
        here = sum(service.datacenter == self.real_time for service in self.services)
        return self.event_count * here // len(self.services)


def make_plan(
    site: Site, *, access_log: Path | None, drop: int, event_count: int, publishing_s: float, now_ms: int
) -> DemoPlan:
    """Raises `SiteError` for an input that cannot be read or options that make no sense."""
    if not 0 <= drop <= DROP_MAX:
        raise SiteError(f"DROP={drop} is out of range; give 0 to {DROP_MAX} events")
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
        what = f"access log {access_log} holds" if access_log else "COUNT is"
        raise SiteError(f"{what} {event_count} events; the demo wants at least {2 * (drop + 1)}")
    services = _services(site, drop)
    return DemoPlan(
        site=site,
        started_ms=now_ms,
        directory=site.home / "demo" / str(now_ms),
        access_log=access_log.resolve() if access_log else None,
        event_count=event_count,
        per_second=max(PER_SECOND_MIN, event_count / publishing_s / len(services)),
        services=services,
        drop=drop,
        line_hours=hours,
        unreadable_line_count=unreadable,
    )


def _services(site: Site, drop: int) -> tuple[Service, ...]:
    # Dealt in turn, so that the services of every datacenter get lines from all over the log.
    places = [(number, datacenter) for number in range(SERVICES_A_DATACENTER) for datacenter in site.sources]
    return tuple(
        Service(
            name=f"frontend-{number + 1}",
            server=f"fe{number + 1}.{datacenter.name}",
            datacenter=datacenter,
            number=index,
            # The last one: a service of the datacenter that nobody watches in real time.
            drop=drop if index == len(places) - 1 else 0,
        )
        for index, (number, datacenter) in enumerate(places)
    )
