"""Runs ProducerPerformance or ConsumerPerformance and reports as every client of the bench does.

Not for users: `bench/clients/kafka_java.py` makes the command lines. The JIT compiler takes seconds, so that
only a warm JVM is measured. ProducerPerformance takes a number of records and no duration: a first run, which
is thrown away, finds the rate.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from clients.kafka_java import (
    CONSUMER,
    PRODUCER,
    STEADY_LINE,
    ProducerSummary,
    consumed,
    window_records_per_s,
)
from peers.jars import bench_jars, class_path
from peers.kafka import JAVA_ENV, JVM, QUIET

from headrace.warehouse.jars import java

HEAP: Final = ("-Xmx512M",)
"""As kafka-producer-perf-test.sh and kafka-consumer-perf-test.sh."""
TRIAL_S: Final = 4.0
WARMUP_MIN_S: Final = 3.0
FASTER_LATER: Final = 1.1
PRODUCER_WINDOW_MS: Final = 500
CONSUMER_WINDOW_MS: Final = 200
RECORDS_MAX: Final = (1 << 31) - 1
EXIT_WAIT_MAX_S: Final = 60.0
SIZE_TOLERANCE: Final = 0.001
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


class ToolError(Exception):
    """The tool failed, or did something else than it was asked for."""


@contextmanager
def running(arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Starts a tool, with its output in a pipe; kills it at the end of the block."""
    with subprocess.Popen(
        [java(), *HEAP, *JVM, QUIET, "-cp", class_path(bench_jars("kafka")), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name not in JAVA_ENV},
        text=True,
        preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout)


class Meter:
    """The measured part of a tool's run, from the construction on."""

    def __init__(self, pid: int) -> None:
        print("begin", flush=True)
        self._pid = pid
        self._began_s = time.monotonic()
        self._began_cpu_s = self._cpu_s()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    def report(self, records: int, value_bytes: int, **more: float) -> None:
        outcome = {
            "records": records,
            "size_bytes": records * value_bytes,
            "seconds": self.seconds,
            "cpu_s": self._cpu_s() - self._began_cpu_s,
            "memory_bytes": self._memory_max_bytes(),
            **more,
        }
        print(json.dumps(outcome), flush=True)

    def _cpu_s(self) -> float:
        text = Path(f"/proc/{self._pid}/stat").read_text()
        fields = text[text.rindex(")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def _memory_max_bytes(self) -> int:
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


# --- produce ---


def producer_arguments(options: argparse.Namespace, records: int, warmup_records: int) -> list[str]:
    arguments = [PRODUCER, "--bootstrap-server", options.bootstrap, "--topic", options.topic]
    arguments += ["--record-size", str(options.value_bytes), "--throughput", "-1"]
    arguments += ["--num-records", str(records), "--warmup-records", str(warmup_records)]
    arguments += ["--reporting-interval", str(PRODUCER_WINDOW_MS)]
    return arguments + properties_of(options)


def properties_of(options: argparse.Namespace) -> list[str]:
    return ["--command-property", *options.property] if options.property else []


def trial_records_per_s(options: argparse.Namespace) -> float:
    """Returns the rate of a producer's best window within `TRIAL_S`: rather a run too long than too short."""
    rates: list[float] = []
    first_s = 0.0
    with running(producer_arguments(options, RECORDS_MAX, 0)) as process:
        for line in lines_of(process):
            rate = window_records_per_s(line)
            if rate is not None:
                first_s = first_s or time.monotonic()
                rates.append(rate)
                if time.monotonic() - first_s >= TRIAL_S:
                    return max(rates)
    raise ToolError(f"{PRODUCER} ended within {TRIAL_S:.0f} s; its messages stand above")


def produce(options: argparse.Namespace) -> None:
    rate = trial_records_per_s(options)
    warmup_records = max(1, round(rate * max(options.warmup, WARMUP_MIN_S)))
    # A JVM that has just started is slower than one that has worked for long.
    records = warmup_records + max(1, round(rate * options.seconds * FASTER_LATER))
    meter: Meter | None = None
    whole: ProducerSummary | None = None
    with running(producer_arguments(options, records, warmup_records)) as process:
        for line in lines_of(process):
            if line.strip() == STEADY_LINE:
                # Printed when the first record after the warm-up is acknowledged.
                meter = Meter(process.pid)
            elif (summary := ProducerSummary.parse(line)) is not None and not summary.is_steady:
                whole = summary
            elif summary is not None and meter is not None:
                if whole is None or whole.records != records:
                    raise ToolError(f"not all of {records} records were acknowledged: {whole}")
                meter.report(
                    summary.records,
                    options.value_bytes,
                    reported_records_per_s=summary.records_per_s,
                    **summary.latencies_ms,
                )
        check_ended(process)
    if whole is None or meter is None:
        raise ToolError(f"{PRODUCER} printed no summary")


def check_ended(process: subprocess.Popen[str]) -> None:
    code = process.wait(EXIT_WAIT_MAX_S)
    if code:
        raise ToolError(f"the tool ended with {code}; its messages stand above")


# --- consume ---


def consume(options: argparse.Namespace) -> None:
    arguments = [CONSUMER, "--bootstrap-server", options.bootstrap, "--topic", options.topic]
    arguments += ["--num-records", str(RECORDS_MAX), "--show-detailed-stats", "--hide-header"]
    arguments += ["--reporting-interval", str(CONSUMER_WINDOW_MS), *properties_of(options)]
    meter: Meter | None = None
    first_s = 0.0
    before = 0
    with running(arguments) as process:
        for line in lines_of(process):
            progress = consumed(line)
            if progress is None:
                continue
            records, size_bytes = progress
            check_size(records, size_bytes, options.value_bytes)
            first_s = first_s or time.monotonic()
            if meter is None and time.monotonic() - first_s >= options.warmup:
                meter, before = Meter(process.pid), records
            elif meter is not None and meter.seconds >= options.seconds:
                meter.report(records - before, options.value_bytes)
                return
    raise ToolError(
        f"{CONSUMER} ended before {options.seconds:g} s: the topic {options.topic} holds too little; "
        "give it more records, or a smaller --seconds"
    )


def check_size(records: int, size_bytes: float, value_bytes: int) -> None:
    expected = records * value_bytes
    if abs(size_bytes - expected) > expected * SIZE_TOLERANCE + 1024:
        raise ToolError(f"{records} records have {size_bytes:.0f} bytes, and {expected} are expected")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("produce", "consume"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warmup", type=float, default=0.0)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    try:
        produce(options) if options.mode == "produce" else consume(options)
    except ToolError as error:
        print(f"kafka_java_client: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
