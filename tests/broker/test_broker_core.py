"""The sans-IO core: the order of requests and responses, for any timing of bytes and responses."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.core import (
    IN_FLIGHT_MAX,
    LARGE_REQUEST_BYTES,
    SLOW_REQUESTS_PER_TURN_MAX,
    ClientConnection,
    Slot,
)
from headrace.log.files import FileSlice
from headrace.wire.errors import FrameTooLargeError, MalformedMessageError

LIMIT_BYTES = 100_000


class Echo:
    """Responds to each frame with itself, at once or when its slot is filled."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.frames: list[bytes] = []
        self.slots: list[Slot] = []

    def check_size(self, api_key: int, size_bytes: int) -> None:
        """Any size is right."""

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        self.frames.append(bytes(frame))
        slot = connection.open_slot()
        self.slots.append(slot)
        if self.at_once:
            slot.fill((bytes(frame),))


def connect(service: Echo) -> ClientConnection:
    return ClientConnection(
        service,
        peer="test",
        frame_limit_bytes=LIMIT_BYTES,
        on_output=lambda _: None,
        on_abort=lambda reason: pytest.fail(reason),
    )


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def feed(connection: ClientConnection, data: bytes, cuts: list[int]) -> None:
    """Give the bytes in pieces, as a transport does: into the frame that has begun, if there is one."""
    at = 0
    for end in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
        while at < end:
            target = connection.wanted()
            if target is None:
                scratch = bytearray(data[at:end])
                connection.receive(memoryview(scratch))
                scratch[:] = bytes(len(scratch))  # the transport's buffer is reused at once
                at = end
            else:
                count = min(len(target), end - at)
                target[:count] = data[at : at + count]
                connection.filled(count)
                at += count


def sent(connection: ClientConnection) -> bytes:
    connection.release_responses()
    parts = [part.read() if isinstance(part, FileSlice) else bytes(part) for part in connection.outgoing]
    connection.outgoing.clear()
    return b"".join(parts)


payloads = st.lists(st.integers(8, 9_000).map(lambda size: random.Random(size).randbytes(size)), max_size=6)


@settings(max_examples=80)
@given(payloads=payloads, cuts=st.lists(st.integers(0, 50_000), max_size=8))
def test_frames_are_the_same_however_bytes_arrive(payloads: list[bytes], cuts: list[int]) -> None:
    service = Echo()
    connection = connect(service)
    feed(connection, b"".join(map(framed, payloads)), cuts)
    assert service.frames == payloads
    assert sent(connection) == b"".join(payloads)


def test_byte_by_byte() -> None:
    service = Echo()
    connection = connect(service)
    data = framed(b"12345678") + framed(b"another request") * 2
    feed(connection, data, list(range(len(data))))
    assert service.frames == [b"12345678", b"another request", b"another request"]


@settings(max_examples=60)
@given(order=st.permutations(range(8)))
def test_responses_leave_in_the_order_of_the_requests(order: list[int]) -> None:
    service = Echo(at_once=False)
    connection = connect(service)
    feed(connection, b"".join(framed(b"request%d" % number) for number in range(8)), [])
    out = b""
    answered: set[int] = set()
    for number in order:
        service.slots[number].fill((b"<%d>" % number,))
        answered.add(number)
        out += sent(connection)
        ready = next((n for n in range(8) if n not in answered), 8)
        assert out == b"".join(b"<%d>" % n for n in range(ready))


@pytest.mark.parametrize("length", [-1, LIMIT_BYTES + 1, 0x47455420])  # the last one is "GET "
def test_impossible_lengths_end_the_connection(length: int) -> None:
    connection = connect(Echo())
    with pytest.raises(FrameTooLargeError, match=r"socket\.request\.max\.bytes"):
        feed(connection, length.to_bytes(4, "big", signed=True) + b"and more", [])


@pytest.mark.parametrize("payload", [b"", b"1234567"])
@pytest.mark.parametrize("cuts", [[], [1], [4], [5]])
def test_a_frame_without_a_request_ends_the_connection(payload: bytes, cuts: list[int]) -> None:
    connection = connect(Echo())
    with pytest.raises(MalformedMessageError, match="holds no request"):
        feed(connection, framed(payload), cuts)


def test_reading_pauses_while_too_many_responses_are_unsent() -> None:
    service = Echo(at_once=False)
    connection = connect(service)
    feed(connection, framed(b"12345678") * IN_FLIGHT_MAX, [])
    assert connection.must_pause
    service.slots[0].fill((b"answer",))
    connection.release_responses()
    assert not connection.must_pause


def test_responses_after_the_end_are_dropped() -> None:
    service = Echo(at_once=False)
    connection = connect(service)
    feed(connection, framed(b"12345678"), [])
    connection.close()
    service.slots[0].fill((b"too late",))
    assert connection.closed


class Holding(Echo):
    """Holds its connection at frames that begin with H, until `release` is called."""

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        super().handle(connection, frame, may_keep=may_keep)
        if bytes(frame[:1]) == b"H":
            connection.hold()


@given(
    kinds=st.lists(st.sampled_from([b"H", b"P"]), max_size=10), cuts=st.lists(st.integers(0, 200), max_size=8)
)
def test_held_requests_are_served_later_in_order(kinds: list[bytes], cuts: list[int]) -> None:
    payloads = [kind + bytes([number]) * 10 for number, kind in enumerate(kinds)]
    service = Holding()
    connection = connect(service)
    data = b"".join(map(framed, payloads))
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]
    while pieces or connection.is_held:
        if connection.is_held:
            assert service.frames[-1][:1] == b"H", "nothing behind a held request is served"
            assert connection.must_pause
            connection.release()
            connection.resume()
        else:
            connection.receive(memoryview(pieces.pop(0)))
    assert service.frames == payloads
    assert sent(connection) == b"".join(payloads)
    assert not connection.must_pause


def test_a_held_connection_that_closes_serves_nothing_more() -> None:
    service = Holding()
    connection = connect(service)
    feed(connection, framed(b"H" * 9) + framed(b"P" * 9), [])
    connection.close()
    connection.release()
    connection.resume()
    assert service.frames == [b"H" * 9]


class Wait:
    """A request that waits, as a Fetch does."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.was_closed: bool | None = None
        connection.wait(self)

    def end(self) -> None:
        assert self.was_closed is None, "it ended before"
        self.was_closed = self.connection.closed


def test_the_end_of_a_connection_frees_what_it_keeps() -> None:
    connection = connect(Echo(at_once=False))
    feed(connection, framed(b"12345678"), [])
    wait = Wait(connection)
    connection.fetch_template = (12, object())
    connection.templates.by_head[b"head"] = object()
    feed(connection, (9_000).to_bytes(4, "big") + bytes(5_000), [])
    assert connection.rest_bytes
    connection.close()
    assert wait.was_closed
    assert connection.waiting is None and not connection.slots and not connection.templates.by_head
    assert connection.fetch_template is None and connection.partial_bytes == connection.rest_bytes == 0


def test_while_one_request_waits_no_later_one_is_served() -> None:
    service = Echo(at_once=False)
    connection = connect(service)
    feed(connection, framed(b"waiting1"), [])
    wait = Wait(connection)
    feed(connection, framed(b"later123") * 3, [])
    assert connection.must_pause and service.frames == [b"waiting1"]
    connection.end_waiting()
    assert wait.was_closed is False
    connection.stop_waiting()
    connection.resume()
    assert service.frames == [b"waiting1"] + [b"later123"] * 3


def test_a_closed_connection_calls_nobody() -> None:
    """Its transport refers to it: together they would stay until the garbage collector comes."""
    called: list[object] = []
    connection = ClientConnection(
        Echo(), peer="test", frame_limit_bytes=LIMIT_BYTES, on_output=called.append, on_abort=called.append
    )
    connection.close()
    connection.on_output(connection)
    connection.abort("too late")
    assert called == []


class Picky(Echo):
    """Refuses large requests of API 3."""

    def check_size(self, api_key: int, size_bytes: int) -> None:
        if api_key == 3:
            raise FrameTooLargeError(f"{size_bytes} bytes")


@pytest.mark.parametrize("cuts", [[], [4], [5], [6], [3, 5]])
def test_a_request_that_is_too_large_is_refused_by_its_first_bytes(cuts: list[int]) -> None:
    service = Picky()
    large = LARGE_REQUEST_BYTES + 1
    for api_key, is_refused in ((3, True), (0, False)):
        connection = ClientConnection(
            service,
            peer="test",
            frame_limit_bytes=2 * large,
            on_output=lambda _: None,
            on_abort=lambda reason: pytest.fail(reason),
        )
        beginning = large.to_bytes(4, "big") + api_key.to_bytes(2, "big")
        if is_refused:
            with pytest.raises(FrameTooLargeError, match=f"{large} bytes"):
                feed(connection, beginning, cuts)
        else:
            feed(connection, beginning, cuts)
            assert connection.partial_filled_bytes == 2


class Slow(Echo):
    """Serves each request off the fast paths."""

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        connection.turn_left -= 1
        super().handle(connection, frame, may_keep=may_keep)


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(8, 300), min_size=1, max_size=60), cut=st.integers(0, 20_000))
def test_turns_serve_every_request_once_and_in_order(sizes: list[int], cut: int) -> None:
    service = Slow()
    connection = connect(service)
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    data = b"".join(map(framed, payloads))
    for piece in (data[:cut], data[cut:]):
        scratch = bytearray(piece)
        at = 0
        while at < len(piece) or connection.rest is not None:
            before = len(service.frames)
            connection.turn_left = SLOW_REQUESTS_PER_TURN_MAX
            if connection.rest is not None:
                connection.resume()
            elif (target := connection.wanted()) is not None:
                count = min(len(target), len(piece) - at)
                target[:count] = piece[at : at + count]
                at += count
                connection.filled(count)
            else:
                connection.receive(memoryview(scratch)[at:])
                at = len(piece)
                scratch[:] = bytes(len(scratch))  # the transport's buffer is reused at once
            assert len(service.frames) - before <= SLOW_REQUESTS_PER_TURN_MAX
    assert service.frames == payloads
