"""The consumer: explicit partitions, positions set by the caller, records or raw batches.

It stores nothing in any broker. It has no thread of its own: the network moves, and prefetches, only while
`poll` is called. Groups that share partitions are `client.groups`.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from operator import index
from typing import Final, TypeVar
from uuid import UUID

from headrace.client.calls import EARLIEST, LATEST
from headrace.client.cluster import TopicPartition
from headrace.client.consumer_settings import OnCorrupt, Reset, check_reading, fetch_settings
from headrace.client.errors import (
    BrokerError,
    ClientError,
    CorruptRecordsError,
    MetadataTimeoutError,
    UnknownTopicError,
)
from headrace.client.fetching import Fetcher
from headrace.client.lifecycle import Client
from headrace.client.network import Network
from headrace.client.obstacles import obstacle
from headrace.client.partition_fetch import PartitionFetch
from headrace.client.unpacking import ConsumerRecord, FetchedBatches, Unpacker
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import DECODE_LIMIT_BYTES
from headrace.wire.timestamps import INT64_MAX

logger = logging.getLogger(__name__)

MAX_POLL_RECORDS: Final = 1000

_T = TypeVar("_T")


class Consumer(Client):
    """Reads the assigned partitions from positions set by the caller. For one thread at a time.

    Offsets may be ordinary Kafka offsets or headrace's byte addresses, including positions inside a batch.
    For a partition without a valid position `auto_offset_reset` decides: "latest", "earliest", or "error"
    (`OffsetOutOfRangeError`). A log that has lost what was read, after an unclean election, is read on from
    where it differs, with a warning in the log; with "error", `LogTruncationError` is raised. Records of
    control batches are not returned. Isolation is read-uncommitted.
    A damaged batch is fetched once more, then `on_corrupt` decides: "raise" (`CorruptRecordsError`, later
    `poll`s raise it again until the batch is mended or the position is moved behind it), or "skip": a warning
    in the log names it, and reading continues behind it.

    `fetch_max_bytes` bounds one answer, `max_partition_fetch_bytes` what it has of one partition; its first
    batch may be larger. `buffer_memory_bytes` bounds what is fetched ahead from all leaders together,
    `decode_limit_bytes` the records of one batch, decompressed. `clock` is monotonic, in seconds.
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
        auto_offset_reset: Reset = "latest",
        check_crcs: bool = True,
        on_corrupt: OnCorrupt = "raise",
        decode_limit_bytes: int = DECODE_LIMIT_BYTES,
        request_timeout_ms: float = 30_000,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Raises `ValueError` naming an invalid option. Connects in `poll`, not here."""
        super().__init__("consumer")
        check_reading(
            on_corrupt=on_corrupt, max_poll_records=max_poll_records, request_timeout_ms=request_timeout_ms
        )
        settings = fetch_settings(
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            buffer_memory_bytes=buffer_memory_bytes,
            auto_offset_reset=auto_offset_reset,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        )
        self._clock = clock
        self._max_poll_records = max_poll_records
        self._network = Network(
            bootstrap, client_id=client_id, request_timeout_ms=request_timeout_ms, clock=clock, draw=draw
        )
        self._skips_corrupt = on_corrupt == "skip"
        self.corrupt_batches_skipped = 0
        """How many damaged batches `on_corrupt="skip"` has left out so far."""
        self._unpacker = Unpacker(check_crcs=check_crcs, decode_limit_bytes=decode_limit_bytes)
        self._fetcher = Fetcher(self._network, settings, clock, draw, forget=self._unpacker.forget)
        self._in_use = threading.Lock()
        self._taken_from: list[tuple[PartitionFetch, int | None]] = []  # by this poll, and where it began
        self._woken = False
        self._errors_first = False
        self._rotation = 0

    # --- partitions and positions ---

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions from now on. Those assigned before keep their positions."""
        self._check_usable()
        self._fetcher.assign(sorted({(topic, int(partition)) for topic, partition in partitions}))
        self._unpacker.keep_only(self._fetcher.partitions)

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._fetcher.partitions)

    def seek(self, topic: str, partition: int, offset: int, *, topic_id: UUID = NO_UUID) -> None:
        """Continues at `offset`. Whether the log holds it is checked only when it is fetched.

        `topic_id`: of the topic in which the offset is, if that is known. If the topic was made again under
        its name since, `auto_offset_reset` decides, as for one that is made again while it is read.
        """
        offset = _as_int64("an offset", offset)
        if offset < 0:
            raise ValueError(
                f"an offset cannot be negative: {offset}; use seek_to_beginning or seek_to_end instead"
            )
        self._move(topic, partition, offset, None)
        self._state(topic, partition).topic_id = topic_id

    def seek_to_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> None:
        """Continues at the first batch that may hold a record with this timestamp or a later one.

        Without such a batch, continues at the end, as it was when that was looked up.
        """
        timestamp_ms = _as_int64("a timestamp in ms", timestamp_ms)
        # Nothing is older than 1970, and brokers take -1 for the log's end.
        self._move(topic, partition, None, max(0, timestamp_ms))

    def seek_to_beginning(self, topic: str, partition: int) -> None:
        self._move(topic, partition, None, EARLIEST)

    def seek_to_end(self, topic: str, partition: int) -> None:
        self._move(topic, partition, None, LATEST)

    def pause(self, topic: str, partition: int) -> None:
        """Returns and fetches nothing of the partition until `resume`.

        What was fetched ahead is kept, unless it fills the memory: then it is fetched again later.
        """
        self._state(topic, partition).paused = True

    def resume(self, topic: str, partition: int) -> None:
        self._state(topic, partition).paused = False

    def position(self, topic: str, partition: int, *, timeout_s: float = 30.0) -> int:
        """Returns the offset after the last returned record; looks it up first if it is unknown.

        Raises `MetadataTimeoutError` if that takes longer than `timeout_s`, or `OffsetOutOfRangeError`.
        """
        state = self._state(topic, partition)
        until_s = self._clock() + timeout_s
        while state.position is None:
            if state.error is not None:
                raise state.error.with_traceback(None)  # it would grow with each call
            if self._clock() >= until_s:
                found = obstacle(self._network, topic, partition)
                self._check_time(until_s, f"{topic}-{partition}: no position after {timeout_s:g} s", found)
            self._go_on(self._wait_s(until_s))
        return state.position

    def topic_id(self, topic: str, partition: int) -> UUID:
        """Returns the id of the topic in which the position is; zero if it is not known, or not yet."""
        return self._state(topic, partition).topic_id

    def high_watermark(self, topic: str, partition: int) -> int | None:
        """Returns the high watermark of the latest fetch; None before the first."""
        known = self._state(topic, partition).high_watermark
        return None if known < 0 else known

    def high_watermark_age_s(self, topic: str, partition: int) -> float:
        """Returns how old the high watermark may be: since its fetch was sent; infinite before the first."""
        return self._clock() - self._state(topic, partition).high_watermark_s

    def fetch_failures(self, topic: str, partition: int) -> int:
        """Returns how many fetches of the partition have failed in a row. They are retried silently."""
        return self._state(topic, partition).failures

    def interruptions(self, topic: str, partition: int) -> int:
        """Returns how many fetches of the partition have failed since it was assigned: after one, the log may
        have another leader, or have lost its end.
        """
        return self._state(topic, partition).interruptions

    def partitions_for(self, topic: str, *, timeout_s: float = 30.0) -> list[int]:
        """Returns the topic's partitions.

        Raises `UnknownTopicError`, `BrokerError` (the topic may not be read), or `MetadataTimeoutError` if no
        broker tells it.
        """
        self._check_usable()
        until_s = self._clock() + timeout_s
        self._network.add_topics([topic])
        self._network.request_update()
        version_before = self._network.cluster_version
        while True:
            is_newer = self._network.cluster_version != version_before
            # The first answer may be to a request that did not name the topic yet.
            info = self._network.cluster.topics.get(topic) if is_newer else None
            if info is not None and info.error is ErrorCode.NONE:
                return list(info.partitions)
            if info is not None and info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if all(topic != assigned for assigned, _ in self._fetcher.partitions):
                    self._network.forget_topic(topic)
                raise UnknownTopicError(f"there is no topic {topic!r}")
            if info is not None and not info.error.retriable:
                raise BrokerError(info.error, f"topic {topic!r}")
            self._check_time(until_s, f"no metadata of topic {topic!r} after {timeout_s:g} s")
            self._go_on(max(0.0, until_s - self._clock()))

    def _go_on(self, wait_s: float) -> None:
        try:
            self._fetcher.send()
            self._network.poll(wait_s)
        except BaseException:
            self._begin_anew()
            raise

    def _begin_anew(self) -> None:
        """Of a signal's handler: it may have raised anywhere, also where an answer was half handled."""
        self._fetcher.begin_anew()
        self._network.restart()

    def _check_time(self, until_s: float, problem: str, cause: str | None = None) -> None:
        if self._clock() >= until_s:
            cause = cause or str(self._network.last_error or "no broker responded")
            raise MetadataTimeoutError(f"{problem}: {cause}")

    # --- reading ---

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Returns records, in order within each partition; waits at most `timeout_s` for the first.

        At most `max_records` (default: `max_poll_records`); none after `wakeup`, too. Raises
        `CorruptRecordsError`, `OffsetOutOfRangeError`, `BrokerError` (the topic may not be read),
        `ClosedError`; an error does not move a position past the last returned record.
        """
        limit = self._max_poll_records if max_records is None else max_records
        return self._poll(timeout_s, lambda: self._take(self._unpacker.add_records, limit))

    def poll_batches(self, timeout_s: float) -> list[FetchedBatches]:
        """Like `poll`, but returns whole batches as they were fetched, control batches included."""
        return self._poll(timeout_s, lambda: self._take(self._unpacker.add_batches, sys.maxsize))

    def wakeup(self) -> None:
        """Makes a `poll` that waits in another thread, or else the next one, return at once. Thread-safe."""
        self._woken = True
        self._network.wake()

    def _poll(self, timeout_s: float, take: Callable[[], list[_T]]) -> list[_T]:
        self._check_usable()
        self._check_unused("another thread is using this consumer; use one consumer per thread")
        self._taken_from.clear()
        try:
            with self._in_use:  # alone: a signal's handler may raise between `acquire()` and a `try`
                return self._poll_until(self._clock() + timeout_s, take)
        except ClientError:
            raise
        except BaseException:
            for state, position in self._taken_from:  # what was taken is returned to nobody
                state.position = position
            self._begin_anew()
            raise

    def _poll_until(self, until_s: float, take: Callable[[], list[_T]]) -> list[_T]:
        # A poll with records, or without a timeout, never comes to the errors below: the next one begins so.
        errors_first, self._errors_first = self._errors_first, False
        self._fetcher.resume()
        if errors_first:
            self._raise_errors()
        while True:
            taken = take()
            self._fetcher.send()
            if taken or self._woken or self._clock() >= until_s:
                self._errors_first = True
                self._woken = False
                self._network.poll(0.0)
                return taken
            self._raise_errors()
            self._network.poll(self._wait_s(until_s))
            self._check_usable()

    def _check_unused(self, problem: str) -> None:
        if self._in_use.locked():
            raise RuntimeError(problem)

    def _wait_s(self, until_s: float) -> float:
        retry_s = self._fetcher.next_retry_s()
        return max(0.0, (until_s if retry_s is None else min(until_s, retry_s)) - self._clock())

    def _raise_errors(self) -> None:
        for key, state in self._fetcher.partitions.items():
            if state.error is not None and not state.pieces and not self._unpacker.is_open(key):
                error, state.error = state.error, None
                # Where each poll ends with some partition's error, the others' answers are read here alone.
                self._network.poll(0.0)
                raise error

    def _take(self, add: Callable[[PartitionFetch, list[_T], int], None], limit: int) -> list[_T]:
        """Takes from every partition that has fetched data, starting with another one each time."""
        states = [state for state in self._fetcher.partitions.values() if state.pieces and not state.paused]
        self._taken_from = [(state, state.position) for state in states]
        self._rotation += 1
        start = self._rotation % len(states) if states else 0
        taken: list[_T] = []
        for state in states[start:] + states[:start]:
            while state.pieces and len(taken) < limit:
                try:
                    add(state, taken, limit)
                except CorruptRecordsError as error:
                    is_passed = self._pass(state, error)
                    if not is_passed and taken:
                        return taken  # the next poll raises it
                    if not is_passed:
                        self._fetcher.fetch_again(state)  # its broker may mend it, or another one may lead
                        raise
        return taken

    def _pass(self, state: PartitionFetch, error: CorruptRecordsError) -> bool:
        """Leaves a bad batch out if that is allowed and possible; first it is fetched once more.

        Returns False if the error has to be raised.
        """
        self._unpacker.forget((state.topic, state.partition))
        if state.suspect != error.offset:
            state.suspect, state.refusals = error.offset, 0
            state.rewind()
            return True
        if not self._skips_corrupt or error.next_offset is None:
            return False
        self.corrupt_batches_skipped += 1
        logger.warning(
            "%s-%d: the batch at offsets %d to %d is left out: %s",
            state.topic,
            state.partition,
            error.offset,
            error.next_offset,
            error.problem,
        )
        state.move_to(error.next_offset)
        return True

    # --- closing ---

    def close(self) -> None:
        """May be called again. Raises `RuntimeError` while another thread is in `poll`: `wakeup` it first."""
        if self._forked or self._network.closed:
            return
        self._check_unused("another thread is in poll; call wakeup, wait until it returns, then close")
        with self._in_use:
            self._network.close()

    @property
    def _is_closed(self) -> bool:
        return self._network.closed

    def _state(self, topic: str, partition: int) -> PartitionFetch:
        self._check_usable()
        try:
            return self._fetcher.partitions[topic, partition]
        except KeyError:
            raise ValueError(f"{topic}-{partition} is not assigned; call assign first") from None

    def _move(self, topic: str, partition: int, offset: int | None, timestamp_ms: int | None) -> None:
        self._state(topic, partition).move_to(offset, timestamp_ms)
        self._unpacker.forget((topic, partition))


def _as_int64(what: str, value: object) -> int:
    """Raises what names the value: it would be a `struct.error` in a later `poll`, and end all fetches."""
    try:
        number = index(value)  # type: ignore[arg-type]  # what has no index is refused
    except TypeError:
        raise TypeError(f"{what} must be an int, not {value!r}") from None
    if number > INT64_MAX:
        raise ValueError(f"{what} must fit in 64 bits, {number} does not")
    return number
