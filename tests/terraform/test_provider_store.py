"""The audit store as a plan reads it: nothing is written there, and an auditor at work holds nobody up."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from fix_audit_world import HOUR_A, received
from fix_possible_records import SPAN, TALLY
from fix_terraform import VENV
from headrace.audit.store.store import AuditStore
from headrace.audit.times import FIRST_NAMED_MS, OUTSIDE_NAME

# The provider's data source. It prints the hours, or the status if there are none, or the problem.
READ = """
import json, sys, threading
from headrace.provider.audits import AuditVerdictData
from headrace.provider.problems import ResourceError
from headrace.provider.resource import Context, ResourceCall

config = {"store": sys.argv[1], "topic": "clicks"}
try:
    found = AuditVerdictData(Context()).read(ResourceCall(threading.Event()), config)
    print(json.dumps([each["hour"] for each in found["hours"]] or found["status"]))
except ResourceError as error:
    print(json.dumps(error.problems[0].detail))
"""


def read(url: str) -> Any:
    command = [str(VENV / "bin" / "python"), "-c", READ, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_plan_writes_nothing_to_what_is_no_store(terraform: None, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    path.touch()
    assert "is no audit store" in read(f"sqlite:///{path}")
    assert path.read_bytes() == b""


def test_a_plan_does_not_wait_for_the_auditor_that_writes(terraform: None, tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    AuditStore(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path, isolation_level=None)) as auditor:
        auditor.execute("BEGIN IMMEDIATE")
        assert read(f"sqlite:///{path}") == "unknown"


def test_a_store_that_is_damaged_where_it_is_read_is_named(terraform: None, tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    AuditStore(f"sqlite:///{path}").close()
    data = path.read_bytes()
    path.write_bytes(data[: 8 * 4096] + b"\xff" * (len(data) - 8 * 4096))
    assert "malformed" in read(f"sqlite:///{path}")
    path.write_bytes(b"\xff" * len(data))
    assert "file is not a database" in read(f"sqlite:///{path}")


def test_events_of_times_that_no_calendar_has_keep_no_plan_from_its_verdict(
    terraform: None, tmp_path: Path
) -> None:
    """One client that sends microseconds for milliseconds: each plan failed, as by a bug of the provider."""
    url = f"sqlite:///{tmp_path}/audit.db"
    store = AuditStore(url)
    times_ms = (2**62, FIRST_NAMED_MS, HOUR_A)
    spans = tuple(SPAN._replace(bucket_start_ms=each) for each in times_ms)
    store.fold([received(replace(TALLY, spans=spans, topic="clicks"))])
    store.close()
    assert read(url) == [OUTSIDE_NAME, "0001-01-01T00:00:00Z", "2015-05-17T11:00:00Z"]
