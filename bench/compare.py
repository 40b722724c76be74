"""`make bench`: headrace beside Apache Kafka, RabbitMQ and ActiveMQ, on this machine, in one run.

Owns the order of the rows and the exit code: 0 if every judged bar is met, 1 if one is missed, 2 if the run
could not be made, 3 if no bar is missed and some could not be judged because other processes used the
machine.

Environment:
QUICK=1                 fewer and shorter rounds
SMOKE=1                 headrace alone, a moment
ROWS="consume latency"  these rows only
SINCE=commit            today's broker beside that commit's, without peers
JSON=path               every figure; with ROWS, the other rows of an earlier run in that file stay
PLOTS=folder            the paper's figures 4 and 5, as PNG
PROFILE=1               where the broker's time goes
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from clients.outcome import ClientFailedError
from clients.rdkafka import ClientMissingError
from experiments import (
    consume,
    latency,
    mirror,
    more_brokers,
    produce,
    queues,
    replicas,
    scale,
    since,
    windows,
)
from experiments.context import (
    BEFORE,
    FULL,
    HEADRACE,
    KAFKA,
    KAFKA_FSYNC,
    QUICK,
    SMOKE,
    Bench,
    Experiment,
    running,
)
from experiments.since import NoSuchCommitError
from peers import activemq, kafka, rabbitmq
from peers.headrace_broker import HeadraceBroker
from peers.peer import KafkaPeer, Peer, PeerMissingError
from rich.markup import escape
from side_by_side.bars import Verdict, judge
from side_by_side.machine import TooFewCoresError, describe, split_cores
from side_by_side.plots import draw
from side_by_side.process import ProcessFailedError
from side_by_side.profiling import NoProfilerError
from side_by_side.report import Report, ReportError
from side_by_side.screen import say, show_end, show_row

from headrace.warehouse.jars import JarsError, headrace_home

MISSED: Final = 1
NOT_MADE: Final = 2
NOT_JUDGED: Final = 3
NETWORK: Final = "127.106.0"
SMOKE_ROWS: Final = (
    "produce-batch-50",
    "produce-default",
    "consume",
    "python-produce",
    "python-consume",
    "latency",
    "replicas-default",
)


QUICK_LEAVES_OUT: Final = (
    "java-256k",
    "java-acks-1",
    "long-log",
    "partitions-produce",
    "partitions-consume",
    "connections",
    "more-brokers",
    "replicas-batch-1",
    "replicas-batch-50",
    "replicas-default",
    "follower-cost",
    "follower-cost-16k",
)


@dataclass(frozen=True)
class Group:
    """Rows that share their brokers, which are started before the first and stopped after the last."""

    experiments: Sequence[Experiment]
    brokers: Callable[[Bench], Mapping[str, KafkaPeer]] = lambda _: {}
    others: Callable[[Bench], Mapping[str, Peer]] = lambda _: {}


def _headrace(bench: Bench, name: str, host: int, count: int = 1) -> HeadraceBroker:
    return HeadraceBroker(bench.home / name, f"{NETWORK}.{host}", bench.cores.broker, count)


def _kafka(bench: Bench, name: str, host: int, *, fsync: bool) -> kafka.ApacheKafka:
    return kafka.ApacheKafka(bench.home / name, f"{NETWORK}.{host}", bench.cores.broker, fsync=fsync)


def groups(*, with_peers: bool = True) -> list[Group]:
    """Returns all rows in the order in which they are measured."""

    def beside_kafka(bench: Bench) -> dict[str, KafkaPeer]:
        ours: dict[str, KafkaPeer] = {HEADRACE: _headrace(bench, "headrace", 2)}
        if not with_peers:
            return ours
        return {
            **ours,
            KAFKA: _kafka(bench, "kafka", 3, fsync=False),
            KAFKA_FSYNC: _kafka(bench, "kafka-fsync", 4, fsync=True),
        }

    together = [*produce.experiments(), *consume.experiments(), *latency.experiments(), *scale.experiments()]
    return [
        Group(together, beside_kafka),
        Group(
            more_brokers.experiments(),
            lambda bench: {
                more_brokers.ONE: _headrace(bench, "one", 5),
                more_brokers.THREE: _headrace(bench, "three", 6, more_brokers.BROKERS),
            },
        ),
        Group(
            replicas.experiments(),
            lambda bench: replicas.brokers(bench, NETWORK, with_peers=with_peers),
        ),
        Group(
            queues.experiments(),
            others=lambda bench: {
                queues.RABBITMQ: rabbitmq.RabbitMq(
                    bench.home / "rabbitmq", f"{NETWORK}.7", bench.cores.broker
                ),
                queues.ACTIVEMQ: activemq.ActiveMq(
                    bench.home / "activemq", f"{NETWORK}.8", bench.cores.broker
                ),
            },
        ),
        Group(mirror.experiments()),
    ]


def measured_rows(*, since_commit: bool) -> dict[str, Experiment]:
    """Returns all rows by their names; with `since_commit` those, too, that stand beside an earlier commit
    alone.
    """
    rows = [each for group in groups() for each in group.experiments]
    return {each.key: each for each in [*rows, *(windows.experiments() if since_commit else ())]}


def since_group(commit: str, rows: Sequence[str]) -> Group:
    """Returns rows of today's broker beside an earlier commit's."""

    def brokers(bench: Bench) -> dict[str, KafkaPeer]:
        environment = since.earlier_code(commit, bench.home / "code-before")
        home, cores = bench.home / "before", bench.cores.broker
        before = HeadraceBroker(home, f"{NETWORK}.9", cores, environment=environment)
        return {HEADRACE: _headrace(bench, "headrace", 2), BEFORE: before}

    known = measured_rows(since_commit=True)
    return Group([replace(known[key], bars=since.BARS) for key in rows], brokers)


def run(
    bench: Bench,
    report: Report,
    wanted: Callable[[str], bool],
    measured: Sequence[Group],
    *,
    is_judged: bool,
    save: Callable[[], None],
) -> None:
    """Measures the wanted rows and adds them to the report; calls `save` after each."""
    for group in measured:
        experiments = [each for each in group.experiments if wanted(each.key)]
        if not experiments:
            continue
        try:
            with running(bench, group.brokers(bench), group.others(bench)):
                warm_up(bench)
                for experiment in experiments:
                    _measure(bench, report, experiment, is_judged=is_judged)
                    save()
        except PeerMissingError as error:
            _leave_out(report, str(error))


def _measure(bench: Bench, report: Report, experiment: Experiment, *, is_judged: bool) -> None:
    if problem := experiment.missing_room(bench):
        _leave_out(report, problem)
        return
    row = experiment.run(bench)
    report.add(row, [judge(row, bar) for bar in experiment.bars] if is_judged else [])
    show_row(row, report.judgements[row.key])


def _leave_out(report: Report, why: str) -> None:
    report.skipped.append(why)
    say(f"left out: {escape(why)}")


def warm_up(bench: Bench) -> None:
    """Gives each broker work that is not measured: small batches, large ones, and a consumer."""
    if not bench.scale.broker_warmup_s:
        return
    for name, broker in bench.brokers.items():
        say(f"warming up {name}")
        topic = bench.new_topic("warm-up")
        broker.create_topic(topic)
        try:
            produce.warm_up(bench, broker, topic)
        finally:
            broker.delete_topic(topic)


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the exit code."""
    is_smoke, is_quick = bool(environment.get("SMOKE")), bool(environment.get("QUICK"))
    commit = environment.get("SINCE", "")
    rows = environment.get("ROWS", "").split() or (list(SMOKE_ROWS) if is_smoke else [])
    if commit and not rows:
        rows = list(since.ROWS)
    left_out = QUICK_LEAVES_OUT if is_quick and not rows else ()
    known = [*measured_rows(since_commit=bool(commit))]
    if unknown := [row for row in rows if row not in known]:
        say(f"ROWS={' '.join(unknown)}: no such row; known are {', '.join(known)}")
        return NOT_MADE
    if commit and (others := [row for row in rows if row not in (*since.ROWS, *since.ALSO)]):
        known = [*since.ROWS, *since.ALSO]
        say(f"ROWS={' '.join(others)}: SINCE={commit} does not measure these; it knows {', '.join(known)}")
        return NOT_MADE
    json = environment.get("JSON")
    home = headrace_home() / "bench-run"
    try:
        report = _report(Path(json) if json and rows else None, quick=is_quick)
        bench = Bench(
            SMOKE if is_smoke else QUICK if is_quick else FULL,
            split_cores(),
            home,
            is_profiling=bool(environment.get("PROFILE")),
        )
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        if left_out:
            report.skipped.append(f"QUICK=1 does not measure {', '.join(left_out)}")
        run(
            bench,
            report,
            lambda key: key in rows if rows else key not in left_out,
            [since_group(commit, rows)] if commit else groups(with_peers=not is_smoke),
            is_judged=not (is_smoke or bench.is_profiling),
            save=lambda: report.write(Path(json)) if json else None,
        )
    except (
        ClientFailedError,
        ClientMissingError,
        JarsError,
        NoProfilerError,
        NoSuchCommitError,
        ProcessFailedError,
        ReportError,
        TooFewCoresError,
    ) as error:
        say(f"[red]the run ended:[/] {escape(str(error))}")
        return NOT_MADE
    if not bench.is_profiling:
        shutil.rmtree(home, ignore_errors=True)
    if folder := environment.get("PLOTS"):
        for path in draw(report, Path(folder)):
            say(f"wrote {path}")
    show_end(report)
    if report.with_verdict(Verdict.MISSED):
        return MISSED
    return NOT_JUDGED if report.with_verdict(Verdict.BUSY) else 0


def _report(earlier: Path | None, *, quick: bool) -> Report:
    """Returns the report to add rows to: that of an earlier run if there is one."""
    if earlier is not None and earlier.exists():
        report = Report.read(earlier)
        report.date = time.strftime("%Y-%m-%d")
        return report
    machine = {
        **describe(),
        "Apache Kafka": kafka.VERSION,
        "RabbitMQ": "Debian's",
        "ActiveMQ": activemq.VERSION,
    }
    return Report(time.strftime("%Y-%m-%d"), quick, machine)


if __name__ == "__main__":
    sys.exit(main())
