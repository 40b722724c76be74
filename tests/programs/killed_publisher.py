"""A service that is killed: 30 events are sent, 11 more were only handed over.

Usage: one argument, JSON: `bootstrap`, `registry`, `topic`, `state` (the publisher's folder) and `time_ms` of
the first event. With `copy` the journal is copied there between the 30 and the 11: what a kernel may have
written to the disk by then.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema

SENT, UNSENT = 30, 11
EVENT = {"remote_host": "10.0.0.1", "method": "GET", "path": "/", "status": 200}


def run(options: dict[str, Any]) -> None:
    topic = options["topic"]
    publisher = EventPublisher(
        datacenter="east",
        service="checkout",
        server="co1",
        bootstrap=options["bootstrap"],
        registry_url=options["registry"],
        schemas={topic: read_schema("page-view.avsc")},
        report_interval_s=60,
        state_dir=options["state"],
        producer_options={"linger_ms": 60_000},
    )

    def publish(count: int) -> None:
        for number in range(count):
            publisher.publish(topic, EVENT, time_ms=options["time_ms"] + number)

    publish(SENT)
    publisher.flush(30)
    if "copy" in options:
        (journal,) = Path(options["state"], "publishers").glob("*.journal")
        shutil.copy(journal, options["copy"])
    publish(UNSENT)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
