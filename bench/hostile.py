"""`make bench-hostile`: how long an honest producer and consumer wait while somebody attacks the broker.

One broker on one core; attacker and honest client on the others. Each attack lasts SECONDS (default 10).
ROWS="halves waiting_fetches" runs these attacks alone, by the names of their functions. JSON=path keeps the
figures. Exit code: 0 if the p99 of each row is below 100 ms, 1 if not.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil
from attacks import connections, frames
from rich.console import Console
from rich.table import Table
from side_by_side.machine import TooFewCoresError, split_cores

from fix_broker import BrokerCluster, RawClient
from fix_zookeeper import room_on, running_zookeeper
from fuzzing.honest import TOPIC, HonestClient

Attack = Callable[[str, float], int]

P99_MAX_MS: Final = 100.0
ENDS_WAIT_MAX_S: Final = 30.0
SETTLE_S: Final = 1.0
SETTINGS: Final = {"auto.create.topics.enable": "true", "group.initial.rebalance.delay.ms": "0"}
ATTACKS: Final[tuple[Attack, ...]] = (
    frames.produce_topics,
    frames.produce_partitions,
    frames.fetch_partitions,
    frames.metadata_names,
    frames.metadata_creates,
    frames.create_topics,
    frames.list_offsets,
    frames.list_offsets_by_time,
    frames.offset_commits,
    frames.describe_groups,
    frames.header_tags,
    frames.tiny_records,
    frames.bombs,
    frames.reassignments,
    frames.broker_settings,
    frames.log_dirs,
    connections.announced,
    connections.halves,
    connections.unread_answers,
    connections.pipelined,
    connections.waiting_fetches,
    connections.groups,
    connections.formed_groups,
    connections.flood,
    connections.crowd,
    connections.garbage,
)


@dataclass(frozen=True)
class Row:
    """What an attack did to others. `attacks`: how often its frame was answered, or what it counts else."""

    attack: str
    attacks: int
    exchanges: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    memory_mb: float
    fault: str | None


def main() -> int:
    try:
        cores = split_cores()
    except TooFewCoresError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        attacks = chosen(os.environ.get("ROWS") or "")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    seconds = float(os.environ.get("SECONDS") or 10.0)
    os.sched_setaffinity(0, cores.client)
    rows = [measure(None, seconds, cores.broker)]
    show(rows[-1])
    for attack in attacks:
        rows.append(measure(attack, seconds, cores.broker))
        show(rows[-1])
    print_table(rows)
    if path := os.environ.get("JSON"):
        Path(path).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return exit_code(rows)


def chosen(names: str) -> list[Attack]:
    """Returns the attacks of these names, all of them for "". Raises `ValueError`."""
    known = {attack.__name__: attack for attack in ATTACKS}
    wanted = names.replace(",", " ").split()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"ROWS: there is no attack {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in wanted] or list(ATTACKS)


def exit_code(rows: list[Row]) -> int:
    """Returns 0 if nobody waited too long in any row."""
    return 0 if all(row.p99_ms < P99_MAX_MS and row.fault is None for row in rows) else 1


def measure(attack: Attack | None, seconds: float, broker_cores: frozenset[int]) -> Row:
    """Runs one attack on a broker of its own."""
    with running_zookeeper() as server:
        folder = server.directory / "brokers"
        folder.mkdir()
        cluster = BrokerCluster(room_on(server), folder, 1, "attacked", SETTINGS)
        try:
            cluster.start()
            process = psutil.Process(cluster.brokers[0].pid)
            process.cpu_affinity(list(broker_cores))
            with RawClient(cluster.bootstrap) as client:
                client.create_topic(TOPIC)
                client.create_topic(frames.TOPIC.decode())
            return _measure(attack, cluster.bootstrap, seconds, process)
        finally:
            cluster.close()


def _measure(attack: Attack | None, address: str, seconds: float, broker: psutil.Process) -> Row:
    honest = HonestClient(address)
    honest.start()
    deadline_s = time.monotonic() + seconds
    number = 0
    if attack is None:
        time.sleep(seconds)
    else:
        context = multiprocessing.get_context("spawn")
        with context.Pool(1, os.nice, (10,)) as pool:
            waiting = pool.apply_async(attack, (address, deadline_s))
            try:
                number = waiting.get(seconds + ENDS_WAIT_MAX_S)
            except multiprocessing.TimeoutError:
                number = 0
    seen = honest.finish()
    memory_mb = broker.memory_info().rss / 1e6 if broker.is_running() else 0.0
    p50, p99, longest = (seen.percentile_ms(share) for share in (0.5, 0.99, 1))
    title = (
        "nobody attacks"
        if attack is None
        else (attack.__doc__ or attack.__name__).splitlines()[0].rstrip(".")
    )
    return Row(title, number, len(seen.latencies_s), p50, p99, longest, memory_mb, seen.fault)


def show(row: Row) -> None:
    print(f"{row.p99_ms:8.1f} ms p99, {row.max_ms:8.1f} ms max: {row.attack} {row.fault or ''}", flush=True)


def print_table(rows: list[Row]) -> None:
    table = Table("attack", "times", "p50 ms", "p99 ms", "max ms", "broker MB", box=None)
    for row in rows:
        figures = [f"{row.p50_ms:.1f}", f"{row.p99_ms:.1f}", f"{row.max_ms:.0f}", f"{row.memory_mb:.0f}"]
        table.add_row(row.attack, f"{row.attacks:,}", *figures)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
