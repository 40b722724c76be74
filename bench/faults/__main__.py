"""Real faults for real processes: three brokers and ZooKeeper, librdkafka and headrace's own clients.

    make jepsen FAULTS=100 [SEED=7] [JSON=file] [KINDS="kill pause"] [PAUSE=40] [REPLICAS=3]
                [LOOPBACK=1] [UNSUPERVISED=1] [ACKS_ALL=replicated]

Producers write numbers with acks=all, readers read them, faults come by a seeded schedule; after each one all
must be live again within a bound. In the end everything is read back, the replicas' files are compared, and
ZooKeeper's transaction log says who led. Exit code: 0 nothing was lost, doubled, reordered or read twice; 1
something was, or the cluster did not come back; 2 this machine cannot run it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from faults import history
from faults.cluster import POLL_S, TOPIC, Cluster, FaultsError, tail
from faults.disk import LibraryMissingError, Orders, ensure_library
from faults.judge import Window, judge
from faults.kinds import KINDS, PROCESS_KINDS, inject
from faults.place import best_place, can_mount
from faults.replicas import differences, read_copy
from faults.report import Verdict, show
from faults.running import RunningClients, read_everything
from faults.schedule import SEED_SPAN, Bounds, Fault, schedule

HOME: Final = Path(os.environ.get("HEADRACE_HOME", ".headrace")) / "faults"
LIVE_WAIT_MAX_S: Final = 120.0
QUIET_S: Final = 3.0
PARTITIONS: Final = 3
ACKS_ALL: Final = "headrace.acks.all"
TOPIC_SETTINGS: Final = {
    "retention.ms": "-1",
    "segment.bytes": str(1 << 20),
    # A broker whose clock jumps shall still take records.
    "message.timestamp.after.max.ms": str(10 * 365 * 86_400_000),
}
_PROBLEM: Final = re.compile(r"Traceback \(most recent|\bCRITICAL\b|RecursionError|MemoryError")


class Run:
    """One run: the cluster, its clients, and the verdict that grows."""

    def __init__(self, chosen: argparse.Namespace, folder: Path, library: Path) -> None:
        self.chosen = chosen
        place = best_place(chosen.brokers, loopback=chosen.loopback)
        small = can_mount(folder / "probe")
        settings = {"zookeeper.session.timeout.ms": str(chosen.session_ms)}
        usual = Orders(fsync_delay_us=int(chosen.fsync_ms * 1000))
        supervised = not chosen.unsupervised
        self.cluster = Cluster(
            place, folder, library, chosen.brokers, settings, usual, small=small, supervised=supervised
        )
        for broker in self.cluster.brokers:
            broker.disk.loses_bytes = chosen.disk_loses
        self.kinds = chosen.kinds or list(KINDS if place.can_cut else PROCESS_KINDS)
        if not place.can_cut and (unknown := set(self.kinds) - set(PROCESS_KINDS)):
            raise FaultsError(f"{', '.join(sorted(unknown))}: needs root and network namespaces")
        where = "hosts of their own" if place.can_cut else "loopback"
        disks = "small disks" if small else "ordinary disks"
        self.verdict = Verdict(
            chosen.seed,
            f"{chosen.brokers} brokers on {where} with {disks}, {PARTITIONS} partitions,"
            f" replication.factor={chosen.replicas}, {ACKS_ALL}={chosen.acks_all},"
            f" ZooKeeper session {chosen.session_ms} ms,"
            f" {'' if supervised else 'no '}agent on each host,"
            f" an fsync takes {chosen.fsync_ms:g} ms",
        )
        self.windows: list[Window] = []
        self.clients: RunningClients | None = None

    def begin(self) -> None:
        """Starts everything, and waits until records flow."""
        self.cluster.start()
        settings = {**TOPIC_SETTINGS, ACKS_ALL: self.chosen.acks_all}
        if self.chosen.replicas > 1:
            settings["min.insync.replicas"] = str(min(2, self.chosen.replicas))
        self.cluster.create_topic(PARTITIONS, self.chosen.replicas, settings)
        self.clients = RunningClients(self.cluster, PARTITIONS, self.chosen.pause_ms)
        began_s = time.monotonic()
        live_s = self._wait_until_live(began_s)
        time.sleep(QUIET_S)
        now_s = time.monotonic()
        self.windows.append(Window("none", live_s, now_s, now_s))

    def go(self) -> None:
        bounds = Bounds(self.chosen.pause_max, self.chosen.session_ms / 1000, self.chosen.down_max)
        plan = schedule(self.chosen.seed, self.chosen.faults, self.kinds, PARTITIONS, bounds)
        for number, fault in enumerate(plan, 1):
            self._one(number, fault)

    def _one(self, number: int, fault: Fault) -> None:
        time.sleep(fault.quiet_s)
        injected_s = time.monotonic()
        with inject(self.cluster, fault) as what:
            print(f"{number:4} {fault.kind:18} {what}", end="", flush=True)
            time.sleep(fault.duration_s)
        healed_s = time.monotonic()
        load = round(os.getloadavg()[0], 1)
        self.verdict.faults.append({"kind": fault.kind, "what": what, "seed": fault.seed, "load": load})
        try:
            live_s = self._wait_until_live(healed_s)
        except FaultsError as error:
            self.windows.append(Window(fault.kind, injected_s, healed_s, time.monotonic()))
            raise FaultsError(f"after fault {number} ({what}): {error}") from None
        self.windows.append(Window(fault.kind, injected_s, healed_s, live_s))
        seconds = {"healed_s": healed_s - injected_s, "live_s": live_s - healed_s}
        self.verdict.faults[-1] |= {name: round(value, 3) for name, value in seconds.items()}
        print(f"; live {live_s - healed_s:.1f} s after it healed", flush=True)

    def _wait_until_live(self, since_s: float) -> float:
        """Returns when all clients had got on and all replicas were in sync. Raises `FaultsError`."""
        assert self.clients is not None
        deadline = time.monotonic() + LIVE_WAIT_MAX_S
        while True:
            self.clients.progress.follow()
            late = self._ended() or self.clients.progress.waiting_for(since_s) or self._out_of_sync()
            if not late:
                return time.monotonic()
            if time.monotonic() > deadline:
                logs = "\n".join(f"broker {b.number}:\n{tail(b.log_file)}" for b in self.cluster.brokers)
                raise FaultsError(f"not live within {LIVE_WAIT_MAX_S:.0f} s: {'; '.join(late)}\n{logs}")
            self.clients.check_running()
            time.sleep(POLL_S)

    def _ended(self) -> list[str]:
        """Starts brokers again that have ended by themselves, as a supervisor would; that is a finding."""
        for broker in self.cluster.brokers:
            if not broker.is_running:
                self.verdict.findings.append(
                    f"broker {broker.number} ended by itself: {tail(broker.log_file, 3)}"
                )
                self.cluster.start_broker(broker)
                broker.wait_until_ready()
        return []

    def _out_of_sync(self) -> list[str]:
        states = self.cluster.partitions()
        if len(states) < PARTITIONS:
            return ["no broker tells who leads"]
        return [
            f"partition {index} has leader {leader} and in-sync replicas {in_sync} of {replicas}"
            for index, (leader, replicas, in_sync) in states.items()
            if leader < 0 or set(in_sync) != set(replicas)
        ]

    def judge(self) -> None:
        """Ends the clients and the brokers, and judges what is there."""
        assert self.clients is not None
        self.clients.finish()
        logs, high_watermarks = read_everything(self.cluster.bootstrap, PARTITIONS)
        self.verdict.tallies = judge(self.windows, self.clients.events(), logs)
        for broker in self.cluster.brokers:
            broker.stop()
        found = self.verdict.findings
        for index, high_watermark in high_watermarks.items():
            found.extend(f"partition {index}: {each}" for each in self._compare(index, high_watermark))
        self.cluster.zookeeper.stop()
        states = history.leaders(history.writes(self.cluster.zookeeper.directory / "data"), TOPIC)
        self.verdict.epochs = sum(len({led.leader_epoch for led in each}) for each in states.values())
        found.extend(history.problems(states))
        for broker in self.cluster.brokers:
            if problem := _PROBLEM.search(output := broker.output()):
                found.append(f"broker {broker.number} logged: {output[problem.start() :][:1500]}")

    def _compare(self, index: int, high_watermark: int) -> list[str]:
        copies = []
        for broker in self.cluster.brokers:
            try:
                copy = read_copy(broker.number, broker.disk.data_dir / f"{TOPIC}-{index}")
            except ValueError as error:
                return [str(error)]
            if copy is not None:
                copies.append(copy)
        if len(copies) != self.chosen.replicas:
            return [f"{len(copies)} brokers hold files of it, not {self.chosen.replicas}"]
        return differences(copies, high_watermark)

    def close(self) -> None:
        if self.clients is not None:
            self.clients.kill()
        self.cluster.close()


def main(arguments: list[str]) -> int:
    chosen = _parser().parse_args(arguments)
    if chosen.seed is None:
        chosen.seed = time.time_ns() % SEED_SPAN
    HOME.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"run-{chosen.seed}-", dir=HOME)).resolve()
    try:
        run = Run(chosen, folder, ensure_library(HOME.resolve()))
    except (LibraryMissingError, FaultsError) as error:
        print(error, file=sys.stderr)
        return 2
    verdict = run.verdict
    print(f"seed {verdict.seed}: {chosen.faults} faults; {verdict.title}", flush=True)
    began_s = time.monotonic()
    try:
        run.begin()
        try:
            run.go()
        except FaultsError as error:
            print()
            verdict.findings.append(str(error))
        run.judge()
    except FaultsError as error:
        verdict.findings.append(str(error))
    finally:
        run.close()
        verdict.minutes = (time.monotonic() - began_s) / 60
    show(verdict)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(verdict.document(), indent=2) + "\n")
    if verdict.is_clean and not chosen.keep:
        shutil.rmtree(folder)
    else:
        print(f"the logs are in {folder}")
    return 0 if verdict.is_clean else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="by default the time")
    parser.add_argument("--json", default=None, help="file for the figures")
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--pause-max", type=float, default=40.0, help="seconds of SIGSTOP and of cut links")
    parser.add_argument("--down-max", type=float, default=6.0, help="seconds that a killed broker is down")
    parser.add_argument("--session-ms", type=int, default=10_000, help="ZooKeeper's session timeout")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="between a producer's records")
    parser.add_argument("--fsync-ms", type=float, default=3.0, help="what each fsync takes longer")
    parser.add_argument("--disk-loses", type=int, default=0, help="durable bytes that a power cut takes")
    parser.add_argument(
        "--acks-all",
        choices=("flushed", "replicated"),
        default="flushed",
        help="what the topic's acks=all waits for: each fsync, or memory alone, as in Apache Kafka",
    )
    parser.add_argument("--loopback", action="store_true", help="no hosts of their own, also with root")
    parser.add_argument(
        "--unsupervised", action="store_true", help="no agent ends the session of a broker that was killed"
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and journals of a clean run, too")
    return parser


if __name__ == "__main__":
    # `close` takes hosts, mounts and processes away also then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
