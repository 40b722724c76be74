"""The status page of a process: `GET /status` returns JSON, `GET /` an HTML page if the process has one.

Owns one small HTTP server and its thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from headrace.process.command_line import split_address

REQUEST_TIMEOUT_S: Final = 10.0


class StatusServer:
    """Serves on "host:port" what `status` returns, as JSON; `page` returns HTML.

    Port 0 takes any free port; `address` has the one taken. Raises `OSError` if the address is in use,
    `ValueError` if it is not HOST:PORT.
    """

    def __init__(
        self, listen: str, status: Callable[[], dict[str, Any]], page: Callable[[], str] | None = None
    ) -> None:
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

        self._server = ThreadingHTTPServer(split_address(listen), Handler)
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
