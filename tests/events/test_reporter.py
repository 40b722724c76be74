"""Reports against a Kafka that is a list: numbers, failures, repetition, the last report, sizes."""

import json
import time
from typing import Any
from uuid import UUID

import pytest

from fix_reports import FakeProducer, FakeRegistry
from headrace.client import BatchIdentity
from headrace.events import reporter as reporter_module
from headrace.events.handovers import PartTally, SequenceRange
from headrace.events.header import Origin
from headrace.events.journaled import NoJournal
from headrace.events.reporter import Reporter, ReportError, split
from headrace.events.schemas import read_schema
from headrace.registry.serializers import AvroSerializer

BUCKET_MS = 600_000


class Bench:
    def __init__(self, interval_s: float = 3600) -> None:
        self.producer = FakeProducer()
        self.now_ms = 1_000_000
        self.now_s = 0.0
        self.reporter = Reporter(
            self.producer,  # type: ignore[arg-type]
            AvroSerializer(FakeRegistry(), json.dumps(json.loads(read_schema("audit-producer.avsc")))),  # type: ignore[arg-type]
            Origin("east", "host", "web"),
            topic="_audit",
            bucket_ms=BUCKET_MS,
            interval_s=interval_s,
            idle_final_s=100,
            clock=lambda: self.now_s,
            wall_ms=lambda: self.now_ms,
        )

    def publish(self, count: int, time_ms: int = 5, topic: str = "t") -> None:
        for _ in range(count):
            self.reporter.hand_over(topic, time_ms)


def ms(value: Any) -> int:
    return round(float(value.timestamp()) * 1000)


def test_cumulative_numbered_and_keyed_by_publisher() -> None:
    bench = Bench()
    bench.reporter.report()
    bench.publish(3)
    bench.now_ms += 10
    bench.reporter.report()
    bench.publish(2)
    bench.reporter.batch_closed(BatchIdentity("t", 1, 7, 0, 100, 5, 5, 9))
    bench.reporter.report()
    bench.reporter.report()
    records = bench.producer.records
    assert [record["report_number"] for record in records] == [1, 2, 3, 4]
    assert [record["arrived_number"] for record in records] == [0, 1, 2, 3]
    assert [len(record["tallies"]) for record in records] == [0, 1, 1, 0], "only what changed, and heartbeats"
    assert [record["tallies"][0]["handed_over_count"] for record in records[1:3]] == [3, 5]
    assert records[2]["tallies"][0]["ranges"] == [
        {
            "partition": 1,
            "producer_id": 7,
            "producer_epoch": 0,
            "first_sequence": 100,
            "last_sequence": 104,
            "content": None,
        }
    ]
    assert [ms(record["reported_until"]) for record in records] == [
        1_000_000,
        1_000_010,
        1_000_010,
        1_000_010,
    ]
    assert {record["publisher"].encode() for record in records} == bench.producer.keys
    assert len({record["header"]["guid"] for record in records}) == 4
    assert {record["state"] for record in records} == {"OPEN"}


def test_the_next_report_repeats_a_failed_one() -> None:
    bench = Bench()
    bench.publish(3)
    bench.producer.broken = lambda _: True
    with pytest.raises(ReportError, match="report 1 to _audit did not arrive: planted"):
        bench.reporter.report()
    bench.producer.broken = lambda _: False
    bench.reporter.report()
    (record,) = bench.producer.records
    assert (record["report_number"], record["tallies"][0]["handed_over_count"]) == (2, 3)
    assert record["arrived_number"] == 0, "report 1 did not arrive"


def test_reported_until_waits_for_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter_module, "TALLIES_PER_REPORT_MAX", 2)
    bench = Bench()
    for hour in range(5):
        bench.publish(1, time_ms=hour * BUCKET_MS)
    bench.now_ms = 2_000_000
    bench.producer.broken = lambda n: n == 2
    with pytest.raises(ReportError):
        bench.reporter.report()
    bench.reporter.report()
    records = bench.producer.records
    assert [len(record["tallies"]) for record in records] == [2, 2, 1], "no arrived tally is reported again"
    assert [ms(record["reported_until"]) for record in records] == [1_000_000, 1_000_000, 2_000_000]


def test_a_clock_that_was_set_back_does_not_lower_reported_until() -> None:
    bench = Bench()
    bench.now_ms = 2_000_000
    bench.reporter.report()
    bench.now_ms = 1_500_000
    bench.reporter.report()
    assert [ms(record["reported_until"]) for record in bench.producer.records] == [2_000_000, 2_000_000]


def test_the_last_report() -> None:
    bench = Bench()
    bench.publish(2)
    bench.reporter.close()
    (record,) = bench.producer.records
    assert record["state"] == "CLOSED" and record["tallies"][0]["final"] is True


def test_what_waited_while_the_process_was_paused_is_numbered_in_its_own_tally() -> None:
    """Where the reports' thread was the first to run again, the tally was final, and its events counted as
    dropped before they had a number; then they got numbers, of a tally that had been handed nothing.
    """
    bench = Bench(interval_s=10)
    bench.publish(5)
    bench.reporter.report()
    bench.now_s += 800  # SIGSTOP, SIGCONT
    bench.reporter.report()
    bench.reporter.batch_closed(BatchIdentity("t", 1, 7, 0, 100, 5, 5, 9))
    for _ in range(20):
        bench.now_s += 10
        bench.reporter.report()
    tallies = [each for record in bench.producer.records for each in record["tallies"]]
    assert {each["part"] for each in tallies} == {1}
    assert [each["handed_over_count"] for each in tallies] == [5, 5, 5]
    assert [each["final"] for each in tallies] == [False, False, True]


def test_idle_tallies_become_final_and_are_reported_once() -> None:
    bench = Bench()
    bench.publish(1)
    bench.reporter.report()
    bench.now_s = 101
    bench.reporter.report()
    bench.reporter.report()
    assert [[tally["final"] for tally in record["tallies"]] for record in bench.producer.records] == [
        [False],
        [True],
        [],
    ]


def test_the_thread_reports_at_once_and_survives_failures(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.producer.broken = lambda n: n <= 2
    bench.reporter._interval_s = 0.01
    bench.reporter.start()
    while bench.producer.sends < 5:
        bench.reporter._stopping.wait(0.01)
    bench.reporter.close()
    assert bench.producer.records[0]["report_number"] == 3
    assert bench.producer.records[-1]["state"] == "CLOSED"
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and "the next report repeats it" in warnings[0].message


def test_the_thread_survives_an_error_over_a_dead_publishers_journal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    asked: list[UUID] = []

    def adopt(audit_topic_id: UUID) -> None:
        asked.append(audit_topic_id)
        raise PermissionError(13, "Permission denied", "/state/dead.journal")

    bench.reporter._at_start = adopt
    bench.reporter._interval_s = 0.01
    bench.reporter.start()
    deadline = time.monotonic() + 10
    while bench.producer.sends < 3 and time.monotonic() < deadline:
        bench.reporter._stopping.wait(0.01)
    assert bench.producer.sends >= 3
    bench.reporter.close()
    assert len(asked) == 1 and "/state/dead.journal" in caplog.text


def test_the_journal_is_told_of_cluster_and_reports_while_nobody_else_writes_it() -> None:
    """Else what `compact` takes the place of may be written: the new file then names no cluster."""
    bench = Bench()
    told: list[tuple[str, bool]] = []

    class Journal(NoJournal):
        def belongs_to(self, _audit_topic_id: UUID) -> None:
            told.append(("cluster", bench.reporter._lock.locked()))

        def begin_report(self, _report_number: int) -> None:
            told.append(("report", bench.reporter._lock.locked()))

    bench.reporter._journal = Journal()
    bench.reporter._at_start = lambda _: bench.reporter._stopping.set()
    bench.reporter.start()
    bench.reporter._thread.join(10)
    assert told == [("report", True), ("cluster", True)]


def tally(part: int, ranges: int) -> PartTally:
    return PartTally(part, "t", 0, 0, False, tuple(SequenceRange(0, 1, 0, i, i) for i in range(ranges)), 1)


def test_pieces_are_bounded_and_complete() -> None:
    tallies = [tally(part, 400) for part in range(100)]
    pieces = list(split(tallies))
    assert [each for piece in pieces for each in piece] == tallies
    assert all(
        sum(len(each.ranges) for each in piece) <= reporter_module.RANGES_PER_REPORT_MAX for piece in pieces
    )
    assert len(pieces) == 4
    assert list(split([])) == [[]]
