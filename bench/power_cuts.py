"""`make bench-power-cuts`: what acks=all is worth when the power of all brokers fails, beside Apache Kafka.

Three brokers, a topic of three partitions and three replicas, `min.insync.replicas=2`, and an idempotent
producer of librdkafka that sends unique numbers with acks=all. CUTS times (default 10) all brokers get
SIGKILL at once, and their logs lose what no fsync has covered: half of the files all of it, the others a part
of it, by SEED. Then all start again. In the end everything is read, and compared with what was acknowledged.

A cut comes one to four seconds after all was live again, and what has survived it counts as durable: a kernel
writes by itself what has lain in its page cache for about 30 s.

PEERS="kafka" runs these alone; JSON=path keeps the figures. Exit code: 0 if headrace's default lost nothing
and came back each time, 1 if not, 2 if it cannot run here.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from faults.cluster import TOPIC, FaultsError
from faults.disk import Disk, LibraryMissingError, Orders, ensure_library
from faults.journals import Progress, events
from faults.judge import Window, judge
from faults.running import END_WAIT_MAX_S, read_everything
from peers.headrace_broker import HeadraceBroker
from peers.kafka import ApacheKafka
from peers.peer import KafkaPeer
from rich.console import Console
from rich.table import Table
from side_by_side.process import ProcessFailedError

from headrace.warehouse.jars import JarsError, headrace_home

BROKERS: Final = 3
PARTITIONS: Final = 3
CONFIG: Final = {"min.insync.replicas": "2"}
NETWORK: Final = "127.106.0"
PAUSE_MS: Final = 2.0
"""Between a producer's records, each of which goes to every partition."""
FLOWS_MIN_S: Final = 1.0
FLOWS_MAX_S: Final = 4.0
LIVE_WAIT_MAX_S: Final = 60.0
POLL_S: Final = 0.05
USUAL: Final = Orders(fsync_delay_us=3_000)
"""Each fsync takes 3 ms longer, as on a disk; of all brokers alike."""


class Cluster(KafkaPeer, Protocol):
    """A peer whose brokers' disks are under command."""

    environments: dict[int, Mapping[str, str]]

    @property
    def data_dirs(self) -> dict[int, Path]: ...
    def kill(self) -> None: ...
    def launch(self) -> None: ...


Make = Callable[[Path, set[int]], Cluster]


def _headrace(number: int, acks_all: str) -> Make:
    config = {**CONFIG, "headrace.acks.all": acks_all}

    def make(home: Path, cores: set[int]) -> Cluster:
        host = f"{NETWORK}.{number}"
        return HeadraceBroker(home, host, cores, BROKERS, replicas=BROKERS, topic_config=config)

    return make


def _kafka(number: int, *, fsync: bool) -> Make:
    def make(home: Path, cores: set[int]) -> Cluster:
        return ApacheKafka(
            home,
            f"{NETWORK}.{number}",
            cores,
            fsync=fsync,
            count=BROKERS,
            replicas=BROKERS,
            topic_config=CONFIG,
        )

    return make


DEFAULT: Final = "headrace"
PEERS: Final[dict[str, tuple[str, Make]]] = {
    DEFAULT: ("headrace, its defaults", _headrace(31, "flushed")),
    "headrace-replicated": ("headrace, headrace.acks.all=replicated", _headrace(32, "replicated")),
    "kafka": ("Apache Kafka, as it is shipped", _kafka(33, fsync=False)),
    "kafka-fsync": ("Apache Kafka, log.flush.interval.messages=1", _kafka(34, fsync=True)),
}


@dataclass(frozen=True)
class Row:
    """What the cuts of one peer came to. `losing_cuts`: those before which something was acknowledged that is
    lost. `back_s`: from the start of the brokers until each partition had an acknowledgement. `problem`: why
    the run ended before its time, and `lost` is not known then (None); else empty."""

    peer: str
    cuts: int
    losing_cuts: int
    acknowledged: int
    lost: int | None
    cut_bytes: int
    back_s: list[float]
    problem: str = ""


class _Run:
    """One peer: its cluster, its disks and the producer."""

    def __init__(self, cluster: Cluster, folder: Path, library: Path, seed: int) -> None:
        self._cluster = cluster
        self._choose = random.Random(seed)
        self._folder = folder
        self._disks = {
            number: Disk(library, data_dir, folder / f"disk-{number}", USUAL)
            for number, data_dir in cluster.data_dirs.items()
        }
        cluster.environments = {number: disk.environment for number, disk in self._disks.items()}
        self._journal = folder / "journal"
        self._progress = Progress([self._journal], [], PARTITIONS)
        self._producer: subprocess.Popen[bytes] | None = None
        self._windows: list[Window] = []
        self._cut_bytes = 0

    def go(self, name: str, cuts: int) -> Row:
        """Raises `ProcessFailedError`, `FaultsError` if nothing could be tried."""
        self._cluster.start()
        self._cluster.create_topic(TOPIC, PARTITIONS)
        self._producer = self._start_producer()
        self._wait_until_live(time.monotonic())
        problem, lost = "", None
        try:
            for number in range(1, cuts + 1):
                self._cut(number)
            self._end_producer()
            lost, acknowledged, losing = self._judge()
        except (ProcessFailedError, FaultsError) as error:
            problem = str(error).splitlines()[0]
            lost, acknowledged, losing = None, self._progress.acknowledged, 0
        back_s = [round(window.live_s - window.healed_s, 2) for window in self._windows]
        return Row(name, len(self._windows), losing, acknowledged, lost, self._cut_bytes, back_s, problem)

    def _start_producer(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "faults.clients", "produce-librdkafka", "--name", "producer"]
        command += ["--topic", TOPIC, "--bootstrap", self._cluster.bootstrap]
        command += ["--partitions", str(PARTITIONS), "--journal", str(self._journal)]
        command += ["--pause-ms", f"{PAUSE_MS:g}"]
        with (self._folder / "producer.log").open("wb") as log:
            return subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, stdout=log, stderr=log
            )

    def _wait_until_live(self, since_s: float) -> float:
        """Returns when each partition had an acknowledgement. Raises `FaultsError`."""
        deadline_s = time.monotonic() + LIVE_WAIT_MAX_S
        while True:
            self._progress.follow()
            late = self._progress.waiting_for(since_s)
            if not late:
                return time.monotonic()
            if time.monotonic() > deadline_s:
                raise FaultsError(f"not live within {LIVE_WAIT_MAX_S:.0f} s: {late[0]}")
            time.sleep(POLL_S)

    def _cut(self, number: int) -> None:
        time.sleep(self._choose.uniform(FLOWS_MIN_S, FLOWS_MAX_S))
        self._cluster.kill()
        cut_s = time.monotonic()
        cut_bytes = sum(disk.cut_unsynced(self._choose) for disk in self._disks.values())
        self._cut_bytes += cut_bytes
        started_s = time.monotonic()
        self._cluster.launch()
        live_s = self._wait_until_live(started_s)
        self._windows.append(Window(f"{number}", cut_s, started_s, live_s))
        back_s = live_s - started_s
        print(
            f"  cut {number}: {cut_bytes:,} bytes without fsync gone; live {back_s:.1f} s after the start",
            flush=True,
        )

    def _end_producer(self) -> None:
        assert self._producer is not None
        self._producer.terminate()
        try:
            self._producer.wait(END_WAIT_MAX_S)
        except subprocess.TimeoutExpired:
            raise FaultsError("the producer does not end") from None

    def _judge(self) -> tuple[int, int, int]:
        """Returns how many records were lost, how many acknowledged, before how many cuts some were lost."""
        logs, _ = read_everything(self._cluster.bootstrap, PARTITIONS)
        # A record belongs to the cut that came after its acknowledgement.
        ends = [*(window.injected_s for window in self._windows), time.monotonic()]
        windows = [Window(f"{number}", end, end, end) for number, end in enumerate(ends, 1)]
        tallies = judge(windows, events(self._journal), logs)
        return (
            sum(tally.lost for tally in tallies.values()),
            sum(tally.acknowledged for tally in tallies.values()),
            sum(tally.lost > 0 for tally in tallies.values()),
        )

    def close(self) -> None:
        if self._producer is not None:
            self._producer.kill()
            self._producer.wait()
        self._cluster.stop()


def exit_code(rows: list[Row]) -> int:
    return int(any(row.peer == DEFAULT and (row.lost or row.problem) for row in rows))


def show(rows: list[Row]) -> None:
    table = Table(
        "brokers",
        "cuts",
        "acknowledged",
        "lost",
        "cuts that lost some",
        "longest s from start to live",
        box=None,
    )
    for row in rows:
        longest_s = f"{max(row.back_s, default=0.0):.1f}"
        lost = row.problem if row.lost is None else f"{row.lost:,}"
        table.add_row(
            PEERS[row.peer][0], str(row.cuts), f"{row.acknowledged:,}", lost, str(row.losing_cuts), longest_s
        )
    Console(width=150).print(table)


def main() -> int:
    try:
        cuts, seed, names = _asked_for(os.environ)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory(prefix="power-cuts-", dir=_home()) as folder:
            library = ensure_library(_home())
            for name in names:
                print(PEERS[name][0], flush=True)
                rows.append(_row(name, Path(folder) / name, library, cuts, seed))
    except (LibraryMissingError, ProcessFailedError, FaultsError, JarsError) as error:
        print(error, file=sys.stderr)
        return 2
    show(rows)
    if path := os.environ.get("JSON"):
        figures = {"cuts": cuts, "seed": seed, "rows": [asdict(row) for row in rows]}
        Path(path).write_text(json.dumps(figures, indent=2) + "\n")
    return exit_code(rows)


def _asked_for(environment: Mapping[str, str]) -> tuple[int, int, list[str]]:
    """Returns how many cuts of which seed, and of which peers. Raises `ValueError`."""
    numbers = {"CUTS": 10, "SEED": 1}
    for name in numbers:
        given = environment.get(name) or str(numbers[name])
        if not re.fullmatch("[1-9][0-9]{0,8}", given):
            raise ValueError(f"{name}={given}: give a number from 1 to 999999999")
        numbers[name] = int(given)
    names = (environment.get("PEERS") or " ".join(PEERS)).split()
    if unknown := sorted(set(names) - set(PEERS)):
        raise ValueError(f"PEERS={' '.join(unknown)}: there are {', '.join(PEERS)}")
    return numbers["CUTS"], numbers["SEED"], names


def _home() -> Path:
    home = headrace_home() / "faults"
    home.mkdir(parents=True, exist_ok=True)
    return home.resolve()


def _row(name: str, folder: Path, library: Path, cuts: int, seed: int) -> Row:
    folder.mkdir()
    cluster = PEERS[name][1](folder / "cluster", os.sched_getaffinity(0))
    run = _Run(cluster, folder, library, seed)
    try:
        return run.go(name, cuts)
    finally:
        with suppress(ProcessFailedError):
            run.close()


if __name__ == "__main__":
    sys.exit(main())
