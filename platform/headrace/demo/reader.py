"""A member of the demo's consumer group (`python -m headrace.demo.reader`).

Counts the events that it reads, and the latency of the first hop: from `published-ms` to this consumer.
"""

from __future__ import annotations

import argparse
import logging
import threading

from headrace.client import ConsumerGroup
from headrace.demo.child import PROGRESS_INTERVAL_S, send_progress, stop_event
from headrace.demo.latency import Latencies
from headrace.events import published_ms
from headrace.process.clock import now_ms


def main() -> None:
    options = _options()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = stop_event()
    latencies = Latencies()
    group = ConsumerGroup(
        options.zookeeper,
        options.bootstrap,
        options.group,
        [options.topic],
        consumer_options={"auto_offset_reset": "earliest"},
    )
    (stream,) = group.streams(1)

    def read() -> None:
        for record in stream:
            published = published_ms(record.headers)
            # Events of an earlier run that were left unread do not count.
            if published is not None and published >= options.since_ms:
                latencies.add(now_ms() - published)

    reading = threading.Thread(target=read, name="reading")
    reading.start()
    while not stop.wait(PROGRESS_INTERVAL_S) and reading.is_alive():
        send_progress(
            read=len(latencies),
            partitions=sorted(partition for _, partition in group.assignment[stream.number]),
        )
    group.close()
    reading.join()
    send_progress(read=len(latencies), partitions=[], latencies=latencies.to_json())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.reader", description=__doc__)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--since-ms", required=True, type=int, help="events published earlier are not counted"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
