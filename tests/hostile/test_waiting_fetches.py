"""Clients that send fetches which wait, and more of them, and go: what they cost ends with them."""

from __future__ import annotations

import gc
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fix_partitions import TOPIC, SomePartitions
from fix_transport import StartTransport, TransportServer, framed, reset
from headrace.broker.core import ClientConnection, Slot
from headrace.broker.handlers.fetch import FetchWait
from headrace.broker.loop import EventLoop
from headrace.broker.network.transport import Transport
from headrace.broker.service import BrokerService

WAITS = 500
ANSWER_BYTES = 4 + 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 4 + 4
KINDS = (Transport, ClientConnection, FetchWait, Slot)


def waiting_fetch(correlation_id: int = 7) -> bytes:
    """A Fetch (version 4) for more bytes than there will be, within five minutes."""
    head = struct.pack(">hhih", 1, 4, correlation_id, -1)
    body = struct.pack(">iiiibih", -1, 300_000, 2**31 - 1, 2**31 - 1, 0, 1, len(TOPIC)) + TOPIC.encode()
    return framed(head + body + struct.pack(">iiqi", 1, 0, 0, 1 << 20))


MANY = waiting_fetch() * WAITS


@pytest.fixture
def site(
    tmp_path: Path, transport_server: StartTransport
) -> Iterator[tuple[TransportServer, SomePartitions]]:
    made: list[SomePartitions] = []

    def service(loop: EventLoop) -> BrokerService:
        made.append(SomePartitions(tmp_path, loop))
        return BrokerService(made[0].state, cast(Any, None))

    server = transport_server(service=service)
    yield server, made[0]
    made[0].close()


Site = tuple[TransportServer, SomePartitions]


def alive() -> Counter[str]:
    """Counts what connections are made of, as long as nobody collects garbage."""
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS))


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def closes(client: socket.socket) -> None:
    client.close()


def resets(client: socket.socket) -> None:
    reset(client)


def sends_garbage(client: socket.socket) -> None:
    client.send(framed(b"\x7f\x7f\x00\x00 an API that does not exist"))
    client.close()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", [closes, resets, sends_garbage])
@pytest.mark.parametrize("data", [b"", waiting_fetch(), MANY], ids=["nothing", "one", "many"])
def test_a_connection_that_ends_gives_everything_back_without_the_collector(
    site: Site, data: bytes, end: Callable[[socket.socket], None]
) -> None:
    server, partitions = site
    before = alive()
    for _ in range(5):
        client = server.connect()
        server.send(client, data)
        server.settle()
        end(client)
        server.turn_until(lambda: not server.connections.by_fd, "the connection ends")
    assert alive() == before
    assert not partitions.all[0].readers
    bound = server.connections.bound
    assert (bound.reserved_bytes, bound.has_room(bound.max_bytes // 2)) == (0, True)


def test_one_fetch_of_a_connection_waits_and_the_others_are_not_served(site: Site) -> None:
    server, partitions = site
    clients = [server.connect() for _ in range(3)]
    for client in clients:
        client.send(MANY)
    server.settle()
    assert len(partitions.all[0].readers) == len(clients)
    assert all(len(each.core.slots) == 1 for each in transports(server))
    assert server.connections.bound.reserved_bytes > 0, "what waits to be served counts as memory"


def test_whoever_sends_without_end_is_not_read_while_a_fetch_waits(site: Site) -> None:
    server, partitions = site
    client = server.connect()
    for _ in range(200):
        server.send_what_fits(client, MANY)
    assert len(partitions.all[0].readers) == 1
    assert server.connections.bound.reserved_bytes <= 64 * 1024


def transports(server: TransportServer) -> list[Any]:
    return list(server.connections.by_fd.values())


def test_a_client_that_is_gone_is_noticed_after_few_of_its_fetches(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    begin = FetchWait.__init__

    def counted(*arguments: Any) -> None:
        made.append(1)
        begin(*arguments)

    monkeypatch.setattr(FetchWait, "__init__", counted)
    server, _ = site
    client = server.connect()
    client.send(MANY)
    client.close()
    server.turn_until(lambda: not server.connections.by_fd, "the connection ends")
    assert len(made) <= 5, "the rest of 500 is not served for nobody"


def test_a_client_that_sends_no_more_gets_all_answers_at_once(site: Site) -> None:
    """More fetches than a connection has in flight: those behind them waited for five minutes."""
    server, _ = site
    client = server.connect()
    server.send(client, b"".join(waiting_fetch(number) for number in range(WAITS)))
    client.shutdown(socket.SHUT_WR)
    answers = server.read(client, WAITS * ANSWER_BYTES)
    sizes = [struct.unpack_from(">i", answers, at)[0] for at in range(0, len(answers), ANSWER_BYTES)]
    numbers = [struct.unpack_from(">i", answers, at + 4)[0] for at in range(0, len(answers), ANSWER_BYTES)]
    assert set(sizes) == {ANSWER_BYTES - 4}
    assert numbers == list(range(WAITS))


def test_what_follows_a_waiting_fetch_is_answered_after_it(site: Site) -> None:
    server, partitions = site
    client = server.connect()
    refused = struct.pack(">hhih", 18, 99, 8, -1)  # ApiVersions in a version that does not exist
    waits = waiting_fetch().replace(struct.pack(">i", 2**31 - 1), struct.pack(">i", 1), 1)
    server.send(client, waits + framed(refused))
    server.settle()
    (transport,) = transports(server)
    assert len(transport.core.slots) == 1
    size = partitions.append(0)
    answers = server.read(client, ANSWER_BYTES + size + 8)
    assert struct.unpack_from(">ii", answers) == (ANSWER_BYTES - 4 + size, 7)
    assert struct.unpack_from(">i", answers, ANSWER_BYTES + size + 4) == (8,)


@pytest.mark.parametrize("api_key", [1, 3, 18, 999])
@pytest.mark.parametrize("first", [4, 5, 6, 100])
def test_a_large_request_is_refused_by_its_first_bytes(
    site: Site, caplog: pytest.LogCaptureFixture, api_key: int, first: int
) -> None:
    caplog.set_level("INFO")
    server, _ = site
    client = server.connect()
    data = struct.pack(">ihhih", 5_000_000, api_key, 4, 7, -1) + bytes(100)
    client.send(data[:first])
    server.settle()
    if first < 6:
        assert not server.is_cut_off(client), "its API is not known yet"
        client.send(data[first:6])
    server.turn_until(lambda: server.is_cut_off(client), "it is cut off")
    line = f"a request of 5000000 bytes for API {api_key}, refused before it was received"
    assert line in caplog.text and "only Produce (API 0) may have more than 4194304 bytes" in caplog.text


def test_a_large_produce_request_is_received(site: Site) -> None:
    server, _ = site
    client = server.connect()
    client.send(struct.pack(">ihhih", 5_000_000, 0, 3, 7, -1) + bytes(100))
    server.settle()
    assert not server.is_cut_off(client)
    assert len(server.connections.bound.partials) == 1
