"""Whether mirrors copy a topic that was made again: what they say of the topic before it is not believed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.fleet.topics import copies
from headrace.fleet.topics.copies import HaltedCopyError, check_copies
from headrace.site.context import ContextMirror

OLD, NEW = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
OLD_COPY, COPY = "33333333-3333-3333-3333-333333333333", "44444444-4444-4444-4444-444444444444"


def row(
    state: str, topic_id: str | None = None, topic: str = "orders", reason: str = "", copy_id: str = COPY
) -> dict[str, Any]:
    told = {} if topic_id is None else {"source_topic_id": topic_id, "target_topic_id": copy_id}
    return {"topic": topic, "partition": 0, "state": state, "reason": reason, **told}


@contextmanager
def mirror_that_says(*answers: list[dict[str, Any]]) -> Iterator[tuple[ContextMirror, list[int]]]:
    """A mirror that gives these answers in turn, and then the last one; and how often it was asked."""
    asked: list[int] = []

    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"partitions": answers[min(len(asked), len(answers) - 1)]}).encode()
            asked.append(len(asked))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Status)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/status"
    try:
        yield ContextMirror(source="east", target="analysis", status_url=url), asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "POLL_S", 0.01)


def test_a_mirror_that_still_shows_the_deleted_topic_is_asked_until_it_has_seen_the_new_one() -> None:
    halted = row("halted", OLD, reason="it was made again")
    with mirror_that_says(*[[row("caught_up", OLD)]] * 3, [halted]) as (mirror, asked):
        with pytest.raises(HaltedCopyError, match="orders-0 of east: it was made again"):
            check_copies("orders", [(mirror, NEW)], COPY)
        assert len(asked) == 4
    with mirror_that_says([], [row("copying", NEW)]) as (mirror, asked):
        check_copies("orders", [(mirror, NEW)], COPY)
        assert len(asked) == 2


def test_a_copy_that_halted_in_a_topic_that_was_deleted_since_is_asked_for_again() -> None:
    """Another mirror may have made all partitions again before this one saw that they were gone."""
    halted = row("halted", OLD, reason="it was made again", copy_id=OLD_COPY)
    moving = row("copying", NEW, copy_id=OLD_COPY)
    with mirror_that_says([halted], [moving], [row("copying", NEW)]) as (mirror, asked):
        check_copies("orders", [(mirror, NEW)], COPY)
        assert len(asked) == 3


@pytest.mark.parametrize("state", [row("caught_up", NEW), row("copying")])
def test_one_answer_is_enough_where_nothing_is_to_be_waited_for(state: dict[str, Any]) -> None:
    """A mirror of an earlier version tells no ids."""
    with mirror_that_says([row("halted", OLD, topic="other"), state]) as (mirror, asked):
        check_copies("orders", [(mirror, NEW)], COPY)
        assert len(asked) == 1


def test_a_mirror_that_does_not_answer_says_nothing_and_one_that_stays_behind_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "SETTLE_MAX_S", 1.0)
    nobody = ContextMirror(source="west", target="analysis", status_url="http://127.0.0.1:9/status")
    with mirror_that_says([row("locating", OLD)], []) as (mirror, asked):
        check_copies("orders", [(nobody, NEW), (mirror, NEW)], COPY)
        assert len(asked) > 1
