"""`headrace audit report`: totals first, then what is not complete; exit codes; a store that others use."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fix_audit_world import BUCKET_MS, HOUR_A, TOPIC, Batch, PartitionBytes, everything_reported
from fix_cli import Headrace, command_runner
from headrace.audit.store import store as audit_store
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.load_report import LoadReport
from headrace.audit.topic.records import ReceivedRecord
from headrace.cli.errors import ExitCode

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS) for index in range(18)]
LOST = 11


def records(lost: int | None = None) -> list[ReceivedRecord]:
    """Three hours of one producer; the batch `lost` never reached the log."""
    log = PartitionBytes()
    for index, batch in enumerate(BATCHES):
        if index != lost:
            log.append(batch.encode())
    return everything_reported(BATCHES, {0: log})


@pytest.fixture
def headrace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Headrace]:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    yield command_runner(monkeypatch, capsys)


def filled(tmp_path: Path, records: Iterable[ReceivedRecord]) -> str:
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    store = AuditStore(url)
    store.fold(records)
    store.close()
    return url


def test_what_is_complete_is_one_line_of_totals(tmp_path: Path, headrace: Headrace) -> None:
    done = headrace("audit", "report", "--store", filled(tmp_path, records()))
    assert done.exit_code == ExitCode.DONE
    (line,) = [line for line in done.out.splitlines() if TOPIC in line]
    assert "3 of 3" in line and line.count("180") == 4 and "complete" in line
    assert "3 of 3 rows are complete" in done.out


def test_a_loss_is_shown_below_the_totals_with_its_evidence(tmp_path: Path, headrace: Headrace) -> None:
    url = filled(tmp_path, records(LOST))
    done = headrace("audit", "report", "--store", url)
    assert done.exit_code == ExitCode.NEGATIVE
    totals, row, finding = [line for line in done.out.splitlines() if TOPIC in line][:3]
    assert "2 of 3" in totals and "180" in totals and "170" in totals
    assert "60" in row and "50" in row and "lost" in row
    assert finding.startswith("lost  producer → datacenter: 10 events") and "sequences 110 to 119" in finding
    judged = headrace("audit", "report", "--store", url, "--json").json
    assert judged["format"] == 1 and judged["status"] == "lost"
    (total,) = judged["totals"]
    assert (total["hours"], total["complete_hours"], total["counts"]["producer"]) == (3, 2, 180)
    assert {"command", "sequences", "hop"} <= judged["verdicts"][1]["findings"][0].keys()


def test_what_nobody_can_say_yet_is_neither_success_nor_loss(tmp_path: Path, headrace: Headrace) -> None:
    silent = [each for each in records() if not isinstance(each.record, LoadReport)]
    done = headrace("audit", "report", "--store", filled(tmp_path, silent))
    assert done.exit_code == ExitCode.UNREACHABLE
    assert f"repair  headrace warehouse load {TOPIC}" in done.out
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    first = headrace("audit", "report", "--store", url, "--to", HOUR_A - HOUR_MS)
    assert (first.exit_code, first.out.strip()) == (
        ExitCode.UNREACHABLE,
        "no tier has reported anything for these hours",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("repair", "--hour", "2015-05-17T10"),
        ("accept", "--hour", "2015-05-17T10", "--reason", "gone"),
        ("accept", "--hour", "2015-05-17T10", "--reason", "gone", "--withdraw"),
        ("recount", "--from", "2015-05-17T10", "--to", "2015-05-17T11"),
    ],
)
def test_a_topic_that_is_mistyped_has_nothing_to_repair_and_is_named(
    words: tuple[str, ...], tmp_path: Path, headrace: Headrace
) -> None:
    """`nothing to repair here` would be believed of the topic that was meant."""
    url = filled(tmp_path, records(LOST))
    wrong = headrace("audit", words[0], f"{TOPIC}s", *words[1:], "--store", url)
    assert wrong.exit_code == ExitCode.NEGATIVE and wrong.out == ""
    named = f"no tier has ever reported anything about a topic '{TOPIC}s'; did you mean {TOPIC!r}?"
    assert named in wrong.err and "headrace audit report" in wrong.err


def test_a_report_on_a_topic_that_is_mistyped_names_the_nearest(tmp_path: Path, headrace: Headrace) -> None:
    """It goes on waiting for a topic that is new; a monitor's exit code stays."""
    url = filled(tmp_path, records())
    for form in ((), ("--json",)):
        report = headrace("audit", "report", "--topic", f"{TOPIC}s", "--store", url, *form)
        assert report.exit_code == ExitCode.UNREACHABLE
        assert f"did you mean {TOPIC!r}?" in report.err
    assert "did you mean" not in headrace("audit", "report", "--topic", TOPIC, "--store", url).err


def test_a_store_that_somebody_writes_is_read(tmp_path: Path, headrace: Headrace) -> None:
    url = filled(tmp_path, records())
    writer = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM hours")
    assert headrace("audit", "report", "--store", url).exit_code == ExitCode.DONE
    writer.close()


def test_a_store_that_is_locked_for_all_says_nothing(
    tmp_path: Path, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_store, "READ_BUSY_TIMEOUT_MS", 50)
    url = filled(tmp_path, records())
    writer = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    writer.execute("PRAGMA journal_mode=DELETE")
    writer.execute("BEGIN EXCLUSIVE")
    done = headrace("audit", "report", "--store", url)
    assert done.exit_code == ExitCode.UNREACHABLE and "database is locked" in done.err
    writer.close()


@pytest.mark.parametrize("url", ["audit.db", "nonsense://"])
def test_an_address_that_is_none_is_wrong_usage(headrace: Headrace, url: str) -> None:
    assert headrace("audit", "report", "--store", url).exit_code == ExitCode.USAGE
