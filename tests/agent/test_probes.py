"""Probes report a problem, whatever a unit's page holds; they never raise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.agent.airflow_environment import AirflowProbe
from headrace.agent.probes import BalancerProbe, HdfsProbe, HttpProbe, Probe

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


def test_a_healthy_page_is_none(serve: ServePage) -> None:
    assert HttpProbe(serve(b"")).check() is None
    state = b'{"beans": [{"NumLiveDataNodes": 1, "FSState": "Operational"}]}'
    assert HdfsProbe(serve(state)).check() is None
