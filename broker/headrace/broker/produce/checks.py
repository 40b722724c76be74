"""Where produced batches are opened: at once on the event loop, or on threads if that would delay other
clients.

Owns the loop's budget for opening batches in one wakeup; `opening_threads` owns the threads. While a request
is opened on a thread, its connection serves nothing else (`ClientConnection.hold`), so the order of its
requests stays, and each connection has one request that waits for the threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.broker.errors import Refused
from headrace.broker.loop import EventLoop
from headrace.broker.produce.opening import Opened, check_opened, timestamp_bounds_ms, unpack
from headrace.broker.produce.opening_threads import Found, OpeningThreads, Unopened
from headrace.broker.settings.config import TopicConfig
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.checking import is_plain_record
from headrace.wire.checking_fast import make_scanner
from headrace.wire.compression import Codec
from headrace.wire.errors import CorruptBatchError
from headrace.wire.records import RECORD_SIZE_MIN_BYTES

# Opening takes about 2 ms per MiB: a batch of the default max.message.bytes, and a little more, never waits.
INLINE_BATCH_MAX_BYTES: Final = 1280 * 1024
INLINE_WAKEUP_MAX_BYTES: Final = 4 * 1024 * 1024
# A record costs as much time as this many unpacked bytes: by the fast scanner, and by the one in Python.
FAST_RECORD_COST_BYTES: Final = 16
SLOW_RECORD_COST_BYTES: Final = 1024
PACKED_COST_MIN_BYTES: Final = 64 * 1024  # what a compressed batch costs at least, whatever its size
SANE_BASE_MAX_MS: Final = 2**48


class RecordChecks:
    """Used on the loop's thread, except for the jobs that it gives to its own threads."""

    def __init__(self, loop: EventLoop) -> None:
        self._threads = OpeningThreads(loop.post)
        self._scan, is_fast = make_scanner()
        self._record_cost_bytes = FAST_RECORD_COST_BYTES if is_fast else SLOW_RECORD_COST_BYTES
        self._left_bytes = INLINE_WAKEUP_MAX_BYTES
        loop.at_wakeup_end(self._renew)

    @property
    def unfinished(self) -> int:
        """Requests whose batches are being opened on a thread, or wait for that."""
        return self._threads.unfinished

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

    def open_later(
        self, client: str, unopened: list[Unopened], now_ms: int, done: Callable[[Found], None]
    ) -> bool:
        """See `OpeningThreads.open`."""
        return self._threads.open(client, unopened, now_ms, done)

    def stop(self) -> None:
        """Ends the threads: see `OpeningThreads.stop`."""
        self._threads.stop()
