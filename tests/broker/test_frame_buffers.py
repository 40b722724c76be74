"""Buffers for large frames: never handed out while somebody uses them, and bounded."""

from __future__ import annotations

import random

import pytest

from headrace.broker.core import ClientConnection
from headrace.wire.frame_buffers import (
    KEEP_FROM_BYTES,
    KEEP_UPTO_BYTES,
    KEPT_MAX_BYTES,
    STEP_BYTES,
    FrameBuffers,
)


def whole(buffers: FrameBuffers, size_bytes: int) -> memoryview:
    """A buffer for a frame of which most has arrived."""
    return buffers.begin(size_bytes, size_bytes)[0]


def test_a_buffer_is_used_again_once_no_view_of_it_exists() -> None:
    buffers = FrameBuffers()
    first = whole(buffers, KEEP_FROM_BYTES + 1)
    assert len(first) == KEEP_FROM_BYTES + 1
    first[:5] = b"bytes"
    part = first[:5]  # what the log keeps of a frame until the batch is written
    del first
    other = whole(buffers, KEEP_FROM_BYTES)
    other[:5] = b"other"
    assert bytes(part) == b"bytes", "the buffer is still in use"
    before = buffers.kept_bytes
    del part, other
    again = whole(buffers, KEEP_FROM_BYTES)
    assert bytes(again[:5]) in (b"bytes", b"other"), "no new buffer was made"
    assert buffers.kept_bytes == before


@pytest.mark.parametrize("size_bytes", [0, 1, KEEP_FROM_BYTES - 1, KEEP_UPTO_BYTES + 1])
def test_small_and_huge_frames_get_buffers_of_their_own(size_bytes: int) -> None:
    buffers = FrameBuffers()
    assert len(whole(buffers, size_bytes)) == size_bytes
    assert buffers.kept_bytes == 0


def test_what_is_kept_is_bounded_and_forgotten_when_idle() -> None:
    buffers = FrameBuffers()
    used = [whole(buffers, KEEP_UPTO_BYTES) for _ in range(3 * KEPT_MAX_BYTES // KEEP_UPTO_BYTES)]
    assert buffers.kept_bytes == KEPT_MAX_BYTES
    for number, view in enumerate(used):
        view[:] = bytes([number]) * len(view)
    assert [view[-1] for view in used] == list(range(len(used))), "each has a buffer of its own"
    buffers.release_idle()
    assert buffers.kept_bytes == KEPT_MAX_BYTES, "taken since the last call"
    buffers.release_idle()
    assert buffers.kept_bytes == 0


def test_half_frames_cost_no_whole_buffers() -> None:
    """Of 300 clients that stop half way each had a megabyte, zeroed while all others waited."""
    buffers = FrameBuffers()
    begun = [buffers.begin(1_000_000, 64 * 1024) for _ in range(300)]
    assert sum(len(view) for view, is_whole in begun if is_whole) <= KEPT_MAX_BYTES
    assert buffers.kept_bytes <= KEPT_MAX_BYTES
    del begun
    assert buffers.begin(1_000_000, 64 * 1024)[1], "those that are free again are used"


def test_buffers_that_are_too_small_make_room() -> None:
    buffers = FrameBuffers()
    small = [whole(buffers, KEEP_FROM_BYTES) for _ in range(KEPT_MAX_BYTES // STEP_BYTES)]
    assert buffers.kept_bytes == KEPT_MAX_BYTES
    used = small[0]
    del small
    large, is_whole = buffers.begin(KEEP_UPTO_BYTES, KEEP_UPTO_BYTES)
    assert is_whole and len(large) == KEEP_UPTO_BYTES
    assert buffers.kept_bytes == KEPT_MAX_BYTES
    used[:4] = b"kept"
    assert bytes(whole(buffers, KEEP_FROM_BYTES)[:4]) != b"kept"


class Keeper:
    """Keeps some frames, as the log does until a batch is written, and forgets the others."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.kept: list[tuple[memoryview, bytes]] = []

    def check_size(self, api_key: int, size_bytes: int) -> None:
        """Any size is right."""

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        assert may_keep, "a large frame arrives in a buffer of its own"
        if self._chance.random() < 0.5:
            self.kept.append((frame[8:], bytes(frame[8:])))
        if len(self.kept) > 3:
            del self.kept[self._chance.randrange(len(self.kept))]


@pytest.mark.parametrize("seed", range(5))
def test_no_frame_is_overwritten_while_it_is_kept(seed: int) -> None:
    chance = random.Random(seed)
    buffers, service = FrameBuffers(), Keeper(chance)
    connections = [
        ClientConnection(
            service,
            peer="test",
            frame_limit_bytes=KEEP_UPTO_BYTES,
            on_output=lambda _: None,
            on_abort=lambda reason: pytest.fail(reason),
            buffers=buffers,
        )
        for _ in range(2)
    ]
    for number in range(60):
        connection = chance.choice(connections)
        payload = chance.randbytes(chance.randrange(KEEP_FROM_BYTES, 4 * STEP_BYTES))
        connection.receive(memoryview(len(payload).to_bytes(4, "big") + payload[:100]))
        target = connection.wanted()
        assert target is not None, number
        target[:] = payload[100:]
        size_bytes = len(target)
        del target
        connection.filled(size_bytes)
        assert all(bytes(view) == content for view, content in service.kept)
    assert buffers.kept_bytes <= KEPT_MAX_BYTES
