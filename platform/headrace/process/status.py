"""The status page of a process: `GET /status` returns JSON, `GET /` an HTML page if the process has one.

Owns one small HTTP server with a thread for each connection, and its bounds: connections at once, the time
and the size of a request. A process may take JSON by POST, too.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

from headrace.process.command_line import split_address

CONNECTIONS_MAX: Final = 64
REQUEST_MAX_S: Final = 30.0
"""From the connection's start to the end of the response."""
SILENCE_MAX_S: Final = 10.0
BODY_MAX_BYTES: Final = 512 * 1024


class Answer(NamedTuple):
    """The response to a POST: HTTP's status, and the body, which becomes JSON."""

    status: int
    body: dict[str, Any]


class StatusServer:
    """Serves on "host:port" what `status` returns, as JSON; `page` returns HTML. `posts` has the functions
    that answer bodies POSTed to their paths; several threads call them at once.

    Port 0 takes any free port; `address` has the one taken. Raises `OSError` if the address is in use,
    `ValueError` if it is not HOST:PORT.
    """

    def __init__(
        self,
        listen: str,
        status: Callable[[], dict[str, Any]],
        page: Callable[[], str] | None = None,
        posts: Mapping[str, Callable[[bytes], Answer]] | None = None,
    ) -> None:
        class Handler(_Handler):
            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                if path == "/status":
                    self.answer(200, json.dumps(status()).encode(), "application/json")
                elif path == "/" and page is not None:
                    self.answer(200, page().encode(), "text/html; charset=utf-8")
                else:
                    self.send_error(404, "there is only /status")

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
        return body if len(body) == int(length) else None

    def answer_json(self, answer: Answer) -> None:
        self.answer(answer.status, json.dumps(answer.body).encode() + b"\n", "application/json")

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


class _BoundedServer(ThreadingHTTPServer):
    """Closes connections beyond `CONNECTIONS_MAX` at once."""

    def __init__(self, *arguments: Any) -> None:
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of clients that went."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
