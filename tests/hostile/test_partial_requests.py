"""Requests that begin and do not end: their memory, what they keep from others, and their deadline."""

from __future__ import annotations

import itertools
import random
import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from fix_transport import StartTransport, TransportServer, framed, is_readable, reset
from headrace.broker.network import connections

MEBIBYTE = 1 << 20
HEAD = b"12345678"


def announced(size: int, arrived: bytes = b"\0") -> bytes:
    return size.to_bytes(4, "big") + arrived


def request(size: int) -> bytes:
    return framed(HEAD.ljust(size, b"."))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def assert_nothing_is_left(server: TransportServer) -> None:
    bound = server.connections.bound
    assert bound.reserved_bytes == 0
    assert not bound.partials and not bound.starved
    assert server.connections.admission.open_count == 0
    assert not server.connections.by_fd and not server.connections.with_output
    assert server.connections.unsent_bytes == 0 and not server.connections.blocked


def test_five_bytes_cost_no_hundred_megabytes(transport_server: StartTransport) -> None:
    server = transport_server()
    before = resident_bytes()
    for _ in range(30):
        server.connect().sendall(announced(100 * MEBIBYTE))
    server.settle()
    assert len(server.connections.bound.partials) == 30
    assert server.connections.bound.reserved_bytes < MEBIBYTE
    assert resident_bytes() - before < 50 * MEBIBYTE, "30 clients sent 150 bytes"


def test_announced_frames_keep_nothing_from_others(transport_server: StartTransport) -> None:
    server = transport_server()
    for _ in range(20):
        server.connect().sendall(announced(100 * MEBIBYTE))
    honest = server.connect()
    server.send(honest, request(2 * MEBIBYTE))
    assert server.read(honest, 8) == HEAD


def test_requests_that_exceed_the_bound_together_are_all_answered(transport_server: StartTransport) -> None:
    """Each had begun before any of them was complete: they wait for each other, but not in a circle."""
    server = transport_server(receiving_max_bytes=2 * MEBIBYTE)
    size = 3 * MEBIBYTE // 2
    clients = {server.connect(): request(size) for _ in range(4)}
    at = dict.fromkeys(clients, 0)
    for client, data in clients.items():
        at[client] = server.send_what_fits(client, data[: MEBIBYTE // 2])
    answered: set[socket.socket] = set()
    for _ in range(100_000):
        for client, data in clients.items():
            if at[client] < len(data):
                at[client] += server.send_what_fits(client, data[at[client] : at[client] + 100_000])
            elif client not in answered and not server.is_cut_off(client):
                server.turn()
                try:
                    answered.add(client) if client.recv(8) == HEAD else None
                except BlockingIOError:
                    continue
        if len(answered) == len(clients):
            break
    assert len(answered) == len(clients)
    assert server.connections.bound.reserved_bytes == 0


def test_the_bound_is_exceeded_by_one_frame_at_most(transport_server: StartTransport) -> None:
    bound_bytes = 4 * MEBIBYTE
    server = transport_server(receiving_max_bytes=bound_bytes)
    clients = [server.connect() for _ in range(12)]
    data = request(10 * MEBIBYTE)[:-1]
    for client in clients:
        server.send_what_fits(client, data[: 3 * MEBIBYTE])
    bound = server.connections.bound
    assert bound.starved, "the clients together exceed the bound"
    assert bound.reserved_bytes <= bound_bytes + 10 * MEBIBYTE
    others: list[Any] = list(bound.partials)[1:]
    assert sum(each.core.partial_bytes for each in others) <= bound_bytes + len(clients) * 64 * 1024


def full(server: TransportServer, count: int = 3) -> list[socket.socket]:
    """Clients that have filled the receive bound and stop half way."""
    clients = [server.connect() for _ in range(count)]
    for client in clients:
        server.send_what_fits(client, request(8 * MEBIBYTE)[: 3 * MEBIBYTE])
    assert server.connections.bound.is_full
    return clients


def test_a_starved_client_that_goes_is_seen(transport_server: StartTransport) -> None:
    """Its socket is not read, but its connection ends, and so does its share of the bound."""
    server = transport_server(receiving_max_bytes=2 * MEBIBYTE)
    stuck = full(server)
    starved = server.connect()
    starved.sendall(request(MEBIBYTE)[:100_000])
    server.turn_until(lambda: len(server.connections.bound.starved) >= 1)
    open_before = len(server.connections.by_fd)
    for client in (starved, *stuck):
        client.close()
    server.turn_until(lambda: not server.connections.by_fd, f"{open_before} connections end")
    assert_nothing_is_left(server)
    fresh = server.connect()
    server.send(fresh, request(MEBIBYTE))
    assert server.read(fresh, 8) == HEAD


def test_a_complete_request_of_a_starved_client_is_answered_after_its_end(
    transport_server: StartTransport,
) -> None:
    server = transport_server(receiving_max_bytes=2 * MEBIBYTE)
    stuck = full(server)
    half_closed = server.connect()
    half_closed.sendall(request(50_000))
    half_closed.shutdown(socket.SHUT_WR)
    server.turn_until(lambda: server.connections.bound.starved)
    server.settle()
    for client in stuck:
        reset(client)
    assert server.read(half_closed, 100) == HEAD


def test_small_requests_are_served_while_the_bound_is_full(transport_server: StartTransport) -> None:
    server = transport_server(receiving_max_bytes=2 * MEBIBYTE)
    full(server)
    honest = server.connect()
    for _ in range(50):
        server.send(honest, request(1_000))
        assert server.read(honest, 8) == HEAD


def test_silent_clients_make_room_for_others(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = transport_server(receiving_max_bytes=2 * MEBIBYTE)
    stuck = full(server)
    honest = server.connect()
    server.send_what_fits(honest, request(MEBIBYTE))
    assert server.connections.bound.starved
    caplog.set_level("INFO")
    server.pass_time(server.limits.receive_stall_max_s + 2)
    server.send_what_fits(honest, b"")
    assert any(server.is_cut_off(client) for client in stuck)
    assert "others wait for its room" in caplog.text
    assert server.connections.closed["slow"] >= 1


@pytest.mark.parametrize("bytes_per_second", [0, 100])
def test_a_slow_request_is_given_up(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture, bytes_per_second: int
) -> None:
    caplog.set_level("INFO")
    server = transport_server()
    slow, honest = server.connect(), server.connect()
    slow.sendall(announced(MEBIBYTE))
    honest.sendall(announced(MEBIBYTE, HEAD))
    for _ in range(int(2 * server.limits.receive_timeout_s) + 2):
        if bytes_per_second and not server.is_cut_off(slow):
            server.send_what_fits(slow, bytes(bytes_per_second))
        server.send(honest, bytes(server.limits.receive_bytes_per_second_min + 500))
        server.pass_time(0.75)
    assert server.is_cut_off(slow) and not server.is_cut_off(honest)
    assert "headrace.request.receive.bytes.per.second.min" in caplog.text


def test_nobody_is_judged_for_a_pause_of_the_broker(transport_server: StartTransport) -> None:
    server = transport_server()
    client = server.connect()
    client.sendall(request(1_000)[:100])
    server.settle()
    server.now_s += 1_000  # one wakeup took so long, or the machine slept
    server.settle()
    assert not server.is_cut_off(client)
    client.sendall(request(1_000)[100:])
    assert server.read(client, 8) == HEAD


def test_many_that_stop_half_way_hold_an_honest_client_up_for_seconds_alone(
    transport_server: StartTransport,
) -> None:
    """All wait for more memory than there is: who waits must not keep much of it."""
    server = transport_server(receiving_max_bytes=4 * MEBIBYTE)
    half = request(400_000)[:200_000]
    for _ in range(80):
        server.connect().send(half)
    server.settle()
    honest = server.connect()
    data = request(400_000)
    sent = 0
    for _ in range(120):
        sent += server.send_what_fits(honest, data[sent:])
        server.pass_time(0.25)
        if sent == len(data) and server.connections.closed["slow"] and is_readable(honest):
            break
    assert server.read(honest, 8) == HEAD
    assert server.connections.bound.reserved_bytes <= 4 * MEBIBYTE


def wait_for_slow(server: TransportServer, count: int) -> None:
    for _ in range(400):
        if server.connections.closed["slow"] >= count:
            return
        server.now_s += 0.05
        server.turn()
    pytest.fail(f"{server.connections.closed} after 20 s")


def half_clients(server: TransportServer, count: int) -> int:
    """Lets clients stop half way; returns how many of them wait for room."""
    for _ in range(count):
        server.send_what_fits(server.connect(), request(MEBIBYTE)[:200_000])
    return len(server.connections.bound.starved)


def test_no_more_are_given_up_than_others_wait_for(transport_server: StartTransport) -> None:
    """Hundreds were closed at once, while all others waited, to make room for a few."""
    server = transport_server(receiving_max_bytes=10 * MEBIBYTE)
    starved = half_clients(server, 12)
    assert 0 < starved < 6
    wait_for_slow(server, 1)
    server.settle()
    assert server.connections.closed["slow"] == starved
    assert not server.connections.bound.starved
    assert len(server.connections.by_fd) == 12 - starved


def test_many_are_given_up_in_several_wakeups(
    transport_server: StartTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CHECK_TURN_S", 0.0)
    server = transport_server(receiving_max_bytes=10 * MEBIBYTE)
    ticks = itertools.count()
    server.loop._clock_s = lambda: server.now_s + next(ticks) / 1e9  # what is for later is not for now
    starved = half_clients(server, 12)
    closed = server.connections.closed
    for _ in range(400):
        before = closed["slow"]
        server.now_s += 0.05
        server.turn()
        assert closed["slow"] <= before + 1
    assert closed["slow"] == starved
    server.pass_time(server.limits.receive_timeout_s + 2)
    server.turn_until(lambda: not server.connections.by_fd, "the others have their deadline, too")
    assert_nothing_is_left(server)


class Actor:
    """A client of a random plan: frames, cut anywhere, and in the end nothing, a FIN or a reset."""

    def __init__(self, server: TransportServer, chance: random.Random) -> None:
        self.socket = server.connect()
        self.frames = [
            HEAD.ljust(chance.choice((8, 100, 5_000, 70_000, 200_000))) for _ in range(chance.randrange(4))
        ]
        self.left = b"".join(map(framed, self.frames))
        self.is_whole = chance.random() < 0.6
        if not self.is_whole:
            self.left += request(chance.choice((100, 5_000, 300_000)))[: chance.randrange(1, 90)]
        self.end = chance.choice(("stays", "fin", "reset"))
        self.has_ended = False
        self.received = b""
        self.is_cut_off = False

    def step(self, chance: random.Random) -> None:
        self.receive()
        if self.left and not self.is_cut_off:
            try:
                sent = self.socket.send(self.left[: chance.choice((1, 3, 4, 5, 100, 4_096, 100_000))])
                self.left = self.left[sent:]
            except BlockingIOError:
                return
            except OSError:
                self.is_cut_off = True
        elif not self.has_ended and chance.random() < 0.3:
            self.has_ended = True
            if self.end == "fin":
                self.socket.shutdown(socket.SHUT_WR)
            elif self.end == "reset":
                reset(self.socket)

    def receive(self) -> None:
        if self.is_cut_off or (self.has_ended and self.end == "reset"):
            return
        try:
            while data := self.socket.recv(65536):
                self.received += data
            self.is_cut_off = True
        except BlockingIOError:
            return
        except OSError:
            self.is_cut_off = True

    @property
    def is_answered(self) -> bool:
        return self.end == "reset" or self.received == HEAD * len(self.frames)


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_complete_request_is_answered_and_nothing_is_left(
    transport_server: StartTransport, seed: int, is_slow: bool
) -> None:
    """Any interleaving of partial frames, FINs and resets, under a bound that one frame exceeds."""
    chance = random.Random(seed)
    server = transport_server(receiving_max_bytes=chance.choice((1_024, 100_000, 400_000)), is_slow=is_slow)
    server.service.at_once = chance.random() < 0.5
    actors = [Actor(server, chance) for _ in range(chance.randrange(2, 14))]
    for _ in range(4_000):
        actor = chance.choice(actors)
        actor.step(chance)
        if chance.random() < 0.5:
            server.turn()
        if chance.random() < 0.1:
            server.service.answer_all()
        if all(each.is_answered and each.has_ended and not each.left for each in actors):
            break
    server.service.at_once = True
    # Those that stopped half way are given up, the others go on. The test's clock is quicker than the real
    # one, but not by much: TCP itself needs time to open a window again.
    for _ in range(2_000):
        server.service.answer_all()
        for actor in actors:
            actor.step(chance)
        server.now_s += 0.05
        server.loop.turn(0.004)
        if all(each.is_answered for each in actors):
            break
    assert [number for number, actor in enumerate(actors) if not actor.is_answered] == []
    for actor in actors:
        actor.socket.close()
    server.turn_until(lambda: not server.connections.by_fd, "all connections end")
    assert_nothing_is_left(server)
