"""What is no agent, or one of another version, behind an agent's address: the client names it, in bounded
time and memory.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.agent import answers
from headrace.agent.client import AgentClient
from headrace.agent.errors import AgentUnreachableError

Write = Callable[[Callable[[bytes], Any]], None]
TOKEN = "x" * 32
PIECES_MAX = 2_000  # a client that waits for all of them is slow, and the test ends all the same
PIECE_S = 0.005


@contextlib.contextmanager
def answering(write: Write) -> Iterator[AgentClient]:
    """A client of a server that answers each request as `write` does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            with contextlib.suppress(OSError):  # the client has gone
                write(self.wfile.write)

        do_PUT = do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with AgentClient(f"http://127.0.0.1:{server.server_port}", TOKEN) as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("answer", [b"{}", b'{"outcome": 5, "units": 5, "directory": 5, "size_bytes": []}'])
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.units(),
        lambda client: client.unit("a"),
        lambda client: client.put("a", {}),
        lambda client: client.put("a", {}, dry_run=True),
        lambda client: client.restart("a"),
        lambda client: client.roll(["a"]),
        lambda client: client.data("a"),
        lambda client: client.load("page-view"),
        lambda client: client.put_load("page-view", {}),
    ],
)
def test_an_object_without_the_answer_is_named(ask: Callable[[AgentClient], object], answer: bytes) -> None:
    with answering(lambda write: write(answer)) as client, pytest.raises(AgentUnreachableError) as error:
        ask(client)
    assert "another version" in str(error.value)


def test_json_that_is_too_deep_is_named() -> None:
    with answering(lambda write: write(b"[" * 100_000)) as client, pytest.raises(AgentUnreachableError):
        client.version()


def test_an_answer_that_trickles_ends_after_its_time() -> None:
    done = threading.Event()

    def trickle(write: Callable[[bytes], Any]) -> None:
        try:
            for _ in range(PIECES_MAX):
                write(b" ")
                threading.Event().wait(PIECE_S)
            write(b"{}")
        finally:
            done.set()

    with answering(trickle) as client:
        with pytest.raises(AgentUnreachableError, match="longer than"):
            client.health(answer_max_s=0.1)
        assert done.wait(60), "the connection is closed, so that the server ends"


def test_an_answer_without_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_MAX_BYTES", 1 << 16)

    def endless(write: Callable[[bytes], Any]) -> None:
        for _ in itertools.repeat(None, PIECES_MAX):
            write(b" " * 4096)
        write(b"{}")

    with answering(endless) as client, pytest.raises(AgentUnreachableError, match="more than"):
        client.version()
