"""`python -m headrace.audit`: the auditor of one datacenter; with `--store` it also folds the audit store.

Exits with 0 on SIGTERM or SIGINT, with 1 and one line on stderr if it cannot start or continue. Prints
"auditor of EAST runs, status on http://HOST:PORT/status" once it runs.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import threading
from pathlib import Path
from typing import Any, Final

from headrace.audit.batches.tally import BUCKET_DEFAULT_MS, check_bucket_ms
from headrace.audit.counting import http_counts as counts
from headrace.audit.counting.auditor import Auditor
from headrace.audit.counting.http_counts import CountsDesk
from headrace.audit.counting.metrics import metrics
from headrace.audit.counting.page import page
from headrace.audit.counting.settings import EVERY_DEFAULT_S, AuditorSettings, audit_source
from headrace.audit.fold_loop import FoldLoop
from headrace.audit.store.place import StorePlace
from headrace.audit.store.store import StoreError
from headrace.audit.store.upkeep import KEEP_DEFAULT_MS
from headrace.audit.topic.publish import AuditPublisher
from headrace.audit.topic.reader import AuditReader
from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC, AUDIT_TOPIC
from headrace.coordination.errors import CoordinationError
from headrace.coordination.mirrors import MirrorMap
from headrace.coordination.session import ZooKeeperSession
from headrace.process.command_line import on_stop_signals, pattern, set_up_logging
from headrace.process.status import StatusServer

logger = logging.getLogger(__name__)

ZOOKEEPER_TIMEOUT_S: Final = 10.0
ZOOKEEPER_CONNECT_S: Final = 60.0
JOIN_S: Final = 30.0
DAY_MS: Final = 24 * 3_600_000


class AuditorProcess:
    """What one auditor process runs: the auditor, and the fold loop if it has a store."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._name: str = options.datacenter
        place = StorePlace(options.store) if options.store else None
        self._session: ZooKeeperSession | None = None
        mirrors = None
        if options.mirrors_zookeeper:
            self._session = ZooKeeperSession(
                options.mirrors_zookeeper, timeout_s=ZOOKEEPER_TIMEOUT_S, name=f"auditor-{self._name}"
            )
            self._session.start(connect_timeout_s=ZOOKEEPER_CONNECT_S)
            mirrors = MirrorMap(self._session)

        def make_reader(start_at: dict[tuple[str, int], int]) -> AuditReader:
            return AuditReader(
                bootstrap=options.bootstrap,
                registry_url=options.registry,
                topics=(AUDIT_TOPIC, ANALYSIS_AUDIT_TOPIC),
                start_at=start_at,
                client_id=f"auditor-{self._name}-store",
                source_of=audit_source(mirrors),
            )

        keep_ms = int(options.keep_days * DAY_MS)
        self._fold_loop = (
            FoldLoop(place, make_reader, keep_ms=keep_ms, datacenter=self._name) if place else None
        )
        audit_topic = AUDIT_TOPIC if mirrors is None else ANALYSIS_AUDIT_TOPIC
        reports = AuditPublisher(
            bootstrap=options.bootstrap,
            registry_url=options.registry,
            datacenter=self._name,
            service="counts",
            topic=audit_topic,
        )
        self.counts = CountsDesk(self._name, reports)
        self._auditor = Auditor(
            AuditorSettings(
                datacenter=self._name,
                bootstrap=options.bootstrap,
                registry_url=options.registry,
                audit_topic=audit_topic,
                topics=options.topics,
                every_s=options.every,
                bucket_ms=options.bucket_ms,
            ),
            mirrors=mirrors,
            trusted=self._fold_loop.producers.trusts if self._fold_loop else None,
        )
        self._failures: list[BaseException] = []
        self._ending = threading.Event()

    def status(self) -> dict[str, Any]:
        """Returns plain data for `GET /status`."""
        status = {**self._auditor.status(), "reports_of_counts": self.counts.taken_count}
        if self._fold_loop is not None:
            status["store"] = self._fold_loop.status()
        return status

    def stop(self) -> None:
        """Ends `run` soon. Any thread, also a signal handler."""
        self._ending.set()

    def run(self) -> BaseException | None:
        """Runs until `stop` or until a part fails; returns the part's exception."""
        parts: list[Auditor | FoldLoop] = [self._auditor] + ([self._fold_loop] if self._fold_loop else [])
        threads = [
            threading.Thread(target=self._guard, args=(part,), name=type(part).__name__) for part in parts
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        self._ending.wait()
        for part in parts:
            part.stop()
        for thread in threads:
            thread.join(JOIN_S)
        self.counts.close()
        if self._session is not None:
            self._session.close()
        return self._failures[0] if self._failures else None

    def _guard(self, part: Auditor | FoldLoop) -> None:
        try:
            part.run()
        except BaseException as error:
            logger.exception("%s failed; the process ends, to be restarted", type(part).__name__)
            self._failures.append(error)
        finally:
            self._ending.set()


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    set_up_logging()
    try:
        if options.store_file:
            options.store = options.store_file.read_text().strip()
        process = AuditorProcess(options)
    except (StoreError, CoordinationError, OSError, ValueError) as error:
        print(f"the auditor of {options.datacenter} cannot start: {error}", file=sys.stderr)
        return 1
    try:
        posts = {counts.PATH: process.counts.take}
        server = StatusServer(options.status, process.status, page, posts, metrics)
    except (OSError, ValueError) as error:
        print(f"the auditor cannot serve its status on {options.status}: {error}", file=sys.stderr)
        return 1
    on_stop_signals(process.stop)
    print(f"auditor of {options.datacenter} runs, status on http://{server.address}/status", flush=True)
    failure = process.run()
    server.close()
    if failure is not None:
        print(f"the auditor of {options.datacenter} ended: {failure!r}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.audit", description="Counts a datacenter's logs and reports the counts."
    )
    add = parser.add_argument
    add("--datacenter", required=True, metavar="NAME", help="the datacenter to audit, such as east")
    add("--bootstrap", required=True, metavar="HOST:PORT,…", help="its brokers")
    add("--registry", required=True, metavar="URL,…", help="schema registries, its own first")
    add(
        "--mirrors-zookeeper",
        metavar="HOST:PORT",
        help="analysis cluster only: the ZooKeeper of the mirrors' map",
    )
    store = parser.add_mutually_exclusive_group()
    store.add_argument(
        "--store-file",
        type=Path,
        metavar="FILE",
        help="a file that holds the store's URL: command lines show passwords",
    )
    store.add_argument(
        "--store",
        metavar="URL",
        help="fold all reports into this store, such as sqlite:////data/audit.db",
    )
    add(
        "--keep-days",
        type=float,
        default=KEEP_DEFAULT_MS / DAY_MS,
        help="how many days the store keeps an hour (30)",
    )
    add("--every", type=_seconds, default=EVERY_DEFAULT_S, metavar="SECONDS", help="between reports (5)")
    add("--topics", type=pattern, default=re.compile(".*"), metavar="REGEX", help="topics to count (all)")
    add(
        "--bucket-ms",
        type=_bucket,
        default=BUCKET_DEFAULT_MS,
        metavar="MS",
        help="span of event time (600000)",
    )
    add(
        "--status",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where to serve its page and its status",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds between 0.05 and 3600")
    return value


def _bucket(text: str) -> int:
    try:
        return check_bucket_ms(int(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
