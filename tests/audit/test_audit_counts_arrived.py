"""Reports by `POST /counts` name the last one that arrived: one that the audit's topic lost is missed."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from headrace.audit.counting import counts_arrived
from headrace.audit.counting.counts_arrived import NONE, CountsArrived, Named
from headrace.audit.counting.http_counts import CountsDesk
from headrace.audit.gathering.publishers import missing_reports
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.decoding import _plain
from headrace.audit.topic.publish import FLUSH_TIMEOUT_S, AuditPublishError
from headrace.audit.topic.records import AuditRecord, ProducerReport, ReceivedRecord
from headrace.audit.topic.validity import check
from headrace.events.schemas import AUDIT_PRODUCER_SCHEMA, read_schema

NOW_MS = 1_795_312_865_914
PUBLISHER = "7f0c2a52-5a39-4b1c-9d4e-0a7e5f6f3b11"


class Topic:
    """The audit's topic: what was written, as it is read. `loses`: these it has acknowledged and lost."""

    def __init__(self) -> None:
        self.read: list[ReceivedRecord] = []
        self.now_ms = NOW_MS
        self.problem: Exception | None = None
        self.loses: set[int] = set()
        self.desk = CountsDesk("east", self, clock_ms=lambda: self.now_ms)

    def publish(self, record: AuditRecord, *, service: str | None = None, server: str | None = None) -> None:
        written = fastavro.parse_schema(json.loads(read_schema(AUDIT_PRODUCER_SCHEMA)))
        read = fastavro.parse_schema(_plain(json.loads(read_schema(AUDIT_PRODUCER_SCHEMA))))
        header = {"time": self.now_ms, "datacenter": "east", "server": "s", "service": "x", "guid": "x"}
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, written, {"header": header, **record.to_avro()})
        buffer.seek(0)
        data: Any = fastavro.schemaless_reader(buffer, read, None)
        made = ProducerReport.from_avro(data)
        received = ReceivedRecord(made, "east", service or "", server or "", self.now_ms)
        check(received, self.now_ms)
        if made.report_number not in self.loses:
            self.read.append(received)

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        if self.problem is not None:
            raise self.problem

    def close(self) -> None:
        """Does nothing."""

    def restart(self) -> None:
        self.desk = CountsDesk("east", self, clock_ms=lambda: self.now_ms)

    def post(self, number: int, publisher: str = PUBLISHER, **more: int) -> int:
        self.now_ms += 10_000
        body = {
            "publisher": publisher,
            "service": "checkout",
            "server": "co3.east",
            "started_ms": NOW_MS,
            "report_number": number,
            "reported_until_ms": self.now_ms,
            "tallies": [
                {"topic": "order-placed", "bucket_start_ms": 1_795_312_800_000, "handed_over_count": number}
            ],
            **more,
        }
        answer = self.desk.take(json.dumps(body).encode())
        self.error = answer.body.get("error", "")
        return answer.status

    def named(self) -> list[tuple[int, int, int | None]]:
        """Returns (number, the number that it names, seconds from the first moment to that one's time)."""
        reports = [each.record for each in self.read]
        assert all(isinstance(each, ProducerReport) for each in reports)
        return [
            (
                each.report_number,
                each.arrived_number,
                None if each.arrived_made_ms is None else (each.arrived_made_ms - NOW_MS) // 1_000,
            )
            for each in reports
            if isinstance(each, ProducerReport)
        ]

    def missing(self) -> list[int]:
        store = AuditStore("sqlite://")
        store.fold(self.read)
        with store.reading() as connection:
            found = missing_reports(connection, "order-placed", "east")
        store.close()
        return [each.report_number for each in found]


def test_each_report_names_the_one_before_it_that_arrived_and_a_lost_one_is_missed() -> None:
    topic = Topic()
    assert [topic.post(number) for number in (1, 2, 5)] == [200, 200, 200]
    assert topic.named() == [(1, 0, None), (2, 1, 10), (5, 2, 20)]
    assert topic.missing() == []
    topic.loses = {6}
    assert [topic.post(number) for number in (6, 7)] == [200, 200]
    assert topic.missing() == [6]


def test_a_report_that_was_not_written_is_not_named() -> None:
    topic = Topic()
    topic.post(1)
    topic.problem, topic.loses = AuditPublishError("no broker"), {2}
    assert topic.post(2) == 503
    topic.problem = None
    assert topic.post(3) == 200
    assert topic.named()[-1] == (3, 1, 10)


def test_a_report_whose_answer_was_lost_is_sent_again_and_names_the_same_one() -> None:
    topic = Topic()
    for number in (1, 2, 2, 3):
        assert topic.post(number) == 200
    assert topic.named() == [(1, 0, None), (2, 1, 10), (2, 1, 10), (3, 2, 30)]
    assert topic.post(1) == 200
    assert topic.named()[-1] == (1, 0, None)
    assert topic.post(4) == 200
    assert topic.named()[-1] == (4, 3, 40), "an old one does not take the place of a later one"


def test_after_a_restart_of_the_auditor_the_publisher_itself_tells() -> None:
    topic = Topic()
    topic.loses = {2}
    topic.post(1)
    topic.post(2)
    topic.restart()
    assert topic.post(3) == 200
    assert topic.missing() == [], "this one does not say what it knows"
    topic.restart()
    assert topic.post(4, arrived_number=2) == 200
    assert topic.named()[-1] == (4, 2, None)
    topic = Topic()
    topic.loses = {2}
    topic.post(1)
    topic.post(2)
    topic.restart()
    assert topic.post(3, arrived_number=2) == 200
    assert topic.missing() == [2]


def test_of_two_numbers_the_later_one_is_named() -> None:
    topic = Topic()
    topic.post(1)
    topic.post(4, arrived_number=1)
    topic.post(5, arrived_number=1)
    assert topic.named()[-1] == (5, 4, 20), "the answer to 4 was lost on its way"
    topic.post(9, arrived_number=7)
    assert topic.named()[-1] == (9, 7, None), "another auditor wrote 7"


@pytest.mark.parametrize("arrived", [3, 4])
def test_a_number_that_cannot_have_arrived_is_refused(arrived: int) -> None:
    topic = Topic()
    assert topic.post(3, arrived_number=arrived) == 422
    assert topic.error == (
        f"arrived_number: {arrived} is not below report_number, which is 3; name the last report before "
        "this one that was answered with 200, or 0"
    )
    assert topic.post(3, arrived_number=-1) == 422
    assert topic.read == []


def test_what_is_remembered_is_bounded_and_the_silent_ones_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_arrived, "PUBLISHERS_MAX", 2)
    known = CountsArrived()
    for publisher, number in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        known.note(publisher, Named(number, number), NONE)
    assert known.before("a", 9) == (2, 2)
    assert known.before("b", 9) == NONE
    assert known.before("c", 9) == (1, 1)
    assert len(known._known) == 2
