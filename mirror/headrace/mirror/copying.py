"""The state of one partition's copy: what to fetch next, what to append next, when to stop. Pure; no I/O,
no clock.

A copy first has to be *located*: where it ends at the target, whether the source still fits to it. Then it
fetches ahead of what is appended, within a bound, and appends in order. Any trouble makes it be located
again, after all appends in flight are answered, so nothing is believed but the target's own end. What
waiting cannot mend halts it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from headrace.client.backoff import Backoff
from headrace.replication.gaps import AcceptedGap
from headrace.replication.pull import Fetched, ReplicationError, check_batches

AHEAD_MAX_BYTES: Final = 12 * 1024 * 1024  # fetched and not yet acknowledged by the target, of one partition
APPENDS_IN_FLIGHT_MAX: Final = 4
TROUBLE_BACKOFF: Final = Backoff(first_ms=100, max_ms=5_000)
HALTED_RECHECK_S: Final = 60.0
GAP_RECHECK_S: Final = 2.0  # a gap that is accepted must be passed before it has grown


class State(StrEnum):
    LOCATING = "locating"
    COPYING = "copying"
    HALTED = "halted"


class Chunk(NamedTuple):
    """Whole batches to append at `address`. `generation` tells an answer that is too late from one that
    counts.
    """

    generation: int
    address: int
    data: memoryview

    @property
    def end_address(self) -> int:
        return self.address + len(self.data)


class PartitionCopy:
    """One source partition and its copy. `draw` is the randomness of the backoff."""

    def __init__(
        self, topic: str, partition: int, target_partition: int, *, draw: Callable[[], float]
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.target_partition = target_partition
        self.state = State.LOCATING
        self.reason = ""
        self.generation = 0
        self.copied_to = 0
        self.source_end = 0
        self.bytes_copied = 0
        self.gap: AcceptedGap | None = None  # what it is halted over, until that is accepted
        self.skipped: tuple[AcceptedGap, ...] = ()
        self._draw = draw
        self._fetched_to = 0
        self._waiting: deque[Chunk] = deque()
        self._in_flight = 0
        self._failures = 0
        self._not_before_s = 0.0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def ahead_bytes(self) -> int:
        """Fetched and not yet acknowledged."""
        return self._fetched_to - self.copied_to if self.state is State.COPYING else 0

    @property
    def lag_bytes(self) -> int:
        return max(0, self.source_end - self.copied_to)

    def is_to_be_located(self, now_s: float) -> bool:
        """Whether it is time to ask the target where the copy ends."""
        return self.state is not State.COPYING and not self._in_flight and now_s >= self._not_before_s

    def located(self, end_address: int, source_end: int, skipped: tuple[AcceptedGap, ...] = ()) -> None:
        """The copy ends at `end_address` and fits to the source: go on from there. `skipped`: accepted gaps
        before it.
        """
        self.skipped = skipped
        self.state = State.COPYING
        self.reason = ""
        self.gap = None
        self.generation += 1
        self.copied_to = self._fetched_to = end_address
        self.source_end = source_end
        self._waiting.clear()

    def wants_fetch(self) -> int | None:
        """The address to fetch at, None for not now."""
        if self.state is not State.COPYING or self.ahead_bytes >= AHEAD_MAX_BYTES:
            return None
        return self._fetched_to

    def fetched(self, generation: int, address: int, fetched: Fetched, now_s: float) -> None:
        """What a fetch at `address` brought."""
        if self.state is not State.COPYING or generation != self.generation or address != self._fetched_to:
            return
        if not fetched.start_address <= address <= fetched.end_address:
            source = f"{fetched.start_address} to {fetched.end_address}"
            self.trouble(f"address {address} is not in the source, which holds {source}", now_s)
            return
        self.source_end = max(self.source_end, fetched.end_address)
        try:
            size_bytes = check_batches(fetched.batches, address)
        except ReplicationError as error:
            self.trouble(str(error), now_s)
            return
        if size_bytes:
            data = memoryview(fetched.batches)[:size_bytes]
            self._waiting.append(Chunk(generation, address, data))
            self._fetched_to += size_bytes

    def wants_append(self) -> bool:
        return bool(self._waiting) and self._in_flight < APPENDS_IN_FLIGHT_MAX

    def next_append(self) -> Chunk:
        """The next chunk to send; it is in flight from now on."""
        self._in_flight += 1
        return self._waiting.popleft()

    def appended(self, chunk: Chunk) -> None:
        """The target acknowledged `chunk`."""
        self._in_flight -= 1
        if chunk.generation == self.generation and self.state is State.COPYING:
            self.copied_to = chunk.end_address
            self.bytes_copied += len(chunk.data)
            self._failures = 0

    def refused(self, chunk: Chunk, reason: str, now_s: float) -> None:
        """The target did not take `chunk`, or nobody knows."""
        self._in_flight -= 1
        if chunk.generation == self.generation and self.state is State.COPYING:
            self.trouble(reason, now_s)

    def trouble(self, reason: str, now_s: float) -> None:
        """Something that may pass: forget what was fetched, be located again after a pause."""
        self._stop(State.LOCATING, reason)
        self._failures += 1
        self._not_before_s = now_s + TROUBLE_BACKOFF.delay_s(self._failures, self._draw)

    def halt(self, reason: str, now_s: float, gap: tuple[int, int] | None = None) -> None:
        """Something that a person has to see to. It is looked at again from time to time; sooner if it is a
        gap [from, to), which may be accepted.
        """
        self._stop(State.HALTED, reason)
        if gap is None:
            self._not_before_s = now_s + HALTED_RECHECK_S
        else:
            self.gap = AcceptedGap(self.target_partition, *gap)
            self.copied_to = self.gap.from_address
            self._not_before_s = now_s + GAP_RECHECK_S

    def look_again(self) -> None:
        """A halted copy need not wait: something was done about it."""
        if self.state is State.HALTED:
            self._not_before_s = 0.0

    def _stop(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason
        self.gap = None
        self.generation += 1
        self._waiting.clear()

    def status(self) -> dict[str, Any]:
        """Plain data for people: `state` is caught_up where nothing is left to copy."""
        state: str = self.state
        if self.state is State.COPYING and self.lag_bytes == 0:
            state = "caught_up"
        return {
            "topic": self.topic,
            "partition": self.partition,
            "target_partition": self.target_partition,
            "address": self.copied_to,
            "source_end": self.source_end,
            "lag_bytes": self.lag_bytes,
            "bytes_copied": self.bytes_copied,
            "state": state,
            "reason": self.reason,
            "gap": None if self.gap is None else _span(self.gap),
            "skipped": [_span(gap) for gap in self.skipped],
            "skipped_bytes": sum(gap.size_bytes for gap in self.skipped),
        }


def _span(gap: AcceptedGap) -> dict[str, int]:
    return {"from": gap.from_address, "to": gap.to_address}
