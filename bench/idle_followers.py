"""What it costs to follow many partitions that get nothing, and what they cost one that gets something.

Not a row of the tables: `.venv/bin/python bench/idle_followers.py` starts ZooKeeper and two brokers with
replicas of each other's partitions, and prints each broker's CPU while nothing happens, and how long one
record with acks=all takes meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil
from peers.headrace_broker import HeadraceBroker
from peers.waiting import wait_until

from headrace.client import Producer
from headrace.client.replica_admin import ReplicaAdmin

ADDRESS: Final = "127.106.77.1"
PER_TOPIC: Final = 100
START_MAX_S: Final = 120.0
WARMUP: Final = 20


def in_sync(admin: ReplicaAdmin, count: int) -> bool:
    found = admin.replicas().partitions.values()
    return len(found) == count and all(len(part.isr) == len(part.replicas) == 2 for part in found)


def cpu_s(pids: list[int]) -> list[float]:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return [each.user + each.system for each in times]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=2_000, help="in all, led by two brokers")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--records", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="idle-followers-") as home:
        cluster = HeadraceBroker(
            Path(home) / "brokers", ADDRESS, sorted(psutil.Process().cpu_affinity()), 2, replicas=2
        )
        cluster.start()
        try:
            topics = max(1, options.partitions // PER_TOPIC)
            for number in range(topics):
                cluster.create_topic(f"idle-{number}", PER_TOPIC)
            with ReplicaAdmin(cluster.bootstrap) as admin:
                wait_until(lambda: in_sync(admin, topics * PER_TOPIC), "all in sync", wait_max_s=START_MAX_S)
            time.sleep(3.0)
            before = cpu_s(cluster.pids())
            time.sleep(options.seconds)
            used = [after - first for after, first in zip(cpu_s(cluster.pids()), before, strict=True)]
            print(
                f"{topics * PER_TOPIC} idle partitions: CPU of each broker "
                f"{', '.join(f'{each / options.seconds:.2%}' for each in used)} of a core"
            )
            with Producer(cluster.bootstrap, acks="all", linger_ms=0) as producer:
                waits_ms = []
                for _ in range(options.records + WARMUP):
                    began_s = time.perf_counter()
                    producer.send("idle-0", b"x", partition=0).result(10.0)
                    waits_ms.append((time.perf_counter() - began_s) * 1000)
            kept = waits_ms[WARMUP:]
            print(
                f"one record at a time, acks=all: median {statistics.median(kept):.1f} ms, "
                f"p99 {statistics.quantiles(kept, n=100)[98]:.1f} ms"
            )
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
