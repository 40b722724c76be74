"""A store that an earlier version made, or a later one, is used as it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from fix_audit_world import HOUR_A, NOW_MS, TOPIC, Batch, PartitionBytes, everything_reported
from headrace.audit.findings import Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore

# What `AuditStore` made on 2026-11-23, when its schema version became 4.
FIRST_OF_VERSION_4 = Path(__file__).parents[1] / "golden" / "audit-store-4.sql"
KNOWN_SINCE = "INSERT INTO hours VALUES ('page-view', 'east', 3600000, 1795386600000)"


def complete_after_a_fold(path: Path) -> None:
    log = PartitionBytes()
    batch = Batch(0, 7, 0, 0, 10, HOUR_A)
    log.append(batch.encode())
    store = AuditStore(f"sqlite:///{path}")
    store.fold(everything_reported([batch], {0: log}), {("_audit", 0): 100})
    found = report(store, TOPIC, from_ms=HOUR_A, to_ms=HOUR_A + 3_600_000, now_ms=NOW_MS)
    store.close()
    assert [verdict.status for verdict in found.verdicts] == [Status.COMPLETE]


def test_a_store_of_the_first_version_4(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(FIRST_OF_VERSION_4.read_text())
        connection.execute("INSERT INTO meta VALUES ('schema_version', '4')")
        connection.execute(KNOWN_SINCE)
    connection.close()
    complete_after_a_fold(path)
    with sqlite3.connect(path) as connection:
        [count] = connection.execute("SELECT count(*) FROM hours WHERE hour_ms = 3600000").fetchone()
    connection.close()
    assert count == 1


def test_a_store_with_more_columns_than_this_version_knows(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    AuditStore(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE beats ADD COLUMN later BIGINT")
        connection.execute("ALTER TABLE hours ADD COLUMN later BIGINT NOT NULL DEFAULT 0")
        connection.execute("CREATE TABLE later (name VARCHAR NOT NULL)")
    connection.close()
    complete_after_a_fold(path)
