"""Control requests: each connection in order, connections in turn, a wakeup with a bounded share."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.broker.bodies import Tree
from headrace.broker.control import (
    ITEM_BYTES,
    READ_HERE_MAX_BYTES,
    TURN_MAX_S,
    UNREAD_CHECK_MS,
    WRITE_HERE_MAX_ITEMS,
    ControlTurns,
    Frame,
    items_of,
)
from headrace.broker.core import OUTGOING_MAX_BYTES, QUEUED_MAX_BYTES, ClientConnection, Slot
from headrace.broker.fair_workers import FairWorkers
from headrace.broker.loop import EventLoop
from headrace.broker.workers import Outcome
from headrace.wire.errors import MalformedMessageError
from headrace.wire.messages import Request

PART_S = TURN_MAX_S / 3.5  # what a request takes: a wakeup has time for four


class TurnsBench:
    """Turns without a loop, threads or sockets: `wake_up` is one wakeup."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.served: list[tuple[ClientConnection, int]] = []  # with the request's number
        self.away: list[tuple[Callable[[], Any], Outcome]] = []
        self.client = ""
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._hooks: list[Callable[[], None]] = []
        self.turns = ControlTurns(
            cast(EventLoop, self), cast(FairWorkers, self), self._serve, clock_s=lambda: self.now_s
        )

    # --- the loop's and the workers' part ---

    def at_wakeup_end(self, hook: Callable[[], None]) -> None:
        self._hooks.append(hook)

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> None:
        self._timers.append((delay_ms, call))

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        self.away.append((job, done))

    def wake_up(self) -> None:
        timers, self._timers = self._timers, []
        for delay_ms, call in timers:
            assert delay_ms in (0, UNREAD_CHECK_MS)
            call()
        self.end_wakeup()

    def end_wakeup(self) -> None:
        for hook in self._hooks:
            hook()

    @property
    def is_idle(self) -> bool:
        return not self._timers and not self.away

    def run_away(self) -> None:
        job, done = self.away.pop(0)
        try:
            result, error = job(), None
        except Exception as caught:
            result, error = None, caught
        done(result, error)

    def run_away_until_idle(self) -> None:
        while not self.is_idle:
            if self.away:
                self.run_away()
            self.wake_up()

    # --- requests ---

    def connection(self) -> ClientConnection:
        made = ClientConnection(
            cast(Any, None),
            peer=f"127.0.0.1:{id(self)}",
            frame_limit_bytes=1 << 20,
            on_output=lambda _: None,
            on_abort=lambda _: made.close(),
        )
        return made

    def take(self, connection: ClientConnection, number: int, size_bytes: int = 0) -> None:
        frame = struct.pack(">hhih", 18, 0, number, -1) + bytes(size_bytes)
        self.turns.take(connection.open_slot(), memoryview(frame))

    def _serve(self, slot: Slot, frame: Frame, request: Request | None) -> None:
        number = struct.unpack_from(">i", frame, 4)[0]
        assert (request is not None) == (len(frame) > READ_HERE_MAX_BYTES)
        self.now_s += PART_S
        self.served.append((slot.connection, number))
        if number < 0:
            raise MalformedMessageError("a negative number")

    def numbers(self, connection: ClientConnection) -> list[int]:
        return [number for served, number in self.served if served is connection]


def test_a_request_is_handled_at_once_if_nothing_waits() -> None:
    bench = TurnsBench()
    bench.take(bench.connection(), 1)
    assert len(bench.served) == 1
    assert bench.is_idle


def test_a_wakeup_handles_as_many_requests_as_its_time_allows() -> None:
    bench = TurnsBench()
    one = bench.connection()
    for number in range(20):
        bench.take(one, number)
    assert len(bench.served) == 4
    bench.end_wakeup()
    for handled in (8, 12, 16, 20):
        bench.wake_up()
        assert len(bench.served) == handled
    assert bench.numbers(one) == list(range(20)), "in their order"
    assert bench.is_idle
    bench.take(one, 20)
    assert bench.numbers(one)[-1] == 20, "at once again"


def test_a_client_with_few_requests_does_not_wait_for_one_with_many() -> None:
    bench = TurnsBench()
    busy, quiet = bench.connection(), bench.connection()
    for number in range(100):
        bench.take(busy, number)
    bench.end_wakeup()
    bench.take(quiet, 1)
    assert bench.numbers(quiet) == [1]
    bench.take(quiet, 2)
    bench.take(quiet, 3)
    bench.take(quiet, 4)  # this wakeup's time is over
    bench.take(quiet, 5)
    bench.end_wakeup()
    before = len(bench.numbers(busy))
    bench.wake_up()
    assert bench.numbers(quiet) == [1, 2, 3, 4, 5]
    assert before < len(bench.numbers(busy)) <= before + 3


def test_a_large_request_is_read_apart_and_later_ones_wait_for_it() -> None:
    bench = TurnsBench()
    one, other = bench.connection(), bench.connection()
    bench.take(one, 1, READ_HERE_MAX_BYTES)
    bench.take(one, 2)
    bench.wake_up()
    assert bench.served == []
    bench.take(other, 1)
    assert bench.numbers(other) == [1]
    bench.run_away()
    bench.wake_up()
    assert bench.numbers(one) == [1, 2]
    assert bench.is_idle


def test_a_response_that_is_written_apart_holds_up_its_own_client_alone() -> None:
    bench = TurnsBench()
    one, other = bench.connection(), bench.connection()
    written: list[Any] = []
    bench.turns.apart(one, lambda: b"response", lambda result, error: written.append((result, error)))
    bench.take(one, 1)
    bench.take(other, 1)
    bench.wake_up()
    assert (bench.numbers(one), bench.numbers(other)) == ([], [1])
    bench.run_away()
    assert written == [(b"response", None)]
    bench.wake_up()
    assert bench.numbers(one) == [1]


def test_a_client_that_does_not_read_gets_no_further_responses() -> None:
    bench = TurnsBench()
    one = bench.connection()
    one.outgoing_bytes = OUTGOING_MAX_BYTES
    bench.take(one, 1)
    for _ in range(5):
        bench.wake_up()
    assert bench.served == []
    one.outgoing_bytes = 0
    bench.wake_up()
    bench.wake_up()
    assert bench.numbers(one) == [1]
    assert bench.is_idle


@pytest.mark.parametrize("large", [False, True])
def test_an_invalid_request_ends_its_connection_and_drops_the_rest(large: bool) -> None:
    bench = TurnsBench()
    one = bench.connection()
    away = bench.connection()
    bench.turns.apart(one, lambda: None, lambda result, error: None)
    bench.take(one, -1, READ_HERE_MAX_BYTES if large else 0)
    bench.take(one, 2)
    bench.run_away()
    bench.wake_up()
    if large:
        bench.run_away()
    bench.wake_up()
    assert one.closed and not away.closed
    assert bench.numbers(one) == [-1]
    assert bench.is_idle


def test_a_connection_that_closes_while_its_message_is_away_is_forgotten() -> None:
    bench = TurnsBench()
    one = bench.connection()
    bench.take(one, 1, READ_HERE_MAX_BYTES)
    bench.take(one, 2)
    bench.wake_up()
    one.close()
    bench.run_away()
    bench.wake_up()
    assert bench.served == []
    assert bench.is_idle


def test_items_are_counted_as_far_as_it_matters() -> None:
    assert items_of({"error_code": 0, "topics": []}) == 0
    assert items_of({"topics": [{"partitions": (1, 2, 3)}, {"partitions": [{}]}]}) == 6
    assert items_of({"topics": [{"partitions": ()}] * 10**6}) >= WRITE_HERE_MAX_ITEMS
    deep: Tree = {"topics": [{"partitions": [{}] * WRITE_HERE_MAX_ITEMS}]}
    assert items_of(deep) >= WRITE_HERE_MAX_ITEMS
    heavy: Tree = {"members": [{"metadata": bytes(ITEM_BYTES * WRITE_HERE_MAX_ITEMS // 10)}] * 10}
    assert items_of(heavy) >= WRITE_HERE_MAX_ITEMS, "ten members whose metadata takes some ms to be written"


def test_large_requests_that_wait_for_their_turn_have_a_bound_in_bytes() -> None:
    """256 of 4 MiB could wait: one connection took a GiB."""
    bench = TurnsBench()
    connection, number = bench.connection(), 0
    while not connection.must_pause:
        number += 1
        bench.take(connection, number, 300_000)
    assert number == 4
    assert connection.rest_bytes == connection.queued_bytes >= QUEUED_MAX_BYTES
    bench.run_away_until_idle()
    assert bench.numbers(connection) == [1, 2, 3, 4]
    assert connection.queued_bytes == 0
    assert not connection.must_pause


def test_requests_of_a_connection_that_ends_take_no_room_any_more() -> None:
    bench = TurnsBench()
    connection = bench.connection()
    for number in range(3):
        bench.take(connection, number, 100_000)
    connection.close()
    assert connection.rest_bytes == 0
    bench.run_away_until_idle()
    assert connection.rest_bytes == 0
