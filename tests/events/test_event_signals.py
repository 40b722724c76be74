"""Publishers under signals whose handlers raise: what is counted is what is sent, and reports go on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fix_client import StartCluster
from fix_reports import FakeProducer, FakeRegistry, FakeSent
from fix_signals import Interrupt, SignalError
from headrace.client import DeliveryFuture
from headrace.events import EventPublisher, InvalidEventError, ReportError
from headrace.events.header import Origin
from headrace.events.journal_replay import replay
from headrace.events.publisher import PUBLISHED_NOTE
from headrace.events.reporter import Reporter
from headrace.events.schemas import read_schema
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.serializers import AvroSerializer

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SIGNALS = 150
WAIT_S = 60.0
NOON_MS = 1_431_864_000_000
VIEW = {
    "remote_host": "192.0.2.7", "method": "GET", "path": "/", "protocol": "HTTP/1.1", "status": 200,
    "bytes": 5,
}  # fmt: skip


@contextmanager
def in_codec() -> Iterator[None]:
    """Whatever is raised while Avro is written is reported as an error of that."""
    try:
        yield
    except (InvalidEventError, ReportError):
        raise SignalError from None


def reporter(producer: FakeProducer) -> Reporter:
    return Reporter(
        producer,  # type: ignore[arg-type]
        AvroSerializer(FakeRegistry(), json.dumps(json.loads(read_schema("audit-producer.avsc")))),  # type: ignore[arg-type]
        Origin("east", "host", "web"),
        topic="_audit",
        bucket_ms=600_000,
        interval_s=3600,
        idle_final_s=100,
    )


@pytest.fixture
def publisher(
    fake_cluster: StartCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EventPublisher]:
    monkeypatch.setattr(SchemaRegistryClient, "register", lambda *_: 1)
    made = EventPublisher(
        datacenter="east",
        service="web",
        server="host-1",
        bootstrap=fake_cluster().bootstrap,
        registry_url="http://127.0.0.1:1",
        schemas={"t": read_schema("page-view.avsc")},
        state_dir=tmp_path,
        report_interval_s=3600.0,
        producer_options={"compression": "none"},
    )
    yield made
    made.close()


def counted(publisher: EventPublisher) -> tuple[int, int]:
    """How many events the publisher counts, and how many have numbers."""
    states = publisher._reporter._counts.states()
    numbered = sum(each.event_count for state in states for each in state.ranges)
    return sum(state.handed_over_count for state in states), numbered


def test_what_is_counted_is_what_is_sent(publisher: EventPublisher, interrupted: Interrupt) -> None:
    publisher.publish("t", VIEW, time_ms=NOON_MS).result(WAIT_S)
    futures: list[DeliveryFuture] = []

    def publish() -> None:
        with in_codec():
            futures.append(publisher.publish("t", VIEW, time_ms=NOON_MS))

    assert publisher._journal is not None
    path = publisher._journal.path
    for _ in range(SIGNALS):
        interrupted(publish)
        publisher._producer.flush(WAIT_S)
        handed, numbered = counted(publisher)
        assert handed == numbered
        dead = replay(path, path.read_bytes())
        assert sum(state.handed_over_count for state in dead.counts.states()) == handed
    assert len(futures) < numbered <= len(futures) + 1 + SIGNALS


def test_a_handler_may_raise_the_same_object_each_time(
    publisher: EventPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier call noted in it is not true of the next event, which stayed counted."""
    same = SignalError()
    accumulator = publisher._producer._accumulator
    wake = accumulator._wake

    def interrupted_once() -> None:
        monkeypatch.setattr(accumulator, "_wake", wake)
        raise same

    publisher.publish("t", VIEW, time_ms=NOON_MS).result(WAIT_S)
    monkeypatch.setattr(accumulator, "_wake", interrupted_once)
    with pytest.raises(SignalError) as taken:
        while True:  # until it finds the sender asleep
            publisher.publish("t", VIEW, time_ms=NOON_MS).result(WAIT_S)
    assert taken.value.__notes__ == [PUBLISHED_NOTE]

    def send(*_: object, **__: object) -> DeliveryFuture:
        raise same

    with monkeypatch.context() as patch:
        patch.setattr(publisher._producer, "send", send)
        with pytest.raises(SignalError) as refused:
            publisher.publish("t", VIEW, time_ms=NOON_MS)
    assert refused.value.__notes__ == []
    publisher._producer.flush(WAIT_S)
    handed, numbered = counted(publisher)
    assert handed == numbered


def test_a_report_that_was_interrupted_keeps_no_other_waiting(interrupted: Interrupt) -> None:
    reports = reporter(FakeProducer())

    def report() -> None:
        with in_codec():
            reports.report(timeout_s=5.0)

    for _ in range(SIGNALS):
        interrupted(report)
        reports.report(timeout_s=5.0)


class Interrupted(FakeProducer):
    """A signal's handler raises while a report is awaited, the first time."""

    def send(self, topic: str, value: bytes, *, key: bytes, timestamp_ms: int) -> FakeSent:
        sent = super().send(topic, value, key=key, timestamp_ms=timestamp_ms)
        return FakeSent(SignalError()) if self.sends == 1 else sent


def test_a_close_that_was_interrupted_goes_on_when_it_is_called_again(
    publisher: EventPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish("t", VIEW, time_ms=NOON_MS)
    publisher.flush(WAIT_S)
    sent: list[Any] = []
    real = Reporter.report

    def report(self: Reporter, *, closing: bool = False, timeout_s: float = 30.0) -> None:
        sent.append(closing)
        if len(sent) == 1:
            raise SignalError
        real(self, closing=closing, timeout_s=timeout_s)

    monkeypatch.setattr(Reporter, "report", report)
    with pytest.raises(SignalError):
        publisher.close()
    assert publisher._journal is not None and publisher._journal.path.exists()
    publisher.close()
    publisher.close()
    assert sent == [True, True] and not publisher._journal.path.exists()


def test_what_a_handler_raises_in_a_report_is_raised() -> None:
    with pytest.raises(SignalError):
        reporter(Interrupted()).report()


def test_a_reporter_s_close_holds_nothing_up_after_it(interrupted: Interrupt) -> None:

    def close() -> None:
        with in_codec():
            reports.close(5.0)

    for _ in range(SIGNALS):
        reports = reporter(FakeProducer())
        reports.start()
        interrupted(close)
        again = threading.Thread(target=reports.close, args=(5.0,), daemon=True)
        again.start()
        again.join(WAIT_S)
        assert not again.is_alive()
