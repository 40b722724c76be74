"""Probes report a problem, whatever a unit's page holds; they never raise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.agent.airflow_environment import AirflowProbe
from headrace.agent.probes import (
    BalancerProbe,
    BrokerProbe,
    HdfsProbe,
    HttpProbe,
    PostgresqlProbe,
    Probe,
    ZooKeeperProbe,
)
from headrace.site.addresses import Address

ServePage = Callable[[bytes], str]
PAGES = (
    b"",
    b"no JSON",
    b"[]",
    b"null",
    b"7",
    b"{}",
    b'{"beans": [7]}',
    b'{"beans": 7}',
    b'{"scheduler": 7}',
)
BAD_HEARTBEAT = b'{"scheduler": {"status": "healthy", "latest_scheduler_heartbeat": "soon"}}'


@pytest.fixture
def serve() -> Iterator[ServePage]:
    """Serves one page at every path; returns the server's URL."""
    page = b""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def start(content: bytes) -> str:
        nonlocal page
        page = content
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("page", [*PAGES, BAD_HEARTBEAT])
def test_a_page_of_any_content_is_a_problem(serve: ServePage, page: bytes) -> None:
    url = serve(page)
    probes: tuple[Probe, ...] = (HdfsProbe(url), BalancerProbe(url), AirflowProbe(url, "scheduler"))
    for probe in probes:
        assert probe.check(), probe


@pytest.mark.parametrize("host", ["east..example.com", "a" * 64 + ".example.com"])
def test_a_host_that_can_have_no_address_is_a_problem(host: str) -> None:
    """Python says that by an error that is none of the network's."""
    address, url = Address(host, 9092), f"http://{host}:8080"
    probes: tuple[Probe, ...] = (
        BrokerProbe(address, 1),
        ZooKeeperProbe(address),
        HttpProbe(url),
        HdfsProbe(url),
        BalancerProbe(url),
        AirflowProbe(url, "scheduler"),
    )
    for probe in probes:
        problem = probe.check()
        assert problem and host in problem and "can't be the name of a host" in problem, problem


def test_a_healthy_page_is_none(serve: ServePage) -> None:
    assert HttpProbe(serve(b"")).check() is None
    state = b'{"beans": [{"NumLiveDataNodes": 1, "FSState": "Operational"}]}'
    assert HdfsProbe(serve(state)).check() is None


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "it closed the connection"),
        (b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I", None),
        (b"R\0\0\0\x08\0\0\0\x0a", "it asks for a password"),
        (b"E\0\0\0\x1bSFATAL\0Mstill starting\0\0", "still starting"),
        (b"E\0\0\0\x05\0", "it refuses the session"),
        (b"HTTP/1.1 200 OK\r\n", "its answer is not PostgreSQL's"),
        (b"Z\0\0\0\0", "its answer is not PostgreSQL's"),
        (b"N\xff\xff\xff\xff", "its answer is not PostgreSQL's"),
        (b"N\0\0\0\x40", "it closed the connection"),
    ],
)
def test_any_answer_at_the_databases_socket_is_understood(
    tmp_path: Path, answer: bytes, problem: str | None
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve_one() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(answer)
                client.shutdown(socket.SHUT_WR)
                # Until the probe has read it: a connection that is closed before is reset.
                while client.recv(1000):
                    pass

        thread = threading.Thread(target=serve_one)
        thread.start()
        found = PostgresqlProbe(path).check()
        thread.join()
    assert found is None if problem is None else problem in str(found)
    assert "refused" in str(PostgresqlProbe(path).check())
