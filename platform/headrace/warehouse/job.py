"""The warehouse's work as a Spark application: `python -m headrace.warehouse.job load TOPIC…`, or by
spark-submit.

Owns the command line, the exit code and the result file. 0: done; 1: refused or failed, with one line that
says why and what to do; the same command is safe to repeat.
"""

import sys
from pathlib import Path

if __name__ == "__main__" and sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    # spark-submit runs the file and puts its folder first, where `hdfs` would hide the library of that name.
    del sys.path[0]

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.warehouse import api
from headrace.warehouse.errors import known_error
from headrace.warehouse.layout import HOUR_MS, parse_hour
from headrace.warehouse.options import DEFAULT_DATACENTER, DEFAULT_ROOT, WarehouseOptions
from headrace.warehouse.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[[argparse.Namespace, WarehouseOptions], list[Any]]


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = _parser().parse_args(argv)
    warehouse = WarehouseOptions(
        hdfs_url=options.hdfs_url,
        webhdfs_url=options.webhdfs_url,
        bootstrap=options.bootstrap,
        registry_url=options.registry_url,
        root=options.root,
        datacenter=options.datacenter,
        audit=not options.no_audit,
    )
    try:
        results = _COMMANDS[options.command][0](options, warehouse)
    except Exception as error:
        problem = known_error(error, f"{options.command} {' '.join(options.topics)}")
        if problem is None:
            raise
        print(f"headrace warehouse: {problem}", file=sys.stderr)
        return 1
    plain = [_plain(each) for each in results]
    text = json.dumps(plain, indent=1)
    if options.result is None or options.dry_run:
        print(text)
    else:
        # Who reads the file needs no second copy of it in a log: thousands of lines for many hours.
        print("\n".join(json.dumps(_numbers(each)) for each in plain))
    if options.result is not None:
        _write_result(options.result, text)
    return 0 if all(getattr(each, "is_sound", True) for each in results) else 1


def _load(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    if options.dry_run:
        return list(
            api.plan_loads(warehouse, options.topics, until_ms=options.until, accept_gap=options.accept_gap)
        )
    with _spark(options) as spark:
        return list(
            api.load_topics(
                spark,
                warehouse,
                options.topics,
                until_ms=options.until,
                accept_gap=options.accept_gap,
                subject=options.subject,
            )
        )


def _replay(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    with _spark(options) as spark:
        return list(api.replay_topics(spark, warehouse, options.topics, subject=options.subject))


def _compact(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    hours = options.hour or None
    with _spark(options) as spark:
        return list(
            api.compact_topics(
                spark, warehouse, options.topics, hours=hours, grace_ms=round(options.grace_hours * HOUR_MS)
            )
        )


def _verify(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    return list(api.verify_topics(warehouse, options.topics, audit_store=options.audit_store))


def _retain(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    keep_ms = None if options.keep_hours is None else round(options.keep_hours * HOUR_MS)
    return list(api.retain_topics(warehouse, options.topics, keep_ms=keep_ms))


@contextmanager
def _spark(options: argparse.Namespace) -> "Iterator[SparkSession]":
    """A session that is started once something is asked of it: most refusals, and loads that find nothing
    new, come before that. Under spark-submit it is there from the start: a cluster takes an application
    without one for a failed one.
    """
    spark = _Session(f"headrace {options.command} {' '.join(options.topics)}", options.master)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        spark.start()
    try:
        yield cast("SparkSession", spark)
    finally:
        spark.stop()


class _Session:
    def __init__(self, app_name: str, master: str | None) -> None:
        self._app_name = app_name
        self._master = master
        self._started: SparkSession | None = None

    def start(self) -> "SparkSession":
        if self._started is None:
            self._started = spark_session(self._app_name, master=self._master)
        return self._started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.start(), name)

    def stop(self) -> None:
        if self._started is not None:
            self._started.stop()


_COMMANDS: Final[dict[str, tuple[Run, str]]] = {
    "load": (_load, "load what is new into hourly Parquet, exactly once"),
    "replay": (_replay, "load dead letters again, once their cause is mended"),
    "compact": (_compact, "rewrite the small files of closed hours into few"),
    "retain": (_retain, "let old hours go; clear orphaned staging and old trash"),
    "verify": (_verify, "recount files against manifests, manifests against the audit"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.warehouse.job",
        description="\n".join(f"{name}: {text}" for name, (_, text) in _COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=sorted(_COMMANDS))
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--bootstrap", required=True, help="brokers of the analysis cluster, host:port,…")
    parser.add_argument("--registry-url", required=True, help="schema registries, with commas between")
    parser.add_argument("--hdfs-url", required=True, help="such as hdfs://127.9.0.31:8020")
    parser.add_argument("--webhdfs-url", required=True, help="such as http://127.9.0.31:9870")
    parser.add_argument("--root", default=DEFAULT_ROOT)
    parser.add_argument("--datacenter", default=DEFAULT_DATACENTER)
    parser.add_argument("--no-audit", action="store_true", help="don't tell the audit")
    parser.add_argument(
        "--master", help="Spark's master; by default what Spark is configured with, else local[*]"
    )
    parser.add_argument("--result", type=Path, help="write the results there as JSON, too")
    parser.add_argument("--until", type=_time, help="load: only records before this time (ISO 8601)")
    parser.add_argument("--accept-gap", action="store_true", help="load: go on over records that are gone")
    parser.add_argument("--dry-run", action="store_true", help="load: print the plan and load nothing")
    parser.add_argument("--subject", help="load: the registry's subject, by default <topic>-value")
    parser.add_argument(
        "--hour", action="append", default=[], type=_hour, help="compact: only this hour (2026-11-20T18)"
    )
    parser.add_argument(
        "--grace-hours", type=float, default=0, help="compact: only hours that are over so long"
    )
    parser.add_argument(
        "--keep-hours", type=float, help="retain: how old an hour may become; by default any age"
    )
    parser.add_argument("--audit-store", help="verify: the URL of the audit's store")
    return parser


def _hour(text: str) -> int:
    try:
        return parse_hour(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write it as 2026-11-20T18:00:00Z") from error
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _numbers(result: Any) -> Any:
    """A result without its lists: a line's worth."""
    if not isinstance(result, dict):
        return result
    return {name: value for name, value in result.items() if not isinstance(value, dict | list)}


def _write_result(path: Path, text: str) -> None:
    # Whoever reads it finds all of it or nothing.
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    fresh.write_text(text)
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
