"""Where produced batches are opened: at once on the event loop, or on threads if that would delay other
clients.

Owns the loop's budget for opening batches in one wakeup, and the threads. `opening` does the work itself.
While a request is opened on a thread, its connection serves nothing else (`ClientConnection.hold`), so the
order of its requests stays, and each connection has one request in the threads' queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.broker.errors import Refused
from headrace.broker.loop import EventLoop
from headrace.broker.produce.opening import (
    Opened,
    check_opened,
    open_batch,
    timestamp_bounds_ms,
    unpack,
)
from headrace.broker.settings.config import TopicConfig
from headrace.broker.workers import Workers
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.checking import is_plain_record
from headrace.wire.checking_fast import make_scanner
from headrace.wire.compression import Codec
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.records import RECORD_SIZE_MIN_BYTES

logger = logging.getLogger(__name__)

THREADS: Final = 2
# Opening takes about 2 ms per MiB: a batch of the default max.message.bytes, and a little more, never waits.
INLINE_BATCH_MAX_BYTES: Final = 1280 * 1024
INLINE_WAKEUP_MAX_BYTES: Final = 4 * 1024 * 1024
# A record costs as much time as this many unpacked bytes: by the fast scanner, and by the one in Python.
FAST_RECORD_COST_BYTES: Final = 16
SLOW_RECORD_COST_BYTES: Final = 1024
PACKED_COST_MIN_BYTES: Final = 64 * 1024  # what a compressed batch costs at least, whatever its size
SANE_BASE_MAX_MS: Final = 2**48
UNFINISHED_MAX_BYTES: Final = 256 * 1024 * 1024  # of requests that wait for the threads
UNCOMPRESSED_MAX_BYTES: Final = 16 * 1024 * 1024  # of one request, to be stored uncompressed


class Unopened(NamedTuple):
    """A batch that waits to be opened, and the place of its partition in the request."""

    place: int
    batch: memoryview
    header: BatchHeader
    config: TopicConfig


Found = dict[int, "Opened | Refused"]
"""What became of batches, by their places."""


class RecordChecks:
    """Used on the loop's thread, except for the jobs that it gives to its own threads."""

    def __init__(self, loop: EventLoop) -> None:
        self._post = loop.post
        self._scan, is_fast = make_scanner()
        self._record_cost_bytes = FAST_RECORD_COST_BYTES if is_fast else SLOW_RECORD_COST_BYTES
        self._scanners = threading.local()
        self._threads: Workers | None = None
        self._left_bytes = INLINE_WAKEUP_MAX_BYTES
        self.unfinished = 0
        """Requests whose batches are being opened on a thread."""
        self._unfinished_bytes = 0
        loop.at_wakeup_end(self._renew)

    def _renew(self) -> None:
        self._left_bytes = INLINE_WAKEUP_MAX_BYTES

    def is_valid(
        self, frame: memoryview, at: int, end: int, header: BatchHeader, config: TopicConfig, now_ms: int
    ) -> bool:
        """Whether the batch `frame[at:end]` may be stored exactly as it is; decided at once. False, too, if
        that is not cheap enough: `open_now` and `open_later` say more.
        """
        base_ms = header.base_timestamp_ms
        if not -1 <= base_ms < SANE_BASE_MAX_MS:
            return False
        count = header.record_count
        start = at + HEADER_SIZE_BYTES
        if count == 1 and not header.attributes and base_ms >= 0 and is_plain_record(frame, start, end):
            age_ms = now_ms - base_ms
            is_within = -config.timestamp_after_max_ms <= age_ms <= config.timestamp_before_max_ms
            return is_within and header.max_timestamp_ms == base_ms
        limit_bytes = self._inline_limit_bytes(header)
        if not limit_bytes:
            return False
        records = frame[start:end]
        if header.attributes:
            try:
                records = unpack(frame[at:], header, limit_bytes)
            except CorruptBatchError:
                self._left_bytes -= limit_bytes
                return False
            self._left_bytes -= max(PACKED_COST_MIN_BYTES, len(records))
        if not self._may_scan(records, count):
            return False
        low_ms, high_ms = timestamp_bounds_ms(config, now_ms)
        deltas = (low_ms - base_ms, high_ms - base_ms, -1 - base_ms)
        valid, scanned, latest_ms = self._scan(records, count, deltas)
        return valid == count and scanned == len(records) and header.max_timestamp_ms - base_ms == latest_ms

    def open_now(self, unopened: list[Unopened], now_ms: int) -> tuple[Found, list[Unopened]]:
        """Opens batches as long as the loop has time for it; returns what became of them, and those left
        over.
        """
        found: Found = {}
        left: list[Unopened] = []
        for each in unopened:
            outcome = self._open_inline(each, now_ms)
            if outcome is None:
                left.append(each)
            else:
                found[each.place] = outcome
        return found, left

    def _open_inline(self, unopened: Unopened, now_ms: int) -> Opened | Refused | None:
        """Returns None if a thread must do it."""
        _, batch, header, config = unopened
        limit_bytes = self._inline_limit_bytes(header)
        if not limit_bytes:
            return None
        try:
            records = unpack(batch, header, limit_bytes)
        except CorruptBatchError:
            self._left_bytes -= limit_bytes
            return None  # invalid, or too large for the loop
        if header.codec is not Codec.NONE:
            self._left_bytes -= max(PACKED_COST_MIN_BYTES, len(records))
        if not self._may_scan(records, header.record_count):
            return None
        try:
            return check_opened(records, header, config, now_ms, self._scan)
        except Refused as refused:
            return refused.kept()

    def _inline_limit_bytes(self, header: BatchHeader) -> int:
        """Returns how much a batch may unpack to on the loop; 0 if the loop has no time for it."""
        is_cheap = header.size_bytes <= INLINE_BATCH_MAX_BYTES and self._left_bytes > 0
        return INLINE_BATCH_MAX_BYTES if is_cheap else 0

    def _may_scan(self, records: memoryview, count: int) -> bool:
        """Charges a scan to the loop's budget; False if it would take too long."""
        cost_bytes = min(count, len(records) // RECORD_SIZE_MIN_BYTES + 1) * self._record_cost_bytes
        if cost_bytes > 2 * INLINE_BATCH_MAX_BYTES:
            return False
        self._left_bytes -= cost_bytes
        return True

    def open_later(self, unopened: list[Unopened], now_ms: int, done: Callable[[Found], None]) -> bool:
        """Opens batches on a thread, then calls `done` on the loop's. They must not change meanwhile.

        False if too much waits for the threads already: nothing is done.
        """
        size_bytes = sum(len(each.batch) for each in unopened)
        if self.unfinished and self._unfinished_bytes + size_bytes > UNFINISHED_MAX_BYTES:
            return False
        if self._threads is None:
            self._threads = Workers("records", self._post, THREADS)
        self.unfinished += 1
        self._unfinished_bytes += size_bytes

        def finish(found: Found | None, error: Exception | None) -> None:
            self.unfinished -= 1
            self._unfinished_bytes -= size_bytes
            if found is None:
                logger.error("opening batches failed", exc_info=error)
                problem = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the batch could not be checked")
                found = {each.place: problem for each in unopened}
            done(found)

        self._threads.submit(lambda: self._open_all(unopened, now_ms), finish)
        return True

    def _open_all(self, unopened: list[Unopened], now_ms: int) -> Found:
        """Called on a thread, which has a scanner of its own."""
        scan = getattr(self._scanners, "scan", None)
        if scan is None:
            scan = self._scanners.scan = make_scanner()[0]
        found: Found = {}
        kept_bytes = 0
        for place, batch, header, config in unopened:
            try:
                opened = open_batch(batch, header, config, now_ms, scan)
            except Refused as refused:
                found[place] = refused.kept()
                continue
            kept_bytes += 0 if opened.records is None else len(opened.records)
            found[place] = opened if kept_bytes <= UNCOMPRESSED_MAX_BYTES else _too_much_uncompressed()
        return found

    def stop(self) -> None:
        """Finishes what is queued, and ends the threads."""
        if self._threads is not None:
            self._threads.stop()


def _too_much_uncompressed() -> Refused:
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        "batches with more records than bytes are stored uncompressed, and those of one request take more "
        f"than {UNCOMPRESSED_MAX_BYTES} bytes: send fewer at once",
    )
