"""`headrace audit accept`: by name and for good; what an acceptance does not cover is lost all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fix_audit_world import (
    BUCKET_MS,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
    report_of,
)
from fix_cli import Headrace, command_runner
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.acceptances import AcceptanceRecord
from headrace.cli import audit_accept
from headrace.cli.errors import ExitCode
from headrace.warehouse.layout import hour_name

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS) for index in range(6)]
LOST = 3
HOUR = hour_name(HOUR_A)


class Folding:
    """A publisher of audit records whose topic an auditor reads at once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.records: list[AcceptanceRecord] = []

    def publish(self, record: AcceptanceRecord) -> None:
        self.records.append(record)

    def flush(self) -> None:
        store = AuditStore(self._url)
        store.fold([received(each, time_ms=NOW_MS + number) for number, each in enumerate(self.records)])
        store.close()


@pytest.fixture
def headrace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Headrace]:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    yield command_runner(monkeypatch, capsys)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store of one hour, of which one batch never reached the log."""
    log = PartitionBytes()
    for index, batch in enumerate(BATCHES):
        if index != LOST:
            log.append(batch.encode())
    found = f"sqlite:///{tmp_path / 'audit.db'}"
    store = AuditStore(found)
    store.fold(everything_reported(BATCHES, {0: log}))
    store.close()
    folding = Folding(found)

    @contextmanager
    def publisher(service: str) -> Iterator[Folding]:
        assert service == "repair"
        yield folding

    monkeypatch.setattr(audit_accept, "publisher", publisher)
    return found


@pytest.fixture
def accept(headrace: Headrace, url: str) -> Headrace:
    return lambda *words: headrace(
        "audit", "accept", TOPIC, "--hour", HOUR, "--store", url, "--wait", "20s", *words
    )


def test_what_is_accepted_is_complete_with_its_reason_until_it_is_withdrawn(
    headrace: Headrace, url: str, accept: Headrace
) -> None:
    done = accept("--reason", "the disk of frontend-2 is gone")
    assert done.exit_code == ExitCode.DONE, done
    assert "complete (1 accepted)" in done.out and "the disk of frontend-2 is gone" in done.out
    assert headrace("audit", "report", "--store", url).exit_code == ExitCode.DONE
    again = accept("--reason", "once more")
    assert again.exit_code == ExitCode.NEGATIVE
    assert "nothing is lost, duplicated, altered or corrupt in these hours" in again.err
    withdrawn = accept("--reason", "it was found", "--withdraw", "--json")
    assert withdrawn.exit_code == ExitCode.NEGATIVE and withdrawn.json["status"] == "lost"
    nothing = accept("--reason", "it was found", "--withdraw")
    assert nothing.exit_code == ExitCode.NEGATIVE and "nothing is accepted in these hours" in nothing.err


def test_an_acceptance_gives_a_reason(accept: Headrace) -> None:
    refused = accept("--reason", " ")
    assert refused.exit_code == ExitCode.USAGE and "say why nothing more can be done" in refused.err


def test_what_a_host_that_is_gone_never_told_is_accepted_if_asked_for(accept: Headrace, url: str) -> None:
    store = AuditStore(url)
    store.fold([received(report_of("publisher-9", [Batch(0, 7, 0, 0, 10, HOUR_A)], closed=False))])
    store.close()
    assert accept("--reason", "the disk is gone").exit_code == ExitCode.UNREACHABLE
    refused = accept("--reason", "the host is gone, too")
    assert refused.exit_code == ExitCode.NEGATIVE
    assert "Some of it is unknown: if nobody will ever tell, accept that with --unknown" in refused.err
    done = accept("--reason", "the host is gone, too", "--unknown")
    assert done.exit_code == ExitCode.DONE, done
    assert "complete (2 accepted)" in done.out and "the host is gone, too" in done.out
    again = accept("--reason", "once more", "--unknown")
    assert again.exit_code == ExitCode.NEGATIVE and "or unknown for good" in again.err
    assert accept("--reason", "it was found", "--withdraw").exit_code == ExitCode.NEGATIVE
