"""Counts that are POSTed to an auditor: what is refused, in one line, and what goes to `_audit`."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastavro
import pytest

from headrace.audit.counting.http_counts import CountsDesk, CountsRecord, CountsReport, parse, part_of
from headrace.audit.topic.decoding import _plain
from headrace.audit.topic.possible import COUNT_MAX
from headrace.audit.topic.publish import FLUSH_TIMEOUT_S, AuditPublishError, UnpublishableRecordError
from headrace.audit.topic.records import AuditRecord, ProducerReport, ReceivedRecord
from headrace.audit.topic.validity import check
from headrace.events.schemas import AUDIT_PRODUCER_SCHEMA, read_schema
from headrace.process import status
from headrace.process.status import BODY_MAX_BYTES, Answer, StatusServer

NOW_MS = 1_795_312_865_914
PUBLISHER = "7f0c2a52-5a39-4b1c-9d4e-0a7e5f6f3b11"
TALLY = {"topic": "order-placed", "bucket_start_ms": 1_795_312_800_000, "handed_over_count": 120}
REPORT: dict[str, Any] = {
    "publisher": PUBLISHER,
    "service": "checkout",
    "server": "co3.east",
    "started_ms": NOW_MS - 60_000,
    "report_number": 3,
    "reported_until_ms": NOW_MS,
    "tallies": [TALLY],
}


class FakePublisher:
    """Keeps what is published; `problem` is raised instead."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.records: list[tuple[AuditRecord, str | None, str | None]] = []
        self.flushed = 0
        self.closed = False

    def publish(self, record: AuditRecord, *, service: str | None = None, server: str | None = None) -> None:
        if self.problem is not None:
            raise self.problem
        self.records.append((record, service, server))

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed = True


def body_of(**changed: Any) -> bytes:
    return json.dumps({**REPORT, **changed}).encode()


def tally_of(**changed: Any) -> list[dict[str, Any]]:
    return [{**TALLY, **changed}]


def desk_on(publisher: FakePublisher) -> CountsDesk:
    return CountsDesk("east", publisher, clock_ms=lambda: NOW_MS)


def test_a_report_becomes_the_record_that_an_event_publisher_writes() -> None:
    publisher = FakePublisher()
    desk = desk_on(publisher)
    answer = desk.take(body_of(closed=True, tallies=tally_of(final=True)))
    assert answer == Answer(200, {"publisher": PUBLISHER, "report_number": 3})
    ((record, service, server),) = publisher.records
    assert (service, server, publisher.flushed, desk.taken_count) == ("checkout", "co3.east", 1, 1)
    assert (record.schema_file, record.key()) == (AUDIT_PRODUCER_SCHEMA, PUBLISHER)

    schema = fastavro.parse_schema(_plain(json.loads(read_schema(AUDIT_PRODUCER_SCHEMA))))
    written = fastavro.parse_schema(json.loads(read_schema(AUDIT_PRODUCER_SCHEMA)))
    header = {"time": NOW_MS, "datacenter": "east", "server": server, "service": service, "guid": "x"}
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, written, {"header": header, **record.to_avro()})
    buffer.seek(0)
    data: Any = fastavro.schemaless_reader(buffer, schema, None)
    read = ProducerReport.from_avro(data)
    assert read.counts_only and read.closed
    assert (read.publisher, read.started_ms, read.report_number) == (PUBLISHER, NOW_MS - 60_000, 3)
    ((part, *tally),) = read.tallies
    assert tally == ["order-placed", 1_795_312_800_000, 120, True, (), ()]
    assert 0 <= part < COUNT_MAX
    check(ReceivedRecord(read, "east", "checkout", "co3.east", NOW_MS), NOW_MS)


def test_the_same_topic_and_bucket_replace_each_other() -> None:
    one, two = (parse(body_of(tallies=tally_of(handed_over_count=count))).tallies[0] for count in (1, 2))
    assert part_of(one) == part_of(two)
    other = parse(body_of(tallies=tally_of(topic="order-paid"))).tallies[0]
    later = parse(body_of(tallies=tally_of(bucket_start_ms=1_795_313_400_000))).tallies[0]
    assert len({part_of(one), part_of(other), part_of(later)}) == 3


def test_a_report_without_tallies_says_that_the_publisher_lives() -> None:
    assert parse(body_of(tallies=[])) == CountsReport.model_validate({**REPORT, "tallies": []})
    assert CountsRecord(parse(body_of(tallies=[]))).to_avro()["state"] == "OPEN"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not JSON: byte 0 is not UTF-8"),
        (b'{"publisher": 1, "publisher": 1}', "has the attribute 'publisher' twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b"7", "the body: Input should be a valid dictionary"),
        (b"{}", "publisher: Field required"),
        (body_of(publisher="checkout"), "publisher: Value error, 'checkout' is not a UUID"),
        (body_of(service=""), "service: String should have at least 1 character"),
        (body_of(service="a\nb"), "service: Value error, 'a\\nb' has characters that cannot be printed"),
        (body_of(server="s" * 256), "server: String should have at most 255 characters"),
        (body_of(started_ms=NOW_MS // 1000), "started_ms: Value error, 1795312865 is not a time in milli"),
        (body_of(started_ms=str(NOW_MS)), "started_ms: Input should be a valid integer"),
        (body_of(report_number=0), "report_number: Input should be greater than or equal to 1"),
        (body_of(report_number=True), "report_number: Input should be a valid integer"),
        (body_of(report_number=10**300), "report_number: Input should be less than or equal to"),
        (body_of(closed="yes"), "closed: Input should be a valid boolean"),
        (body_of(**{"cl\nosed": 1}), "'cl\\nosed': Extra inputs are not permitted"),
        (body_of(tallies=None), "tallies: Input should be a valid list"),
        (body_of(tallies=[{}]), "tallies.0.topic: Field required"),
        (
            body_of(tallies=tally_of(topic="a b")),
            "tallies.0.topic: Value error, no topic can have the name 'a b'",
        ),
        (body_of(tallies=tally_of(topic="..")), "no topic can have the name '..'"),
        (body_of(tallies=tally_of(bucket_start_ms=NOW_MS)), "is not a multiple of 600000 ms"),
        (body_of(tallies=tally_of(handed_over_count=-1)), "tallies.0.handed_over_count: Input should be gr"),
        (body_of(tallies=tally_of(handed_over_count=1.5)), "handed_over_count: Input should be a valid int"),
        (body_of(tallies=tally_of(handed_over_count=COUNT_MAX + 1)), "handed_over_count: Input should be l"),
        (body_of(tallies=tally_of(ranges=[])), "tallies.0.ranges: Extra inputs are not permitted"),
        (body_of(tallies=tally_of() * 2), "order-placed at 1795312800000 is in the report twice"),
        (body_of(tallies=tally_of() * 2_001), "tallies: List should have at most 2000 items"),
    ],
)
def test_a_report_that_cannot_be_meant_is_refused_in_one_line(body: bytes, problem: str) -> None:
    publisher = FakePublisher()
    answer = desk_on(publisher).take(body)
    assert answer.status == 422
    assert problem in answer.body["error"]
    assert answer.body["error"].isprintable() and len(answer.body["error"]) < 400
    assert not publisher.records


def test_brokers_that_cannot_be_reached_are_not_the_clients_fault() -> None:
    publisher = FakePublisher()
    publisher.problem = AuditPublishError("could not publish to _audit: no broker")
    answer = desk_on(publisher).take(body_of())
    assert answer.status == 503
    assert answer.body == {"error": "could not publish to _audit: no broker; send the report again later"}
    publisher.problem = UnpublishableRecordError("too large")
    assert desk_on(publisher).take(body_of()).status == 422
    desk_on(publisher).close()
    assert publisher.closed


# --- over HTTP ---


@pytest.fixture
def server() -> Iterator[StatusServer]:
    desk = desk_on(FakePublisher())
    running = StatusServer("127.0.0.1:0", lambda: {"taken": desk.taken_count}, posts={"/counts": desk.take})
    yield running
    running.close()


def asked(
    server: StatusServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.address, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): headers[name] for name in headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_counts_arrive_over_http(server: StatusServer) -> None:
    code, answer = asked(server, "POST", "/counts", body_of())
    assert (code, json.loads(answer)["report_number"]) == (200, 3)
    assert json.loads(asked(server, "GET", "/status")[1]) == {"taken": 1}
    assert asked(server, "POST", "/counts", b"{}")[0] == 422


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/status", {}, 404),
        ("/counts", {"Content_Length": "many"}, 411),
        ("/counts", {"Content_Length": str(BODY_MAX_BYTES + 1)}, 413),
        ("/counts", {"Content_Length": "9" * 50}, 411),
        ("/counts", {"Transfer_Encoding": "chunked"}, 411),
    ],
)
def test_bodies_are_bounded(server: StatusServer, path: str, headers: dict[str, str], code: int) -> None:
    assert asked(server, "POST", path, None, **headers)[0] == code


def test_a_body_that_ends_early_is_not_taken(server: StatusServer) -> None:
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"POST /counts HTTP/1.0\r\nContent-Length: 100\r\n\r\n{}")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1000) == b""
    assert json.loads(asked(server, "GET", "/status")[1]) == {"taken": 0}


def test_connections_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(status, "REQUEST_MAX_S", 3.0)
    running = StatusServer("127.0.0.1:0", dict)
    host, _, port = running.address.partition(":")
    try:
        silent = [socket.create_connection((host, int(port)), timeout=60) for _ in range(2)]
        for each in silent:
            each.sendall(b"GET /status HT")
        assert asked(running, "GET", "/status") == (200, b"{}"), "in the place of the oldest"
        for each in silent:
            assert _received(each) == b"", "its place was taken, or its time is over"
            each.close()
        assert _status_soon(running) == (200, b"{}")
    finally:
        running.close()


def test_half_requests_without_end_keep_nobody_from_reporting(server: StatusServer) -> None:
    host, _, port = server.address.partition(":")
    halves = []
    try:
        for _ in range(3):
            for number in range(status.CONNECTIONS_MAX + 5):
                halves.append(socket.create_connection((host, int(port)), timeout=60))
                halves[-1].sendall((b"", b"POST /counts HTTP/1.0\r\nContent-Length: 9\r\n\r\n{")[number % 2])
            assert asked(server, "GET", "/status")[0] == 200
            assert asked(server, "POST", "/counts", b"{}")[0] == 422
    finally:
        for each in halves:
            each.close()


def test_a_request_that_is_being_answered_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "CONNECTIONS_MAX", 2)
    began, ends = threading.Semaphore(0), threading.Event()

    def slow(body: bytes) -> status.Answer:
        began.release()
        ends.wait(60)
        return status.Answer(200, {"size": len(body)})

    running = StatusServer("127.0.0.1:0", dict, posts={"/slow": slow})
    try:
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(asked, running, "POST", "/slow", b"four") for _ in range(2)]
            for _ in answers:
                assert began.acquire(timeout=60)
            host, _, port = running.address.partition(":")
            with socket.create_connection((host, int(port)), timeout=60) as third:
                assert _received(third) == b"", "it is closed at once"
            ends.set()
            assert [json.loads(each.result()[1]) for each in answers] == [{"size": 4}] * 2
    finally:
        ends.set()
        running.close()


def _status_soon(server: StatusServer) -> tuple[int, bytes]:
    """Returns the status page once a connection is free."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return asked(server, "GET", "/status")
        except (http.client.HTTPException, ConnectionError):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1000)
    except ConnectionResetError:
        return b""
