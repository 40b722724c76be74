"""The warehouse as a Spark application: `python -m headrace.warehouse.job load TOPIC…`, or by spark-submit.

Owns the command line, the exit code and the result file. Exit code 0: done; 1: refused or failed, with one
line that names the problem and what to do. Every command is safe to repeat.
"""

import os
import sys

if __name__ == "__main__" and os.path.realpath(sys.path[0]) == os.path.realpath(__file__).rpartition("/")[0]:
    # spark-submit puts this file's folder first on the path, where `hdfs` and `types` hide other modules of
    # these names. So nothing is imported before this but what Python itself has imported.
    del sys.path[0]

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.audit.topic.said_of_tables import ALL, CHECKED
from headrace.process.timestamps import LATEST_MS
from headrace.warehouse import api
from headrace.warehouse.errors import known_error
from headrace.warehouse.layout import HOUR_MS, parse_hour
from headrace.warehouse.loading import LoadResult
from headrace.warehouse.made_again import Said
from headrace.warehouse.options import DEFAULT_DATACENTER, DEFAULT_ROOT, WarehouseOptions
from headrace.warehouse.session import SessionOnDemand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS_MAX: Final = 10_000_000
"""Of an age: a thousand years."""

Run = Callable[[argparse.Namespace, WarehouseOptions], list[Any]]


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    options = _parser().parse_args(argv)
    warehouse = WarehouseOptions(
        hdfs_url=options.hdfs_url,
        webhdfs_url=options.webhdfs_url,
        bootstrap=options.bootstrap,
        registry_url=options.registry_url,
        root=options.root,
        datacenter=options.datacenter,
        audit=not options.no_audit,
        zookeeper=options.zookeeper,
    )
    try:
        results = _COMMANDS[options.command][0](options, warehouse)
    except Exception as error:
        problem = known_error(error, f"{options.command} {' '.join(options.topics)}")
        if problem is None:
            raise
        print(f"headrace warehouse: {problem}", file=sys.stderr)
        return 1
    plain = [_plain(result) for result in results]
    text = json.dumps(plain, indent=1)
    if options.result is None or options.dry_run:
        print(text)
    else:
        # The file has the lists: in a log they would take thousands of lines.
        print("\n".join(json.dumps(_numbers(result)) for result in plain))
    if options.result is not None:
        _write_result(options.result, text)
    for result in (each for each in results if isinstance(each, LoadResult) and each.problem):
        print(f"headrace warehouse: {result.problem}", file=sys.stderr)
    return 0 if all(getattr(result, "is_sound", True) for result in results) else 1


def _load(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    topics = options.topics
    choices: dict[str, Any] = {
        "until_ms": options.until,
        "accept_gap": options.accept_gap,
        "said": Said.parsed(options.made_again),
    }
    if options.dry_run:
        return api.plan_loads(warehouse, topics, **choices)
    with _spark(options) as spark:
        return api.load_topics(spark, warehouse, topics, subject=options.subject, **choices)


def _replay(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    with _spark(options) as spark:
        return api.replay_topics(spark, warehouse, options.topics, subject=options.subject)


def _refill(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    results: list[Any] = []
    with _spark(options) as spark:
        for topic in options.topics:
            hours = options.hour or api.hours_to_refill(warehouse, topic, audit_store=options.audit_store)
            results += api.refill_topic_hours(spark, warehouse, topic, hours)
    return results


def _compact(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    hours, grace_ms = options.hour or None, round(options.grace_hours * HOUR_MS)
    with _spark(options) as spark:
        return api.compact_topics(spark, warehouse, options.topics, hours=hours, grace_ms=grace_ms)


def _verify(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    return api.verify_topics(
        warehouse, options.topics, audit_store=options.audit_store, checked=options.checked
    )


def _retain(options: argparse.Namespace, warehouse: WarehouseOptions) -> list[Any]:
    keep_ms = None if options.keep_hours is None else round(options.keep_hours * HOUR_MS)
    return api.retain_topics(warehouse, options.topics, keep_ms=keep_ms)


@contextmanager
def _spark(options: argparse.Namespace) -> "Iterator[SparkSession]":
    """Yields a session that starts at its first use: most refusals, and loads without news, need none.

    Under spark-submit it starts at once, because a cluster considers an application without one failed.
    """
    spark = SessionOnDemand(f"headrace {options.command} {' '.join(options.topics)}", options.master)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        spark.start()
    try:
        yield cast("SparkSession", spark)
    finally:
        spark.stop()


_COMMANDS: Final[dict[str, tuple[Run, str]]] = {
    "load": (_load, "load what is new into hourly Parquet, exactly once"),
    "replay": (_replay, "load dead letters again, once their cause is fixed"),
    "refill": (_refill, "read from the log again what a table has lost"),
    "compact": (_compact, "rewrite the small files of closed hours into few"),
    "retain": (_retain, "delete old hours, orphaned staging and old trash"),
    "verify": (_verify, "compare files with manifests, and manifests with the audit"),
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
    parser.add_argument(
        "--registry-url", required=True, help="schema registries, [DATACENTER=]http://HOST:PORT, by commas"
    )
    parser.add_argument("--zookeeper", metavar="HOST:PORT", help="the analysis cluster's ZooKeeper")
    parser.add_argument("--hdfs-url", required=True, help="such as hdfs://127.9.0.31:8020")
    parser.add_argument("--webhdfs-url", required=True, help="such as http://127.9.0.31:9870")
    parser.add_argument("--root", default=DEFAULT_ROOT)
    parser.add_argument("--datacenter", default=DEFAULT_DATACENTER)
    parser.add_argument("--no-audit", action="store_true", help="report nothing to the audit")
    parser.add_argument("--master", help="Spark's master; by default the configured one, else local[*]")
    parser.add_argument("--result", type=Path, help="also write the results there, as JSON")
    _add_load_options(parser)
    parser.add_argument(
        "--hour",
        action="append",
        default=[],
        type=_hour,
        help="compact, refill: only this hour (2026-11-20T18)",
    )
    parser.add_argument(
        "--grace-hours", type=_hours, default=0, help="compact: only hours that ended so long ago"
    )
    parser.add_argument(
        "--keep-hours", type=_hours, help="retain: delete hours older than this; by default none"
    )
    parser.add_argument(
        "--checked",
        choices=CHECKED,
        default=ALL,
        help="verify: read all hours, or those with new files and a share of the others",
    )
    parser.add_argument("--audit-store", help="verify, refill: the URL of the audit's store")
    return parser


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--until", type=_time, help="load: only records before this time (ISO 8601)")
    parser.add_argument(
        "--accept-gap",
        action="store_true",
        help="load: skip records that the brokers deleted before any load",
    )
    parser.add_argument(
        "--made-again",
        action="append",
        default=[],
        type=_said,
        metavar="WHAT",
        help="load: of a topic that was deleted and made again, whether its log is a new one (new), or the "
        "same, copied once more (copy); new:0,2 says it of these partitions; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="load: print the plan and load nothing")
    parser.add_argument("--subject", help="load: the registry's subject, by default <topic>-value")


def _said(text: str) -> str:
    try:
        Said.parsed([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _hour(text: str) -> int:
    try:
        return parse_hour(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = -1
    if not 0 <= hours <= HOURS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours from 0 to {HOURS_MAX:,}")
    return hours


def _time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write it as 2026-11-20T18:00:00Z"
        ) from error
    time_ms = round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    # Brokers have other meanings for negative ones: -1 is the end of a log.
    if not 0 <= time_ms <= LATEST_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 1970 to 9999")
    return time_ms


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _numbers(result: Any) -> Any:
    """A result without its lists, which fits into a line."""
    if not isinstance(result, dict):
        return result
    return {name: value for name, value in result.items() if not isinstance(value, dict | list)}


def _write_result(path: Path, text: str) -> None:
    # Renamed once it is whole, so that no reader finds half of it.
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    fresh.write_text(text)
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
