"""One service of the demo: a process that publishes page views (`python -m headrace.demo.service`).

Owns its share of the input and its rate; publishes by `headrace.events`.
"""

from __future__ import annotations

import argparse
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from headrace.client.faults import DropPlan
from headrace.demo.access_log import HOUR_MS, LoggedView, parse_line
from headrace.demo.child import PROGRESS_INTERVAL_S, send_progress, stop_event
from headrace.demo.page_views import page_views
from headrace.events import EventPublisher

CLOSE_TIMEOUT_S: Final = 60.0


class Share(NamedTuple):
    """The share of one service: the lines number, number + services, number + 2 · services, …"""

    number: int
    services: int

    @staticmethod
    def parse(text: str) -> Share:
        """Parses `2/6`, the third share of six."""
        number, _, services = text.partition("/")
        return Share(int(number), int(services))

    def size(self, total: int) -> int:
        """How many of `total` are in this share."""
        return len(range(self.number, total, self.services))


class LogReplay:
    """The page views of a share of an access log; copies lines that do not parse to `aside_path`."""

    def __init__(self, path: Path, share: Share, aside_path: Path) -> None:
        self._path, self._share, self._aside_path = path, share, aside_path

    def __iter__(self) -> Iterator[LoggedView]:
        with self._path.open("rb") as log, self._aside_path.open("wb") as aside:
            for number, line in enumerate(log):
                if number % self._share.services != self._share.number:
                    continue
                view = parse_line(line)
                if view is None:
                    aside.write(line)
                else:
                    yield view


def paced(views: Iterable[LoggedView], per_second: float) -> Iterator[LoggedView]:
    """Yields the views, at most `per_second` on average; catches up after a delay."""
    started = time.monotonic()
    for count, view in enumerate(views):
        ahead_s = count / per_second - (time.monotonic() - started)
        if ahead_s > 0.005:
            time.sleep(ahead_s)
        yield view


def main() -> None:
    options = _options()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = stop_event()
    drops = DropPlan(options.topic, options.drop, after=options.drop_after) if options.drop else None
    publisher = EventPublisher(
        datacenter=options.datacenter,
        service=options.service,
        server=options.server,
        bootstrap=options.bootstrap,
        registry_url=options.registry,
        producer_options={"interceptor": drops} if drops else None,
        allow_before_1990=True,  # the times are dates of an access log, so their unit is known
    )
    hours = _publish(options, publisher, stop)
    publisher.close(CLOSE_TIMEOUT_S)
    send_progress(
        published=hours.total(),
        hours=hours,
        dropped=[batch._asdict() for batch in drops.dropped] if drops else [],
        closed=True,
    )


def _views(options: argparse.Namespace) -> Iterable[LoggedView]:
    share = Share.parse(options.share)
    if options.access_log:
        return LogReplay(options.access_log, share, options.aside)
    return page_views(
        share.size(options.count),
        seed=options.seed + share.number,
        from_ms=options.from_ms,
        until_ms=options.until_ms,
    )


def _publish(options: argparse.Namespace, publisher: EventPublisher, stop: threading.Event) -> Counter[int]:
    """Publishes this service's share until `stop` is set; returns its events by hour (Unix ms)."""
    hours: Counter[int] = Counter()
    sent_at = 0.0
    views = paced(_views(options), options.per_second)
    for view in views:
        if stop.is_set():
            break
        if options.drop and hours.total() == options.drop_after:
            batch = [view, *islice(views, options.drop - 1)]
            _publish_dropped_batch(options.topic, publisher, batch)
        else:
            batch = [view]
            _publish_view(options.topic, publisher, view)
        hours.update(time_ms - time_ms % HOUR_MS for time_ms, _ in batch)
        if time.monotonic() - sent_at > PROGRESS_INTERVAL_S:
            send_progress(published=hours.total())
            sent_at = time.monotonic()
    return hours


def _publish_dropped_batch(topic: str, publisher: EventPublisher, views: list[LoggedView]) -> None:
    """Publishes the events of the planted loss, which the publisher's `DropPlan` drops."""
    # They must be one batch: published together, to one partition, after a flush.
    publisher.flush()
    for view in views:
        _publish_view(topic, publisher, view, partition=0 if len(views) > 1 else None)


def _publish_view(
    topic: str, publisher: EventPublisher, view: LoggedView, partition: int | None = None
) -> None:
    time_ms, fields = view
    key = fields["member_id"] or fields["remote_host"]
    publisher.publish(topic, fields, key=key, time_ms=time_ms, partition=partition)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.service", description=__doc__)
    parser.add_argument("--datacenter", required=True)
    parser.add_argument("--service", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--registry", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--share", required=True, help="INDEX/COUNT, index from 0, such as 2/6")
    parser.add_argument("--per-second", required=True, type=float)
    parser.add_argument("--access-log", type=Path)
    parser.add_argument("--aside", type=Path, help="the file for lines that do not parse")
    parser.add_argument("--count", type=int, help="number of page views of all services")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from-ms", type=int)
    parser.add_argument("--until-ms", type=int)
    parser.add_argument("--drop", type=int, default=0, help="events to drop inside the client")
    parser.add_argument("--drop-after", type=int, default=0, help="events that are delivered before")
    return parser.parse_args()


if __name__ == "__main__":
    main()
