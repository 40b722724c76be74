"""A finding about one event says `is` and `has`; judged from what tiers reported, as every reader sees it."""

from __future__ import annotations

import pytest

from fix_audit_world import BUCKET_MS, HOUR_A, Batch, PartitionBytes, everything_reported
from headrace.audit.phrases import agreeing
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.load_report import LoadReport
from headrace.audit.topic.records import ProducerReport


@pytest.mark.parametrize(
    ("said", "agrees"),
    [
        ("1 event of t, east, 10:00, are in the log", "1 event of t, east, 10:00, is in the log"),
        ("1 event of t, east, 10:00, (p), have not", "1 event of t, east, 10:00, (p), has not"),
        ("1 event of t, wait in it, or have not", "1 event of t, waits in it, or has not"),
        ("1 event of t, lie in a gap", "1 event of t, lies in a gap"),
        ("1 event of t, were not written", "1 event of t, was not written"),
        ("1 event of are-have, never reached east", "1 event of are-have, never reached east"),
        ("11 events of t, are in the log", "11 events of t, are in the log"),
    ],
)
def test_the_verbs_of_one_event(said: str, agrees: str) -> None:
    assert agreeing(said) == agrees


def test_one_event_of_a_report() -> None:
    batch = Batch(0, 7, 0, 0, 1, HOUR_A + BUCKET_MS)
    log = PartitionBytes()
    log.append(batch.encode())
    said = everything_reported([batch], {0: log})
    store = AuditStore("sqlite://")
    store.fold(each for each in said if not isinstance(each.record, LoadReport | ProducerReport))
    texts = [finding.text for verdict in report(store).verdicts for finding in verdict.findings]
    store.close()
    assert any(", is in " in text and "without any producer report" in text for text in texts)
    assert any(", has not been loaded" in text for text in texts)
