"""The consumer: explicit partitions, positions of one's own, records or raw batches.

Owns giving out what was fetched.

It keeps nothing in any broker and belongs to one thread; no thread runs behind it: the network moves while
`poll` is called, and prefetches meanwhile. Groups that share partitions are `client.groups`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeVar

from headrace.client import forks
from headrace.client.backoff import Backoff
from headrace.client.errors import (
    ClosedError,
    CorruptRecordsError,
    ForkedError,
    MetadataTimeoutError,
    UnknownTopicError,
)
from headrace.client.fetching import EARLIEST, LATEST, Fetcher, FetchSettings, Key, PartitionFetch, Piece
from headrace.client.network import Network
from headrace.wire.batch import BatchHeader, hop, read_header, verify
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.records import DECODE_LIMIT_BYTES, Header, decode_records

MAX_POLL_RECORDS: Final = 1000

_T = TypeVar("_T")

_RESET: Final = {"earliest": EARLIEST, "latest": LATEST, "error": None}


class ConsumerRecord(NamedTuple):
    """One record and where it was. Time in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


class FetchedBatches(NamedTuple):
    """Whole batches of one partition, exactly as the log holds them, one after the other.

    `base_address` is the first one's base offset, `end_address` what to ask for after the last one. The first
    batch may begin before the position that was asked for, if that was inside it.
    """

    topic: str
    partition: int
    buffer: memoryview
    base_address: int
    end_address: int
    high_watermark: int


class _Decoded:
    """The first batch of a partition while its records are given out."""

    __slots__ = ("header", "left", "records")

    def __init__(self, header: BatchHeader, records: list[ConsumerRecord]) -> None:
        self.header = header
        self.left = len(records)
        self.records = iter(records)


class Consumer:
    """Reads partitions it is told to, from positions it is told to.

    A context manager; for one thread at a time.

    Offsets may be ordinary Kafka offsets or headrace's byte addresses, positions inside a batch too.
    Without a valid position `auto_offset_reset` decides: "latest", "earliest", or "error"
    (`OffsetOutOfRangeError`). Records of control batches are not given out. Isolation is read-uncommitted.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str = "headrace-consumer",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        buffer_memory_bytes: int = 64 * 1024 * 1024,
        max_poll_records: int = MAX_POLL_RECORDS,
        auto_offset_reset: Literal["earliest", "latest", "error"] = "latest",
        check_crcs: bool = True,
        decode_limit_bytes: int = DECODE_LIMIT_BYTES,
        request_timeout_ms: float = 30_000,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Raises `ValueError`. Nothing is connected yet: `poll` does that."""
        if auto_offset_reset not in _RESET:
            raise ValueError(f"auto_offset_reset is one of {', '.join(_RESET)}, not {auto_offset_reset!r}")
        if max_poll_records < 1 or max_partition_fetch_bytes < 1 or buffer_memory_bytes < 1:
            raise ValueError(
                "max_poll_records, max_partition_fetch_bytes and buffer_memory_bytes must be at least 1"
            )
        self._clock = clock
        self._max_poll_records = max_poll_records
        self._check_crcs = check_crcs
        self._decode_limit_bytes = decode_limit_bytes
        self._network = Network(
            bootstrap, client_id=client_id, request_timeout_ms=request_timeout_ms, clock=clock, draw=draw
        )
        settings = FetchSettings(
            min_bytes=fetch_min_bytes,
            max_wait_ms=fetch_max_wait_ms,
            max_bytes=fetch_max_bytes,
            partition_max_bytes=max_partition_fetch_bytes,
            buffer_memory_bytes=buffer_memory_bytes,
            reset=_RESET[auto_offset_reset],
            backoff=Backoff(retry_backoff_ms, max(retry_backoff_ms, retry_backoff_max_ms)),
        )
        self._fetcher = Fetcher(self._network, settings, clock, draw)
        self._decoded: dict[Key, _Decoded] = {}
        self._in_use = threading.Lock()
        self._woken = False
        self._turn = 0
        self._forked = False
        forks.watch(self)

    # what and where

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these from now on. Those read already go on where they are."""
        self._check_usable()
        keys = sorted({(topic, int(partition)) for topic, partition in partitions})
        self._fetcher.assign(keys)
        self._decoded = {key: left for key, left in self._decoded.items() if key in self._fetcher.partitions}

    @property
    def assignment(self) -> list[Key]:
        return list(self._fetcher.partitions)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`. Whether it is in the log turns out when it is read."""
        if offset < 0:
            raise ValueError(
                f"an offset is not negative: {offset}; there are seek_to_beginning and seek_to_end"
            )
        self._move(topic, partition, offset, None)

    def seek_to_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> None:
        """Go on at the first batch that may hold a record as young as that; at the end if there is none."""
        self._move(topic, partition, None, timestamp_ms)

    def seek_to_beginning(self, topic: str, partition: int) -> None:
        self._move(topic, partition, None, EARLIEST)

    def seek_to_end(self, topic: str, partition: int) -> None:
        self._move(topic, partition, None, LATEST)

    def pause(self, topic: str, partition: int) -> None:
        """Give out nothing of it, and fetch no more, until `resume`."""
        self._state(topic, partition).paused = True

    def resume(self, topic: str, partition: int) -> None:
        self._state(topic, partition).paused = False

    def position(self, topic: str, partition: int, *, timeout_s: float = 30.0) -> int:
        """The offset to ask for next: after the last record given out. Looked up first if need be.

        Raises `MetadataTimeoutError` if that takes longer than `timeout_s`, or `OffsetOutOfRangeError`.
        """
        state = self._state(topic, partition)
        until_s = self._clock() + timeout_s
        while state.position is None:
            if state.error is not None:
                raise state.error
            if self._clock() >= until_s:
                reason = self._network.last_error or "no broker answered"
                raise MetadataTimeoutError(
                    f"{topic}-{partition}: no position after {timeout_s:g} s: {reason}"
                )
            self._fetcher.send()
            self._network.poll(self._wait_s(until_s))
        return state.position

    def high_watermark(self, topic: str, partition: int) -> int | None:
        """The end of what may be read, as of the latest fetch; None before the first."""
        found = self._state(topic, partition).high_watermark
        return None if found < 0 else found

    def partitions_for(self, topic: str, *, timeout_s: float = 30.0) -> list[int]:
        """The topic's partitions. Raises `UnknownTopicError`, or `MetadataTimeoutError` if nobody answers."""
        self._check_usable()
        until_s = self._clock() + timeout_s
        self._network.add_topics([topic])
        self._network.request_update()
        seen = self._network.cluster_version
        while self._network.cluster_version == seen:
            if self._clock() >= until_s:
                reason = self._network.last_error or "no broker answered"
                raise MetadataTimeoutError(f"topic {topic!r} is not known after {timeout_s:g} s: {reason}")
            self._network.poll(max(0.0, until_s - self._clock()))
        info = self._network.cluster.topics.get(topic)
        if info is None or info.error is not ErrorCode.NONE:
            raise UnknownTopicError(f"there is no topic {topic!r}")
        return list(info.partitions)

    # reading

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records, in order within each partition, at most `max_poll_records`; waits for the first at most
        `timeout_s`.

        Empty if there was none, or `wakeup` was called. Raises `CorruptRecordsError`,
        `OffsetOutOfRangeError`, `BrokerError` (the topic may not be read), `ClosedError`; positions are
        then as after the last records given.
        """
        limit = self._max_poll_records if max_records is None else max_records
        return self._poll(timeout_s, lambda: self._take_records(limit))

    def poll_batches(self, timeout_s: float) -> list[FetchedBatches]:
        """What was fetched, undecoded and verbatim, whole batches only, control batches too.

        Otherwise as `poll`.
        """
        return self._poll(timeout_s, self._take_batches)

    def wakeup(self) -> None:
        """Let a `poll` that waits in another thread, or else the next one, return at once.

        Any thread may call it.
        """
        self._woken = True
        self._network.wake()

    def _poll(self, timeout_s: float, take: Callable[[], list[_T]]) -> list[_T]:
        self._check_usable()
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError("a consumer belongs to one thread at a time")
        try:
            until_s = self._clock() + timeout_s
            while True:
                taken = take()
                self._fetcher.send()
                if taken or self._woken or self._clock() >= until_s:
                    self._woken = False
                    self._network.poll(0.0)
                    return taken
                self._raise_errors()
                self._network.poll(self._wait_s(until_s))
                self._check_usable()
        finally:
            self._in_use.release()

    def _wait_s(self, until_s: float) -> float:
        due_s = self._fetcher.next_due_s()
        return max(0.0, (until_s if due_s is None else min(until_s, due_s)) - self._clock())

    def _raise_errors(self) -> None:
        for key, state in self._fetcher.partitions.items():
            if state.error is not None and not state.pieces and key not in self._decoded:
                error, state.error = state.error, None
                raise error

    def _readable(self) -> list[PartitionFetch]:
        """The partitions that have something, another one first each time."""
        states = [state for state in self._fetcher.partitions.values() if state.pieces and not state.paused]
        self._turn += 1
        start = self._turn % len(states) if states else 0
        return states[start:] + states[:start]

    def _take_records(self, limit: int) -> list[ConsumerRecord]:
        taken: list[ConsumerRecord] = []
        for state in self._readable():
            while state.pieces and len(taken) < limit:
                try:
                    self._take_from_batch(state, taken, limit)
                except CorruptRecordsError:
                    if taken:
                        return taken  # it comes up again at the next poll
                    raise
        return taken

    def _take_from_batch(self, state: PartitionFetch, taken: list[ConsumerRecord], limit: int) -> None:
        """Records of the partition's first batch; step over the batch once it is used up."""
        key = (state.topic, state.partition)
        decoded = self._decoded.get(key)
        if decoded is None:
            decoded = self._decoded[key] = self._decode(state, state.pieces[0])
        fresh = list(islice(decoded.records, limit - len(taken)))
        if fresh:
            taken += fresh
            state.position = fresh[-1].offset + 1
            decoded.left -= len(fresh)
        if not decoded.left:
            state.position = max(state.position or 0, decoded.header.next_offset)
            del self._decoded[key]
            self._step(state, decoded.header.size_bytes)

    @staticmethod
    def _step(state: PartitionFetch, size_bytes: int) -> None:
        piece = state.pieces[0]
        piece.at += size_bytes
        if piece.at >= len(piece.buffer):
            state.pieces.popleft()

    def _decode(self, state: PartitionFetch, piece: Piece) -> _Decoded:
        header = self._check(state, piece)
        position = state.position or 0
        if header.is_control:
            return _Decoded(header, [])
        try:
            records = decode_records(piece.buffer, piece.at, limit_bytes=self._decode_limit_bytes)
        except CorruptBatchError as error:
            raise CorruptRecordsError(state.topic, state.partition, position, str(error)) from None
        topic, partition = state.topic, state.partition
        make = ConsumerRecord._make
        return _Decoded(header, [make((topic, partition, *r)) for r in records if r.offset >= position])

    def _check(self, state: PartitionFetch, piece: Piece) -> BatchHeader:
        try:
            header = read_header(piece.buffer, piece.at)
            if self._check_crcs:
                verify(piece.buffer, piece.at, header)
        except CorruptBatchError as error:
            raise CorruptRecordsError(state.topic, state.partition, state.position or 0, str(error)) from None
        return header

    def _take_batches(self) -> list[FetchedBatches]:
        taken: list[FetchedBatches] = []
        for state in self._readable():
            while state.pieces:
                piece = state.pieces[0]
                rest = piece.buffer[piece.at :]
                try:
                    headers = [self._check(state, piece)]
                    for at, header in hop(rest, headers[0].size_bytes):
                        if self._check_crcs:
                            verify(rest, at, header)
                        headers.append(header)
                except (CorruptBatchError, CorruptRecordsError) as error:
                    if taken:
                        return taken
                    raise CorruptRecordsError(
                        state.topic, state.partition, state.position or 0, str(error)
                    ) from None
                self._decoded.pop((state.topic, state.partition), None)
                state.pieces.popleft()
                state.position = headers[-1].next_offset
                taken.append(
                    FetchedBatches(
                        topic=state.topic,
                        partition=state.partition,
                        buffer=rest,
                        base_address=headers[0].base_offset,
                        end_address=headers[-1].next_offset,
                        high_watermark=piece.high_watermark,
                    )
                )
        return taken

    # end

    def close(self) -> None:
        """May be called again; `RuntimeError` while another thread is in `poll` (`wakeup` it first)."""
        if self._forked or self._network.closed:
            return
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError("another thread is in poll; call wakeup, let it return, then close")
        try:
            self._network.close()
        finally:
            self._in_use.release()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def after_fork_in_child(self) -> None:
        self._forked = True

    def _check_usable(self) -> None:
        if self._forked:
            raise ForkedError("this consumer was made before os.fork; make a new one in the child")
        if self._network.closed:
            raise ClosedError("the consumer is closed")

    def _state(self, topic: str, partition: int) -> PartitionFetch:
        self._check_usable()
        try:
            return self._fetcher.partitions[topic, partition]
        except KeyError:
            raise ValueError(f"{topic}-{partition} is not assigned; call assign first") from None

    def _move(self, topic: str, partition: int, offset: int | None, timestamp_ms: int | None) -> None:
        self._state(topic, partition).move_to(offset, timestamp_ms)
        self._decoded.pop((topic, partition), None)
