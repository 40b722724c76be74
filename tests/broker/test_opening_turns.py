"""Batches that are opened on threads: hosts take turns, and the one that has much waiting gives way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from fix_partitions import TOPIC, SomePartitions
from headrace.broker.core import ClientConnection
from headrace.broker.errors import Refused
from headrace.broker.loop import EventLoop
from headrace.broker.produce import handler, opening, opening_threads
from headrace.broker.produce.opening_threads import Found, OpeningThreads, Unopened
from headrace.broker.settings.config import BrokerConfig
from headrace.wire import produce
from headrace.wire.batch import BatchHeader, read_header
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

CONFIG = BrokerConfig().topic_config({})
LARGE_BYTES: Final = 2 * 1024 * 1024  # unpacked: more than the loop opens itself
MANY: Final = 40


@pytest.fixture
def threads(loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpeningThreads]:
    monkeypatch.setattr(opening_threads, "TURN_S", 0.0)
    made = OpeningThreads(loop.post)
    yield made
    made.stop()


def large(time_ms: int) -> bytes:
    return encode_batch([Record(0, time_ms, None, bytes(LARGE_BYTES))], codec=Codec.ZSTD)


def unopened(count: int = 1) -> list[Unopened]:
    batch = memoryview(bytearray(large(int(time.time() * 1000))))
    return [Unopened(place, batch, read_header(batch), CONFIG) for place in range(count)]


def wait_for(loop: EventLoop, condition: Callable[[], Any]) -> None:
    while not condition():
        loop.turn(1.0)


def send(site: SomePartitions, peer: str, batches: list[bytes]) -> ClientConnection:
    """Has a Produce request of that client handled."""
    connection = ClientConnection(
        cast(Any, None),
        peer=peer,
        frame_limit_bytes=1 << 20,
        on_output=lambda _: None,
        on_abort=lambda problem: pytest.fail(problem),
    )
    parts = [produce.ProducePartition(0, batch) for batch in batches]
    body = produce.ProduceRequest(None, 1, 30_000, [produce.ProduceTopic(TOPIC, NO_UUID, parts)])
    frame = bytearray(produce.encode_request(body, version=9, correlation_id=9, client_id="c")[4:])
    handler.handle(site.state, connection, decode_request(memoryview(frame)), may_keep=True)
    return connection


def test_a_request_of_many_batches_delays_another_host_by_one_turn(
    tmp_path: Path, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_threads, "TURN_S", 0.0)
    opened: list[int] = []
    real = opening.unpack

    def unpack(batch: memoryview, header: BatchHeader, limit_bytes: int) -> memoryview:
        opened.append(header.base_timestamp_ms)
        return real(batch, header, limit_bytes)

    monkeypatch.setattr(opening, "unpack", unpack)
    site = SomePartitions(tmp_path, loop)
    now_ms = int(time.time() * 1000)
    for port in range(opening_threads.THREADS):
        assert send(site, f"192.0.2.1:{port}", [large(now_ms)] * MANY).is_held
    other = send(site, "192.0.2.2:1", [large(now_ms + 1)])
    wait_for(loop, lambda: not other.is_held)
    assert opened.index(now_ms + 1) <= 2 * opening_threads.THREADS
    wait_for(loop, lambda: not site.state.checks.unfinished)
    assert len(opened) == opening_threads.THREADS * MANY + 1
    site.state.partitions.commit()
    site.state.checks.stop()
    site.close()


def test_the_host_that_has_most_gives_way(
    loop: EventLoop, threads: OpeningThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = unopened(MANY)
    monkeypatch.setattr(opening_threads, "UNFINISHED_MAX_BYTES", 3 * sum(len(each.batch) for each in many))
    done: dict[str, Found] = {}

    def begin(client: str, batches: list[Unopened]) -> bool:
        return threads.open(
            client, batches, batches[0].header.base_timestamp_ms, lambda found: done.update({client: found})
        )

    assert all(begin(f"192.0.2.1:{port}", many) for port in (1, 2, 3))
    assert not begin("192.0.2.1:4", unopened()), "its own host has most"
    assert begin("192.0.2.2:1", unopened())
    assert not done, "no answer is made while another request is handled"
    wait_for(loop, lambda: len(done) == 4)
    refused = set(done["192.0.2.1:3"].values())
    assert [each.code for each in refused if isinstance(each, Refused)] == [ErrorCode.LEADER_NOT_AVAILABLE]
    for client, count in (("192.0.2.1:1", MANY), ("192.0.2.1:2", MANY), ("192.0.2.2:1", 1)):
        assert len(done[client]) == count
        assert not any(isinstance(each, Refused) for each in done[client].values())
    assert threads.open("192.0.2.1:5", many, 0, lambda _: None), "all of it is free again"


def test_a_broker_that_stops_refuses_what_is_left(loop: EventLoop, threads: OpeningThreads) -> None:
    done: list[Found] = []
    for port in range(opening_threads.THREADS + 1):
        assert threads.open(f"192.0.2.1:{port}", unopened(MANY), int(time.time() * 1000), done.append)
    threads.stop()
    wait_for(loop, lambda: len(done) == opening_threads.THREADS + 1)
    assert not threads.unfinished
    refused = [each for found in done for each in found.values() if isinstance(each, Refused)]
    assert len(refused) == (opening_threads.THREADS + 1) * MANY - opening_threads.THREADS
    assert {each.code for each in refused} == {ErrorCode.LEADER_NOT_AVAILABLE}
