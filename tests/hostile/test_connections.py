"""Clients that open many connections, never read, never close, or meet a defect: nobody else notices."""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_transport import StartTransport, TransportServer, framed, reset
from headrace.broker.core import OUTGOING_MAX_BYTES
from headrace.broker.network.admission import LINES_MAX, LINES_PERIOD_S

HEAD = b"12345678"
MEBIBYTE = 1 << 20


def is_served(server: TransportServer, client: socket.socket) -> bool:
    if server.is_cut_off(client):
        return False
    try:
        server.send(client, framed(HEAD))
    except OSError:
        return False
    return server.read(client, 8) == HEAD


# --- how many ---


def test_connections_beyond_the_bound_are_refused_with_a_line(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = transport_server(connections_max=3)
    clients = [server.connect() for _ in range(5)]
    server.settle()
    assert [is_served(server, client) for client in clients] == [True] * 3 + [False] * 2
    assert caplog.text.count("refused, max.connections=3 are open") == 2
    assert server.connections.admission.refused == {"max.connections": 2}
    clients[0].close()
    server.settle()
    assert is_served(server, server.connect())


def test_one_address_gets_its_share_alone(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = transport_server(connections_per_ip_max=2, connections_per_ip_overrides={"127.0.0.3": 4})

    def connect(ip: str) -> socket.socket:
        client = socket.create_connection(server.listener.address, source_address=(ip, 0))
        client.setblocking(False)
        server.clients.append(client)
        server.settle()
        return client

    for ip, expected in (("127.0.0.1", 2), ("127.0.0.2", 2), ("127.0.0.3", 4)):
        clients = [connect(ip) for _ in range(6)]
        assert sum(is_served(server, client) for client in clients) == expected
        assert f"max.connections.per.ip={expected} are open from {ip}" in caplog.text
    for client in server.clients:
        reset(client) if client.fileno() >= 0 else None
    server.turn_until(lambda: not server.connections.by_fd)
    assert server.connections.admission.open_count == 0
    assert is_served(server, connect("127.0.0.1"))


def of(server: TransportServer, ip: str) -> socket.socket:
    client = socket.create_connection(server.listener.address, source_address=(ip, 0))
    client.setblocking(False)
    server.clients.append(client)
    server.settle()
    return client


def test_fifty_addresses_that_take_all_connections_shut_nobody_out(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """A newcomer takes the place of an idle connection, of the address that has the most; a client that is
    served, or waits, keeps its place.
    """
    caplog.set_level("INFO")
    server = transport_server(connections_max=150)
    honest = of(server, "127.0.0.1")
    strangers = [of(server, f"127.0.0.{100 + number % 50}") for number in range(149)]
    assert server.connections.admission.open_count == 150
    newcomer = of(server, "127.0.0.2")
    assert server.is_cut_off(newcomer), "nobody is idle for long enough yet"
    assert "refused, max.connections=150 are open" in caplog.text
    server.service.at_once = False
    waiting = strangers[0]
    server.send(waiting, framed(HEAD))
    server.settle()
    server.pass_time(2)
    server.send(honest, framed(HEAD))
    newcomers = [of(server, f"127.0.0.{number}") for number in (2, 3, 4, 5)]
    assert server.connections.closed == {"crowded": 4}
    assert server.connections.admission.open_count == 150
    server.service.at_once = True
    server.service.answer_all()
    assert server.read(honest, 8) == server.read(waiting, 8) == HEAD
    assert all(is_served(server, each) for each in newcomers)
    assert "all connections are taken: its address has the most of them" in caplog.text
    # Who has as many as the others gains nothing by more.
    server.pass_time(2)
    more = [of(server, "127.0.0.100") for _ in range(5)]
    assert all(server.is_cut_off(each) for each in more)
    assert server.connections.closed == {"crowded": 4}


def test_a_full_broker_looks_for_idle_connections_now_and_then_only(
    transport_server: StartTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = transport_server(connections_max=20)
    clients = [of(server, "127.0.0.100") for _ in range(20)]
    searches: list[float] = []
    monkeypatch.setattr(server.connections.crowding, "_search", searches.append)
    for _ in range(30):
        of(server, "127.0.0.101")
    assert len(searches) <= 1
    assert not any(server.is_cut_off(each) for each in clients)


def test_a_storm_of_refusals_writes_few_lines(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = transport_server(connections_max=1)
    server.connect()
    for _ in range(3 * LINES_MAX):
        server.connect().close()
    server.settle()
    assert caplog.text.count("refused, max.connections") == LINES_MAX
    server.now_s += LINES_PERIOD_S
    server.connect()
    assert f"{2 * LINES_MAX} further lines about refused connections were left out" in caplog.text


def test_connections_come_no_quicker_than_the_rate(transport_server: StartTransport) -> None:
    """Those beyond it wait in the backlog, as with Apache Kafka; nobody is refused."""
    server = transport_server(connections_per_second_max=5)
    clients = [socket.create_connection(server.listener.address) for _ in range(14)]
    server.clients += clients
    server.settle()
    admission = server.connections.admission
    assert admission.accepted_count == 5
    server.pass_time(1.0)
    assert 8 <= admission.accepted_count <= 12
    server.pass_time(1.5)
    assert admission.accepted_count == 14
    assert not admission.refused


def test_new_connections_come_a_few_a_wakeup(transport_server: StartTransport) -> None:
    """Each is also read, answered and perhaps closed: hundreds of them made a wakeup of 50 ms."""
    server = transport_server()
    server.clients += [socket.create_connection(server.listener.address) for _ in range(100)]
    server.turn()
    assert 0 < server.connections.admission.open_count <= 40
    server.settle()
    assert server.connections.admission.open_count == 100


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what other tests left would free descriptors later
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_the_loop_neither_ends_nor_spins(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    server = transport_server()
    first = server.connect()
    request.getfixturevalue("few_descriptors")
    clients = []
    try:
        while True:
            clients.append(socket.create_connection(server.listener.address))
    except OSError as error:
        # This process, which is client and server, has no descriptor left.
        assert error.errno == errno.EMFILE
    server.clients += clients
    server.turn_until(lambda: server.connections.accept_failure_count, "accepting fails")
    server.settle()
    assert server.connections.accept_failure_count == 1, "it waits before it tries again"
    assert "accepting failed" in caplog.text
    assert is_served(server, first)
    for client in clients[:6]:
        client.close()
    server.pass_time(1.0)
    assert server.connections.admission.accepted_count > 1


# --- silence ---


def test_accepted_sockets_are_kept_alive(transport_server: StartTransport) -> None:
    server = transport_server()
    server.connect()
    (fd,) = server.connections.by_fd
    with socket.socket(fileno=os.dup(fd)) as accepted:
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert 0 < accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 300
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        timeout_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert timeout_ms == server.limits.send_stall_max_s * 1000


def test_idle_connections_are_closed_and_waiting_ones_are_not(transport_server: StartTransport) -> None:
    server = transport_server(answers_at_once=False)
    idle, waiting = server.connect(), server.connect()
    server.send(waiting, framed(HEAD))
    server.settle()
    server.now_s += server.limits.idle_max_s + 1
    server.connections.close_idle()
    assert server.is_cut_off(idle)
    server.service.answer_all()
    assert server.read(waiting, 8) == HEAD


# --- readers that never read ---


def unread(server: TransportServer, size_bytes: int) -> socket.socket:
    """A client whose responses of so many bytes wait, since it reads none."""
    client = server.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    server.service.at_once = False
    server.send(client, framed(HEAD))
    server.turn_until(lambda: server.service.slots)
    (slot, _), *_ = server.service.slots
    server.service.slots.clear()
    server.service.at_once = True
    slot.fill((bytes(size_bytes),))
    server.settle()
    return client


def test_a_client_that_reads_nothing_is_cut_off(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = transport_server(send_stall_max_s=30.0)
    unread(server, OUTGOING_MAX_BYTES)
    other = server.connect()
    assert server.connections.unsent_bytes > 0
    server.pass_time(31)
    assert server.connections.unsent_bytes == 0
    assert len(server.connections.by_fd) == 1
    assert is_served(server, other)
    assert "headrace.response.send.stall.ms" in caplog.text
    assert server.connections.closed == {"unread": 1}


def test_responses_that_nobody_reads_are_bounded_together(transport_server: StartTransport) -> None:
    server = transport_server(unsent_max_bytes=64 * MEBIBYTE)
    stuck = [unread(server, 24 * MEBIBYTE) for _ in range(6)]
    assert server.connections.unsent_bytes <= 64 * MEBIBYTE
    assert len(server.connections.by_fd) < len(stuck)
    assert is_served(server, server.connect())


def test_a_client_that_has_shut_down_its_side_gets_its_responses(transport_server: StartTransport) -> None:
    server = transport_server(answers_at_once=False)
    client = server.connect()
    server.send(client, framed(HEAD) * 3)
    client.shutdown(socket.SHUT_WR)
    server.settle()
    server.service.answer_all()
    assert server.read(client, 100) == HEAD * 3
    server.turn_until(lambda: not server.connections.by_fd)


# --- defects ---


def test_a_defect_ends_its_connection_alone(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = transport_server()
    unlucky, lucky = server.connect(), server.connect()
    name = "{}:{}".format(*unlucky.getsockname())
    server.service.fails_on = b"poisoned"
    server.send(unlucky, framed(b"poisoned"))
    server.send(lucky, framed(HEAD))
    assert server.read(lucky, 8) == HEAD
    server.turn_until(lambda: server.is_cut_off(unlucky))
    assert f"{name}: handling its socket failed" in caplog.text
    assert server.connections.closed == {"error": 1}


def test_a_defect_while_sending_ends_its_connection_alone(
    transport_server: StartTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = transport_server(answers_at_once=False)
    clients = [server.connect() for _ in range(3)]
    for client in clients:
        server.send(client, framed(HEAD))
    server.turn_until(lambda: len(server.service.slots) == 3)
    (slot, _), *others = server.service.slots
    server.service.slots[:] = others
    slot.fill((object(),))  # type: ignore[arg-type]  # a response that cannot be sent
    server.service.answer_all()
    assert server.read(clients[1], 8) == server.read(clients[2], 8) == HEAD
    assert server.is_cut_off(clients[0])
    assert "serving it failed, the connection ends" in caplog.text


# --- turns ---


def test_pipelined_requests_get_one_turn_after_the_other(transport_server: StartTransport) -> None:
    """Thousands of requests in one read: others are served in between, in each wakeup."""
    server = transport_server(is_slow=True)
    greedy, other = server.connect(), server.connect()
    greedy.sendall(framed(HEAD) * 5_000)
    at_other = []
    for _ in range(20):
        before = server.service.count
        other.sendall(framed(HEAD))
        server.turn_until(lambda before=before: server.service.count > before)  # type: ignore[misc]
        assert server.read(other, 8) == HEAD
        at_other.append(server.service.count)
        server.turn()
    assert server.read(greedy, 5_000 * 8) == HEAD * 5_000
    assert server.service.count == 5_020
