"""Hours that honest services published, and the auditor that counts them: what the audit says of them must
not change, whatever strangers write to `_audit`.

There is one cluster here. So the records of the analysis cluster's auditor and of the warehouse are written
as they would write them, from the log's own bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from fix_audit import AuditorProcess
from fix_audit_world import BUCKET_MS, HOUR_A, tally
from fix_broker import BrokerCluster, RawClient
from headrace.audit.findings import PRODUCER_HOP, Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS, hour_start
from headrace.audit.topic.load_report import LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.publish import AuditPublisher
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    AUDIT_TOPIC,
    AuditRecord,
    HeartbeatRecord,
    PartitionPosition,
    RangeTally,
)
from headrace.client import Admin
from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema
from headrace.process.clock import now_ms
from headrace.wire.batch import hop
from headrace.wire.records import decode_records

TOPIC: Final = "audited-5c1e"
"""A name that no other target's bytes hold."""
HOURS: Final = 2
EVENTS_PER_HOUR: Final = 60
WAREHOUSE: Final = "hdfs://fuzz/data"
WAIT_MAX_S: Final = 180.0
"""Until everything is counted and folded. Much else runs here: what counts is that it happens."""
REPORT_MAX_S: Final = 180.0
REPORT_CODES = (0, 1, 3)  # complete; something is lost, doubled or corrupt; pending or unknown
AUDITOR_MEMORY_MAX_BYTES: Final = 500 << 20
"""Of an auditor with a store: its libraries, a poll of records, and its bounded caches."""

Verdicts = dict[str, Any]


class AuditedHours:
    """The first `HOURS` hours are proven complete by `start`; `publish_hour` adds further ones."""

    def __init__(self, cluster: BrokerCluster, registry_url: str, directory: Path) -> None:
        self.registry_url = registry_url
        self.store_url = f"sqlite:///{directory}/audit.db"
        self.auditor = AuditorProcess(cluster, registry_url, directory, "--store", self.store_url)
        self.values: list[bytes] = []
        """The audit records about the proven hours, as they were written."""
        self._cluster = cluster
        self._store: AuditStore | None = None
        self._proven: Verdicts = {}
        self._hours = 0

    def start(self) -> None:
        """Returns once the first hours are proven complete."""
        with Admin(self._cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, 1)
        self.auditor.start()
        self._store = AuditStore(self.store_url)
        for _ in range(HOURS):
            self.publish_hour()
        for hour in range(HOURS):
            self.wait_until_counted(hour)
        self._report_as_analysis()
        self._wait(lambda: self._statuses() == ["complete"] * HOURS, "the first hours are not complete")
        self._proven = self.verdicts()
        with RawClient(self._cluster.bootstrap) as client:
            data = client.read_all(AUDIT_TOPIC, 0)
        self.values = [
            record.value or b"" for position, _ in hop(data) for record in decode_records(data, position)
        ]

    def close(self) -> None:
        self.auditor.kill()
        if self._store is not None:
            self._store.close()

    # --- what honest services do ---

    def publish_hour(self) -> int:
        """Publishes the events of one more hour, and reports them; returns the hour's number."""
        hour, self._hours = self._hours, self._hours + 1
        with EventPublisher(
            datacenter=self._cluster.datacenter,
            service=f"honest-{hour}",
            bootstrap=self._cluster.bootstrap,
            registry_url=self.registry_url,
            schemas={TOPIC: read_schema("page-view.avsc")},
        ) as publisher:
            for index in range(EVENTS_PER_HOUR):
                view = {"remote_host": "10.0.0.1", "method": "GET", "path": f"/{index}", "status": 200}
                time_ms = HOUR_A + hour * HOUR_MS + index * HOUR_MS // EVENTS_PER_HOUR
                publisher.publish(TOPIC, view, time_ms=time_ms)
        return hour

    def _report_as_analysis(self) -> None:
        """Reports the log as the auditor of the analysis cluster and the warehouse would."""
        datacenter = self._cluster.datacenter
        with RawClient(self._cluster.bootstrap) as client:
            log = client.read_all(TOPIC, 0)
        end = len(log)
        rows: dict[int, int] = {}
        for position, _ in hop(log):
            for record in decode_records(log, position):
                hour_ms = hour_start(record.timestamp_ms)
                rows[hour_ms] = rows.get(hour_ms, 0) + 1
        spans = tally(memoryview(log))
        position_ = PartitionPosition(datacenter, TOPIC, 0, 0, end, end)
        loaded = LoadedPartition(0, 0, end, tuple(LoadedHour(hour, n, n) for hour, n in rows.items()))
        written: tuple[AuditRecord, ...] = (
            RangeTally(ANALYSIS_TIER, datacenter, TOPIC, 0, 0, 0, end, BUCKET_MS, spans),
            HeartbeatRecord(ANALYSIS_TIER, now_ms(), 0, 1, (position_,)),
            LoadReport(WAREHOUSE, TOPIC, 1, now_ms(), (loaded,)),
        )
        with AuditPublisher(
            bootstrap=self._cluster.bootstrap,
            registry_url=self.registry_url,
            datacenter="analysis",
            service="analysis",
        ) as publisher:
            for each in written:
                publisher.publish(each)
            publisher.flush()

    def ensure_audit_topic(self) -> None:
        """Another target's requests may have deleted it: there is no access control."""
        with Admin(self._cluster.bootstrap) as admin:
            if AUDIT_TOPIC not in admin.topics():
                admin.create_topic(AUDIT_TOPIC, 1)

    # --- what must hold ---

    def wait_until_counted(self, hour: int) -> None:
        """Returns once the audit has every event of an hour in the log, and knows that none is missing."""
        wanted = (EVENTS_PER_HOUR, EVENTS_PER_HOUR, Status.COMPLETE)
        self._wait(lambda: self._counted(hour) == wanted, f"hour {hour} is not counted")

    def wait_until_folded(self) -> None:
        """Returns once the auditor has read all that is in `_audit` now."""
        with RawClient(self._cluster.bootstrap) as client:
            end, _ = client.list_offset(AUDIT_TOPIC, 0, -1)
        store = self._opened()
        self._wait(
            lambda: store.positions().get((AUDIT_TOPIC, 0), 0) >= end, f"_audit is not read up to {end}"
        )

    def wait_until_counting(self, topic: str) -> None:
        """Returns once the auditor has counted all that is in a topic's first partition now."""
        with RawClient(self._cluster.bootstrap) as client:
            end, _ = client.list_offset(topic, 0, -1)

        def is_counted() -> bool:
            counted = self.auditor.partitions().get((topic, 0))
            return counted is not None and counted["counted_to"] >= end

        self._wait(is_counted, f"{topic} is not counted up to {end}")

    def check(self) -> None:
        """Asserts that `headrace audit report` says of the proven hours what it said before."""
        found = self.verdicts()
        assert found == self._proven, f"the report was {self._proven}, is {found}"

    def verdicts(self) -> Verdicts:
        """What `headrace audit report --json` says of the proven hours, by hour."""
        ended = self._run_report("--json")
        document = json.loads(ended.stdout)
        return {
            each["hour"]: {key: value for key, value in each.items() if key != "hour"}
            for each in document["verdicts"]
            if (each["topic"], each["datacenter"]) == (TOPIC, self._cluster.datacenter)
            and each["hour_ms"] < HOUR_A + HOURS * HOUR_MS
        }

    def print_report(self) -> None:
        """Asserts that the report for people is printed, too, whatever names and times are in it."""
        self._run_report()

    def trouble(self) -> str | None:
        """What is wrong with the auditor now."""
        if not self.auditor.is_running:
            return f"the auditor ended: {self.auditor.output()[-2000:]}"
        try:
            status = self.auditor.status()
        except OSError as error:
            return f"the auditor's /status does not answer: {error!r}"
        if stopped := [each for each in status["partitions"] if each["topic"] == TOPIC and each["reason"]]:
            return f"the auditor stopped counting: {stopped}"
        held_bytes = psutil.Process(self.auditor.pid).memory_info().rss
        if held_bytes > AUDITOR_MEMORY_MAX_BYTES:
            return f"the auditor holds {held_bytes >> 20} MiB"
        return None

    def _run_report(self, *extra: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace.cli", "audit", "report", "--store", self.store_url, *extra]
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=REPORT_MAX_S,
            env={**os.environ, "COLUMNS": "200"},
            check=False,
        )
        is_said = ended.returncode in REPORT_CODES and bool(ended.stdout)
        assert is_said and "Traceback" not in ended.stderr, (
            f"headrace audit report ends with {ended.returncode}: {ended.stderr[-3000:]}"
        )
        return ended

    def _statuses(self) -> list[str]:
        found = report(self._opened(), TOPIC).verdicts
        return [str(each.status) for each in found if each.hour_ms < HOUR_A + HOURS * HOUR_MS]

    def _counted(self, hour: int) -> tuple[int, int, Status] | None:
        """(events of the producers, events in the log, verdict between both) of an hour."""
        start_ms = HOUR_A + hour * HOUR_MS
        for each in report(self._opened(), TOPIC, start_ms, start_ms + HOUR_MS).verdicts:
            if each.datacenter == self._cluster.datacenter:
                return each.counts.producer, each.counts.datacenter, each.hops[PRODUCER_HOP]
        return None

    def _opened(self) -> AuditStore:
        assert self._store is not None
        return self._store

    def _wait(self, condition: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + WAIT_MAX_S
        while not condition():
            assert self.auditor.is_running, f"the auditor ended: {self.auditor.output()[-3000:]}"
            assert time.monotonic() < deadline, f"{problem}: {self.auditor.output()[-3000:]}"
            time.sleep(0.1)
