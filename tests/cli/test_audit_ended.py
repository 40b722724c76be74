"""`headrace audit ended`: hours of the others do not wait for ever for a datacenter that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from fix_audit_world import TOPIC, Batch, PartitionBytes, everything_reported, received
from fix_cli import Headrace, command_runner
from headrace.audit.report.report import is_complete, report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS, hour_start
from headrace.audit.topic.acceptances import AcceptanceRecord, acceptable
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.records import (
    DATACENTER_TIER,
    HeartbeatRecord,
    PartitionPosition,
    ReceivedRecord,
)
from headrace.audit.topic.validity import check
from headrace.cli import audit_ended
from headrace.cli.errors import ExitCode
from headrace.process.clock import now_ms

EAST, TOPIC_ID = "east", str(UUID(int=1))
DAY_MS = 24 * HOUR_MS
SAID_MS = hour_start(now_ms()) - DAY_MS + 60_000
"""When the command is run: no clock of these tests is ahead of the store's."""


def beat_of_east(at_ms: int) -> ReceivedRecord:
    position = PartitionPosition(EAST, TOPIC, 0, 1, 0, 0, source_topic_id=TOPIC_ID)
    beat = HeartbeatRecord(DATACENTER_TIER, at_ms, 0, 1, (position,))
    return received(beat, time_ms=at_ms, datacenter=EAST)


def in_west(*hours_ms: int) -> list[ReceivedRecord]:
    """What is said of hours in which west had events, two hours after the last one began."""
    batches = [Batch(0, 7, 0, 5 * number, 5, hour_ms) for number, hour_ms in enumerate(hours_ms)]
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    return [replace_time(each, hours_ms[-1] + 2 * HOUR_MS) for each in everything_reported(batches, {0: log})]


def replace_time(record: ReceivedRecord, time_ms: int) -> ReceivedRecord:
    if isinstance(record.record, HeartbeatRecord):
        return record._replace(time_ms=time_ms, record=replace(record.record, beat=time_ms))
    return record._replace(time_ms=time_ms)


class Folding:
    """A publisher of audit records whose topic an auditor reads at once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.records: list[TopicDeclaration] = []

    def publish(self, record: TopicDeclaration) -> None:
        check(
            received(record, time_ms=SAID_MS, datacenter=EAST), SAID_MS
        )  # as the auditor does, of a log that is no copy
        self.records.append(record)

    def flush(self) -> None:
        fold(self._url, *(received(each, time_ms=SAID_MS, datacenter=EAST) for each in self.records))


def fold(url: str, *records: ReceivedRecord) -> None:
    store = AuditStore(url)
    store.fold(list(records))
    store.close()


def unproven(url: str, hour_ms: int, later_ms: int) -> list[str]:
    """Returns what of an hour is not proven at a later time."""
    store = AuditStore(url, must_exist=True)
    try:
        assert report(store, TOPIC, hour_ms, hour_ms + HOUR_MS, now_ms=later_ms).verdicts
        return list(is_complete(store, TOPIC, hour_ms, now_ms=later_ms).problems)
    finally:
        store.close()


def accept_unknown(url: str, hour_ms: int, later_ms: int) -> None:
    """Accepts what is unknown of an hour, as `headrace audit accept --unknown` does."""
    store = AuditStore(url)
    verdicts = report(store, TOPIC, hour_ms, hour_ms + HOUR_MS, now_ms=later_ms).verdicts
    for digest, finding in (
        each for verdict in verdicts for each in acceptable(verdict, unknown=True).items()
    ):
        said = AcceptanceRecord(TOPIC, hour_ms, (digest,), (finding.text,), "ada@host-1", "it burned down")
        store.fold([received(said, time_ms=SAID_MS)])
    store.close()


@pytest.fixture
def headrace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Headrace]:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setattr("headrace.process.clock.now_ms", lambda: SAID_MS)
    yield command_runner(monkeypatch, capsys)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"sqlite:///{tmp_path / 'audit.db'}"
    folding = Folding(found)

    @contextmanager
    def publisher(service: str, *, speaks_for: str) -> Iterator[Folding]:
        assert (service, speaks_for) == ("ended", EAST)
        yield folding

    monkeypatch.setattr(audit_ended, "publisher", publisher)
    return found


def test_hours_after_its_end_do_not_wait_for_a_datacenter(headrace: Headrace, url: str) -> None:
    this_hour = hour_start(SAID_MS)
    between, after = this_hour - DAY_MS, this_hour + HOUR_MS
    later_ms = after + 5 * HOUR_MS // 2
    fold(url, beat_of_east(this_hour - 2 * DAY_MS), *in_west(between, after))
    problems = unproven(url, after, later_ms)
    assert problems[0].endswith("If east is gone for good: `headrace audit ended east`"), problems
    done = headrace("audit", "ended", EAST, "--store", url)
    assert done.exit_code == ExitCode.DONE, done
    assert f"ended  {TOPIC}, which was counted last at" in done.out
    assert unproven(url, after, later_ms) == []
    problems = unproven(url, between, later_ms)
    assert len(problems) == 1 and "it is not known what came then" in problems[0], problems
    accept_unknown(url, between, later_ms)
    assert unproven(url, between, later_ms) == []
    assert headrace("audit", "ended", EAST, "--store", url, "--json").json["topics"] == [TOPIC]
    fold(url, beat_of_east(SAID_MS + 1))
    assert unproven(url, after, later_ms), "its auditor spoke again"


def test_a_datacenter_that_speaks_has_not_ended(headrace: Headrace, url: str) -> None:
    fold(url, beat_of_east(SAID_MS))
    refused = headrace("audit", "ended", EAST, "--store", url)
    assert refused.exit_code == ExitCode.NEGATIVE and "it runs" in refused.err
    unknown = headrace("audit", "ended", "eats", "--store", url)
    assert unknown.exit_code == ExitCode.USAGE and "but of these: east" in unknown.err
