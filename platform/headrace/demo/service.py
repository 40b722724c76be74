"""One service of the demo: a process that publishes page views (`python -m headrace.demo.service`).

Owns its share of the input and its pace. How an event is published is `headrace.events`' business.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from headrace.client.faults import DropPlan
from headrace.demo.access_log import HOUR_MS, LoggedView, parse_line
from headrace.demo.page_views import page_views
from headrace.demo.told import tell, until_told_to_stop
from headrace.events import EventPublisher

TELL_INTERVAL_S: Final = 0.25
CLOSE_TIMEOUT_S: Final = 60.0


class Share(NamedTuple):
    """This service's part of all services: lines number, number + of, number + 2 · of, …"""

    number: int
    of: int

    @staticmethod
    def parse(text: str) -> Share:
        number, _, of = text.partition("/")
        return Share(int(number), int(of))


class LogReplay:
    """A share of an access log's lines; those that do not parse are kept in `aside_path`, as they are."""

    def __init__(self, path: Path, share: Share, aside_path: Path) -> None:
        self._path, self._share, self._aside_path = path, share, aside_path

    def __iter__(self) -> Iterator[LoggedView]:
        with self._path.open("rb") as log, self._aside_path.open("wb") as aside:
            for number, line in enumerate(log):
                if number % self._share.of != self._share.number:
                    continue
                view = parse_line(line)
                if view is None:
                    aside.write(line)
                else:
                    yield view


def paced(views: Iterable[LoggedView], per_second: float) -> Iterator[LoggedView]:
    """The same views, not faster than `per_second`; after a delay it catches up."""
    started = time.monotonic()
    for count, view in enumerate(views):
        ahead_s = count / per_second - (time.monotonic() - started)
        if ahead_s > 0.005:
            time.sleep(ahead_s)
        yield view


def main() -> None:
    options = _options()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = until_told_to_stop()
    share = Share.parse(options.share)
    views: Iterable[LoggedView]
    if options.access_log:
        views = LogReplay(options.access_log, share, options.aside)
    else:
        count = options.count // share.of + (share.number < options.count % share.of)
        views = page_views(
            count, seed=options.seed + share.number, from_ms=options.from_ms, until_ms=options.until_ms
        )
    plan = DropPlan(options.topic, options.drop, after=options.drop_after) if options.drop else None
    publisher = EventPublisher(
        datacenter=options.datacenter,
        service=options.service,
        server=options.server,
        bootstrap=options.bootstrap,
        registry_url=options.registry,
        producer_options={"interceptor": plan} if plan else None,
    )
    hours: Counter[int] = Counter()
    told_at = 0.0
    arriving = paced(views, options.per_second)
    for view in arriving:
        if stop.is_set():
            break
        together = [view]
        if plan is not None and hours.total() == options.drop_after:
            # Events that are handed over together, to one partition, make one batch: the one that is lost.
            together += islice(arriving, options.drop - 1)
            publisher.flush()
        for each in together:
            key = each.fields["member_id"] or each.fields["remote_host"]
            partition = 0 if len(together) > 1 else None
            publisher.publish(options.topic, each.fields, key=key, time_ms=each.time_ms, partition=partition)
            hours[each.time_ms - each.time_ms % HOUR_MS] += 1
        if time.monotonic() - told_at > TELL_INTERVAL_S:
            tell(published=hours.total())
            told_at = time.monotonic()
    publisher.close(CLOSE_TIMEOUT_S)
    tell(
        published=hours.total(),
        hours=hours,
        dropped=[batch._asdict() for batch in plan.dropped] if plan else [],
        closed=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.service", description=__doc__)
    parser.add_argument("--datacenter", required=True)
    parser.add_argument("--service", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--registry", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--share", required=True, help="this service's number, from 0, and how many there are: 2/6"
    )
    parser.add_argument("--per-second", required=True, type=float)
    parser.add_argument("--access-log", type=Path)
    parser.add_argument("--aside", type=Path, help="where lines that do not parse are kept")
    parser.add_argument("--count", type=int, help="page views of all services together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from-ms", type=int)
    parser.add_argument("--until-ms", type=int)
    parser.add_argument("--drop", type=int, default=0, help="events to throw away inside the client")
    parser.add_argument("--drop-after", type=int, default=0, help="how many are let pass before")
    return parser.parse_args()


if __name__ == "__main__":
    main()
