"""The status of a process over HTTP: `GET /status` returns JSON, `GET /metrics` the same figures for
Prometheus, `GET /` a page for people.

Owns one small HTTP server with a thread for each connection, and its bounds: connections at once, the time
and the size of a request. A process may take JSON by POST, too.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headrace.process import metrics as exposition
from headrace.process import page as pages
from headrace.process.command_line import split_address
from headrace.process.metrics import Metric
from headrace.process.page import Page
from headrace.process.rendered import RenderedPage

CONNECTIONS_MAX: Final = 64
REQUEST_MAX_S: Final = 30.0
"""From the connection's start to the end of the response."""
SILENCE_MAX_S: Final = 10.0
READ_MIN_S: Final = 1.0
"""For the client to read an answer, before a newcomer may take its place."""
ROOM_WAIT_MAX_S: Final = 5.0
"""For the thread of a connection that was cut off to end."""
BODY_MAX_BYTES: Final = 512 * 1024


class Answer(NamedTuple):
    """The response to a POST: HTTP's status, and the body, which becomes JSON."""

    status: int
    body: dict[str, Any]


class StatusServer:
    """Serves on "host:port" what `status` returns, as JSON, the page that `page` makes of it, and the metrics
    that `metrics` makes of it. `posts` has the functions that answer bodies POSTed to their paths; several
    threads call them at once.

    Port 0 takes any free port; `address` has the one taken. Raises `OSError` if the address is in use,
    `ValueError` if it is not HOST:PORT.
    """

    def __init__(
        self,
        listen: str,
        status: Callable[[], dict[str, Any]],
        page: Callable[[dict[str, Any]], Page] | None = None,
        posts: Mapping[str, Callable[[bytes], Answer]] | None = None,
        metrics: Callable[[dict[str, Any]], Iterable[Metric]] | None = None,
    ) -> None:
        rendered = None if page is None else RenderedPage(lambda: page(status()))

        class Handler(_Handler):
            def do_GET(self) -> None:
                self.arrived()
                path, _, query = self.path.partition("?")
                if path == "/status":
                    self.answer(200, json.dumps(status()).encode(), "application/json")
                elif path == "/metrics" and metrics is not None:
                    self.answer(200, exposition.text_of(metrics(status())), exposition.KIND)
                elif path == "/" and rendered is not None:
                    body = rendered.html(query)
                    self.answer(200, body, pages.KIND, pages.HEADERS)
                else:
                    served = {"/": rendered, "/status": status, "/metrics": metrics}
                    paths = [name for name, serves in served.items() if serves is not None]
                    self.send_error(404, f"see {' and '.join(paths)}")

            def do_POST(self) -> None:
                take = (posts or {}).get(self.path.split("?")[0])
                if take is None:
                    self.send_error(404, "nothing is taken here")
                    return
                body = self.read_body()
                if body is not None:
                    self.answer_json(take(body))

        self._server = _BoundedServer(split_address(listen), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="status", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """One connection, which is one request: HTTP/1.0."""

    timeout = SILENCE_MAX_S

    def setup(self) -> None:
        # A client that sends a byte now and then would otherwise hold its thread for ever.
        self._end = threading.Timer(REQUEST_MAX_S, self._cut_off)
        self._end.daemon = True
        self._end.start()
        super().setup()

    def finish(self) -> None:
        self._end.cancel()
        super().finish()

    def _cut_off(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def arrived(self) -> None:
        """Called once all of the request was read: from then on no newcomer takes its place."""
        assert isinstance(self.server, _BoundedServer)
        self.server.arrived(self.connection)

    def read_body(self) -> bytes | None:
        """Returns the request's body; None once a request without a believable length is refused."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            self.answer_json(Answer(411, {"error": "the request has no Content-Length"}))
            return None
        if int(length) > BODY_MAX_BYTES:
            problem = f"the body has {int(length)} bytes, more than {BODY_MAX_BYTES}"
            self.answer_json(Answer(413, {"error": problem}))
            return None
        body = self.rfile.read(int(length))
        self.arrived()
        return body if len(body) == int(length) else None

    def answer_json(self, answer: Answer) -> None:
        self.answer(answer.status, json.dumps(answer.body).encode() + b"\n", "application/json")

    def answer(
        self, status: int, body: bytes, kind: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        assert isinstance(self.server, _BoundedServer)
        self.server.sends(self.connection)
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


class _BoundedServer(ThreadingHTTPServer):
    """Has at most `CONNECTIONS_MAX` connections. A newcomer takes the place of the oldest one whose request
    has not arrived yet, else of the oldest one that has not read its answer for `READ_MIN_S`; it is closed at
    once if all others are being answered.
    """

    def __init__(self, *arguments: Any) -> None:
        self._changed = threading.Condition()
        self._open_count = 0
        self._arriving: dict[Any, None] = {}  # the oldest first
        self._sending: dict[Any, float] = {}  # since when
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._makes_room():
            self.shutdown_request(request)
            return
        with self._changed:
            self._open_count += 1
            self._arriving[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def arrived(self, request: Any) -> None:
        """Called once all of a request was read."""
        with self._changed:
            self._arriving.pop(request, None)

    def sends(self, request: Any) -> None:
        """Called once the answer begins to be written, which ends when the client has read it."""
        with self._changed:
            self._sending[request] = time.monotonic()

    def _makes_room(self) -> bool:
        with self._changed:
            if self._open_count < CONNECTIONS_MAX:
                return True
            before_s = time.monotonic() - READ_MIN_S
            idle = (request for request, since_s in self._sending.items() if since_s < before_s)
            oldest = next(iter(self._arriving), None) or next(idle, None)
            if oldest is None:
                return False
            self._arriving.pop(oldest, None)
            self._sending.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
            return self._changed.wait_for(lambda: self._open_count < CONNECTIONS_MAX, ROOM_WAIT_MAX_S)

    def _ended(self, request: Any) -> None:
        with self._changed:
            self._open_count -= 1
            self._arriving.pop(request, None)
            self._sending.pop(request, None)
            self._changed.notify()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of clients that went."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
