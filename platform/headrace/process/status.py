"""A status page for programs: `GET /status` answers JSON; for people, `GET /` a page, where there is one.
Owns one small HTTP server in a thread of its own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

REQUEST_TIMEOUT_S: Final = 10.0


class StatusServer:
    """Serves what `status` returns (plain data) on "host:port"; port 0 takes a free one, `address` says
    which. `page` returns HTML.

    Raises `OSError` if the address is taken, `ValueError` if it is none.
    """

    def __init__(
        self, listen: str, status: Callable[[], dict[str, Any]], page: Callable[[], str] | None = None
    ) -> None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{listen!r} is no address; give HOST:PORT")

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT_S

            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                if path == "/status":
                    body, kind = json.dumps(status()).encode(), "application/json"
                elif path == "/" and page is not None:
                    body, kind = page().encode(), "text/html; charset=utf-8"
                else:
                    self.send_error(404, "there is only /status")
                    return
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer((host, int(port)), Handler)
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
