"""A service of a datacenter, for tests: publishes page views through the library, as any service does.

    python frontend.py DATACENTER BOOTSTRAP REGISTRY_URL TOPIC PER_SECOND

Every event has a key of its own: `east/0`, `east/1`, … On SIGTERM it closes its publisher and prints
how many events it handed over.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Final

from headrace.events import EventPublisher

REPORT_INTERVAL_S: Final = 2.0


def main() -> None:
    datacenter, bootstrap, registry_url, topic, per_second = sys.argv[1:]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    count = 0
    with EventPublisher(
        datacenter=datacenter,
        service="frontend",
        bootstrap=bootstrap,
        registry_url=registry_url,
        report_interval_s=REPORT_INTERVAL_S,
    ) as publisher:
        while not stopping.wait(1 / float(per_second)):
            view = {"remote_host": "192.0.2.7", "method": "GET", "path": f"/{count}", "status": 200}
            publisher.publish(topic, view, key=f"{datacenter}/{count}")
            count += 1
    print(f"published {count}", flush=True)


if __name__ == "__main__":
    main()
