"""Reads a topic in the analysis datacenter as it is mirrored (`python -m headrace.demo.watcher`).

Owns the latency of the second hop, from `published-ms` to the mirrored partition, and the list of arrivals,
from which the parent computes the latency to HDFS.
"""

from __future__ import annotations

import argparse
import logging
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headrace.client import Admin, Consumer
from headrace.client.errors import UnknownTopicError
from headrace.demo.child import PROGRESS_INTERVAL_S, send_progress, stop_event
from headrace.demo.latency import Latencies
from headrace.events import published_ms
from headrace.process.clock import now_ms

PARTITIONS_INTERVAL_S: Final = 1.0
POLL_S: Final = 0.2
# Later arrivals are counted but not listed; one takes 24 bytes.
ARRIVALS_MAX: Final = 5_000_000


class Arrival(NamedTuple):
    """One record in the analysis cluster: its offset there, and when it was published (Unix ms)."""

    partition: int
    offset: int
    published_ms: int


class Arrivals:
    """A list of arrivals; in a file three columns of 64-bit numbers."""

    def __init__(self) -> None:
        self._columns = (array("q"), array("q"), array("q"))

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, arrival: Arrival) -> None:
        if len(self) < ARRIVALS_MAX:
            for column, value in zip(self._columns, arrival, strict=True):
                column.append(value)

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            for column in self._columns:
                column.tofile(file)

    @staticmethod
    def read(path: Path) -> Iterator[Arrival]:
        numbers = array("q", path.read_bytes())
        count = len(numbers) // 3
        for at in range(count):
            yield Arrival(numbers[at], numbers[count + at], numbers[2 * count + at])


def main() -> None:
    options = _options()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = stop_event()
    latencies, arrivals = Latencies(), Arrivals()
    with Admin(options.bootstrap) as admin, Consumer(options.bootstrap) as consumer:
        watched: set[int] = set()
        looked_at = sent_at = 0.0
        while not stop.is_set():
            now = time.monotonic()
            if now - looked_at > PARTITIONS_INTERVAL_S:
                _watch_new_partitions(admin, consumer, options.topic, watched, is_first_look=not looked_at)
                looked_at = now
            for record in consumer.poll(POLL_S):
                published = published_ms(record.headers)
                if published is not None and published >= options.since_ms:
                    latencies.add(now_ms() - published)
                    arrivals.add(Arrival(record.partition, record.offset, published))
            if now - sent_at > PROGRESS_INTERVAL_S:
                send_progress(arrived=len(latencies))
                sent_at = now
    arrivals.write(options.arrivals)
    send_progress(arrived=len(latencies), latencies=latencies.to_json())


def _watch_new_partitions(
    admin: Admin, consumer: Consumer, topic: str, watched: set[int], *, is_first_look: bool
) -> None:
    """Adds new partitions: those found on the first look start at the end, later ones at the beginning."""
    try:
        found = set(admin.topic(topic).partitions) - watched
    except UnknownTopicError:
        return
    if not found:
        return
    watched |= found
    consumer.assign([(topic, partition) for partition in sorted(watched)])
    for partition in found:
        if is_first_look:
            consumer.seek_to_end(topic, partition)
        else:
            consumer.seek_to_beginning(topic, partition)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.watcher", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--since-ms", required=True, type=int, help="events published earlier are not counted"
    )
    parser.add_argument("--arrivals", required=True, type=Path, help="the file to write the arrivals to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
