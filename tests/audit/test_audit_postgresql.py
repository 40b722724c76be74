"""The store in a real PostgreSQL: the same reports and idempotence as in SQLite."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fix_audit_world import (
    DC,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
)
from headrace.audit.evidence_of_reports import LostLog
from headrace.audit.gathering.publishers import lost_logs, missing_reports
from headrace.audit.report.report import is_complete, report
from headrace.audit.store import upkeep
from headrace.audit.store.store import AuditStore, StoreError
from headrace.audit.topic.logs_read import LastRead, LogsRead, Mark
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, ReceivedRecord

START_WAIT_MAX_S: Final = 120
ACCOUNT: Final = "postgres"  # PostgreSQL refuses to run as root

pytestmark = pytest.mark.skipif(shutil.which("pg_ctl") is None, reason="PostgreSQL is not installed here")


def run(*command: str) -> None:
    user = ACCOUNT if os.geteuid() == 0 else None
    done = subprocess.run(
        command, user=user, capture_output=True, text=True, timeout=START_WAIT_MAX_S, cwd="/"
    )
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    """An empty database of a server of its own, on a Unix socket only."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-postgresql-"))
    if os.geteuid() == 0:
        shutil.chown(directory, ACCOUNT)
    data, log = str(directory / "data"), str(directory / "log")
    try:
        run("initdb", "-D", data, "-U", "audit", "--auth=trust", "--no-sync", "-E", "UTF8")
        options = f"-c listen_addresses='' -c unix_socket_directories={directory} -c fsync=off"
        run("pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start")
        yield f"postgresql+psycopg://audit@/postgres?host={directory}"
        run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def world() -> list[ReceivedRecord]:
    batches = [Batch(index % 2, 5, 0, 3 * (index // 2), 3, HOUR_A) for index in range(10)]
    logs = {0: PartitionBytes(), 1: PartitionBytes()}
    for index, batch in enumerate(batches):
        if index != 4:
            logs[batch.partition].append(batch.encode())
    return everything_reported(batches, logs)


def judged(url: str, records: list[ReceivedRecord]) -> Any:
    store = AuditStore(url)
    for each in records:
        store.fold([each], {("_audit", 0): 7})
    assert store.positions() == {("_audit", 0): 7}
    found = report(store, now_ms=NOW_MS).to_json()
    proof = is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS).to_json()
    store.close()
    return found, proof


def test_postgresql_reports_what_sqlite_reports(postgresql_url: str) -> None:
    records = world()
    shuffled = [*records, *records]
    random.Random(3).shuffle(shuffled)
    assert judged(postgresql_url, shuffled) == judged("sqlite://", records)
    store = AuditStore(postgresql_url)
    before = report(store, now_ms=NOW_MS)
    assert upkeep.merge(store, NOW_MS) == 0
    assert report(store, now_ms=NOW_MS) == before
    assert upkeep.forget(store, NOW_MS) == 1
    assert report(store, now_ms=NOW_MS).verdicts == ()
    store.close()


def test_a_store_of_an_earlier_version_gets_what_it_lacks(postgresql_url: str) -> None:
    store = AuditStore(postgresql_url)
    with store.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE missing_reports DROP COLUMN made_ms")
        connection.exec_driver_sql("DROP TABLE lost_logs")
    store.close()
    for _ in range(2):
        store = AuditStore(postgresql_url)
        with store.reading() as connection:
            assert not missing_reports(connection, TOPIC, DC) and not lost_logs(connection, DC)
            assert connection.exec_driver_sql("SELECT made_ms FROM missing_reports").all() == []
        store.close()


def test_a_log_that_was_lost_is_the_same_in_postgresql(postgresql_url: str) -> None:
    log, beat_ms = ("_audit", 0), HOUR_A + 60_000
    store = AuditStore(postgresql_url)
    beat = received(HeartbeatRecord(DATACENTER_TIER, beat_ms, 0, 1, ()), time_ms=beat_ms)._replace(log=log)
    later = beat._replace(time_ms=beat_ms + 9)
    for topic_id, some in (("old", beat), ("new", later)):
        store.fold([some], {log: 5}, logs=LogsRead({log: LastRead(topic_id, 3, "digest")}), seen_ms=NOW_MS)
    with store.reading() as connection:
        assert lost_logs(connection, DC) == (LostLog(*log, beat_ms, beat_ms + 9, "old"),)
    again = LogsRead({log: LastRead("new", 4, "digest")}, (Mark(*log, 3, "digest"),))
    store.fold([], {log: 6}, logs=again)
    with store.reading() as connection:
        assert lost_logs(connection, DC) == ()
    store.close()


def test_a_server_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(StoreError, match="cannot open the audit store postgresql"):
        AuditStore("postgresql+psycopg://audit:secret@127.0.0.1:1/postgres?connect_timeout=2")
