"""The state of one partition's copy: what to fetch next, what to append next, when to stop. Pure; no clock.

A copy is first *located*: where it ends at the target, and whether the source still matches it. Then it
fetches ahead of its appends, within a bound, and appends in order. A target that has nothing yet takes any
address as its first one, so it gets the first chunk alone: a later one would begin the copy if that chunk
were refused. After any problem it is located again once
all appends in flight are answered, so that it relies on nothing but the target's own end. A problem that does
not pass by itself halts the copy. A bad batch of the source is such a problem, and so are addresses that the
source no longer holds: what lies before is copied first, then locating reads the source once more and halts
the copy just there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.client.backoff import Backoff
from headrace.client.lineage import NO_EPOCH
from headrace.replication.gaps import AcceptedGap
from headrace.replication.pull import (
    REFUSED,
    DamagedBatchError,
    DivergedError,
    Fetched,
    MissingRangeError,
    sound_prefix,
)
from headrace.wire.batch import HEADER_SIZE_BYTES, hop, read_header
from headrace.wire.primitives import NO_UUID

AHEAD_MAX_BYTES: Final = 12 * 1024 * 1024  # per partition: fetched, but not yet acknowledged by the target
APPENDS_IN_FLIGHT_MAX: Final = 4
REQUEST_MAX_BYTES: Final = 8 * 1024 * 1024  # of what goes to the target at once, beyond one batch
REQUEST_LEAST_BYTES: Final = 256 * 1024
GROWTH_ACKS: Final = 50  # after so many acknowledgements a bound that was lowered is doubled
CHUNK_BATCHES_MAX: Final = 5_000  # the target checks and stores each one, and others wait meanwhile
RETRY_BACKOFF: Final = Backoff(first_ms=100, max_ms=5_000)
HALTED_RECHECK_S: Final = 60.0
EMPTY_FETCHES_MAX: Final = 3  # in a row, with nothing for any partition, although the source goes on
BEHIND_MAX_S: Final = 30.0
"""How long a source may end before its copy: a leader that was deposed says so, until it hears of that."""
DELETED_AT_TARGET: Final = "the topic was deleted at the target"
GAP_RECHECK_S: Final = 2.0  # the source's retention moves its start: a gap must be passed before it grows


class CopyState(StrEnum):
    """The states of a copy; see the module's docstring."""

    LOCATING = "locating"
    COPYING = "copying"
    HALTED = "halted"


class Chunk(NamedTuple):
    """Whole batches to append at `address`.

    The copy ignores the responses to chunks of an earlier `generation`.
    """

    generation: int
    address: int
    data: memoryview
    batch_count: int

    @property
    def end_address(self) -> int:
        return self.address + len(self.data)


class PartitionCopy:
    """One source partition and its copy. `draw` returns random numbers in [0, 1) for the backoff."""

    def __init__(
        self,
        topic: str,
        partition: int,
        target_partition: int,
        *,
        draw: Callable[[], float],
        seen_id: UUID = NO_UUID,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.target_partition = target_partition
        self.topic_id = NO_UUID  # the source's topic, since it was located
        self.target_id = NO_UUID  # the target's topic, since then
        self.seen_id = seen_id  # the target's topic, when discovery last saw it
        self.state = CopyState.LOCATING
        self.problem = ""
        self.generation = 0
        self.copied_to = 0
        self.source_end = 0
        self.bytes_copied = 0
        self.gap: AcceptedGap | None = None  # the gap over which it is halted, until an operator accepts it
        self.passed_gaps: tuple[AcceptedGap, ...] = ()  # accepted, before `copied_to`
        self.suspect: int | None = None  # the address of a bad or missing batch: locating reads it again
        self._draw = draw
        self.fetched_epoch = NO_EPOCH
        """The latest leader epoch of what lies before the next fetch; `NO_EPOCH` if it is not known."""
        self._fetched_to = 0
        self._bad_batch: DivergedError | None = None  # at `_fetched_to`; what lies before it is copied first
        self._empty_fetches = 0
        self._waiting: deque[Chunk] = deque()
        self.request_max_bytes = REQUEST_MAX_BYTES  # less while the target closes connections over them
        self._acks = 0
        self._in_flight = 0
        self._is_empty = True  # the target's partition, as far as is known
        self._located_s = 0.0
        self._failures = 0
        self._not_before_s = 0.0
        self._behind_since_s: float | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def ahead_bytes(self) -> int:
        """Bytes fetched but not yet acknowledged by the target."""
        return self._fetched_to - self.copied_to if self.state is CopyState.COPYING else 0

    @property
    def lag_bytes(self) -> int:
        return max(0, self.source_end - self.copied_to)

    def needs_locating(self, now_s: float) -> bool:
        """Whether it is time to locate the copy."""
        return self.state is not CopyState.COPYING and not self._in_flight and now_s >= self._not_before_s

    def located(
        self,
        end_address: int,
        source_end: int,
        passed_gaps: tuple[AcceptedGap, ...] = (),
        topic_id: UUID = NO_UUID,
        target_id: UUID = NO_UUID,
        is_empty: bool = False,
        leader_epoch: int = NO_EPOCH,
        *,
        asked_s: float = math.inf,
    ) -> None:
        """Continues at `end_address`, where the copy ends and matches the source. `is_empty`: the target has
        nothing yet. `leader_epoch`: of the batch that ends there. `asked_s`: when locating began; see
        `locate_if_before`.
        """
        self.fetched_epoch = leader_epoch
        self.topic_id, self.target_id = topic_id, target_id
        self._located_s = asked_s
        self._is_empty = is_empty
        self.passed_gaps = passed_gaps
        self.state = CopyState.COPYING
        self.problem = ""
        self.gap = self.suspect = self._bad_batch = None
        self._behind_since_s = None
        self.generation += 1
        self.copied_to = self._fetched_to = end_address
        self.source_end = source_end
        self._empty_fetches = 0
        self._waiting.clear()

    def next_fetch_address(self) -> int | None:
        """Returns the address to fetch at; None if nothing should be fetched now."""
        if self.state is not CopyState.COPYING or self.ahead_bytes >= AHEAD_MAX_BYTES or self._bad_batch:
            return None
        return self._fetched_to

    def fetched(
        self, generation: int, address: int, fetched: Fetched, now_s: float, *, is_all_empty: bool = False
    ) -> None:
        """Takes the result of a fetch at `address`. `is_all_empty`: no partition of the response has a batch,
        so there was room for one.
        """
        if (
            self.state is not CopyState.COPYING
            or generation != self.generation
            or address != self._fetched_to
        ):
            return
        if not fetched.start_address <= address <= fetched.end_address:
            source = f"{fetched.start_address} to {fetched.end_address}"
            self.back_off(f"address {address} is not in the source, which holds {source}", now_s)
            return
        self.source_end = max(self.source_end, fetched.end_address)
        is_missing = is_all_empty and address < fetched.end_address
        self._empty_fetches = self._empty_fetches + 1 if is_missing else 0
        headers, size_bytes, self._bad_batch = sound_prefix(fetched.batches, address)
        if size_bytes:
            # Epochs ascend; no checksum covers them.
            self.fetched_epoch = max(self.fetched_epoch, headers[-1].partition_leader_epoch)
            for data, batch_count in _pieces(
                memoryview(fetched.batches)[:size_bytes], self.request_max_bytes
            ):
                self._waiting.append(Chunk(generation, self._fetched_to, data, batch_count))
                self._fetched_to += len(data)
        elif self._empty_fetches >= EMPTY_FETCHES_MAX:
            self._bad_batch = MissingRangeError(address, fetched.end_address)
        else:
            self._bad_batch = self._bad_batch or _reaches_too_far(fetched, address)
        self._suspect_bad_batch(now_s)

    def has_parted(self, generation: int, now_s: float) -> None:
        """Takes that the source holds something else than what was fetched last: another leader, elected
        without it, may have written as many bytes. Locating says what.
        """
        if generation == self.generation and self.state is CopyState.COPYING:
            self.back_off("the source no longer holds what was copied last", now_s)

    def refused_as_damaged(self, generation: int, address: int, now_s: float) -> None:
        """Takes the answer of a source that cannot read its own batch at `address`."""
        is_asked = generation == self.generation and address == self._fetched_to
        if is_asked and self.state is CopyState.COPYING:
            self._bad_batch = DamagedBatchError(address, None, REFUSED)
            self._suspect_bad_batch(now_s)

    def wants_append(self) -> bool:
        in_flight_max = 1 if self._is_empty else APPENDS_IN_FLIGHT_MAX
        return bool(self._waiting) and self._in_flight < in_flight_max

    @property
    def next_append_bytes(self) -> int:
        return len(self._waiting[0].data)

    def next_append(self) -> Chunk:
        """Returns the next chunk to send."""
        self._in_flight += 1  # locating waits for the responses to chunks of every generation
        return self._waiting.popleft()

    def appended(self, chunk: Chunk, now_s: float) -> None:
        """Records that the target acknowledged `chunk`; chunks are acknowledged in the order of addresses."""
        self._in_flight -= 1
        self._acks += 1
        if self._acks % GROWTH_ACKS == 0:
            self.request_max_bytes = min(REQUEST_MAX_BYTES, 2 * self.request_max_bytes)
        if chunk.generation == self.generation and self.state is CopyState.COPYING:
            self.copied_to = chunk.end_address
            self._is_empty = False
            self.bytes_copied += len(chunk.data)
            self._failures = 0
            self._suspect_bad_batch(now_s)

    def _suspect_bad_batch(self, now_s: float) -> None:
        """Lets the copy be located once it has all that lies before a bad batch."""
        if self._bad_batch is not None and self.copied_to == self._fetched_to:
            address = self.copied_to
            self.back_off(str(self._bad_batch), now_s)
            self.suspect = address

    def append_failed(
        self, chunk: Chunk, problem: str, now_s: float, *, unanswered_bytes: int | None = None
    ) -> None:
        """Records that the target rejected `chunk`, or did not respond to a request of `unanswered_bytes`:
        one that is too large for it gets no answer.
        """
        self._in_flight -= 1
        if unanswered_bytes is not None:
            smaller = max(REQUEST_LEAST_BYTES, unanswered_bytes // 2)
            self.request_max_bytes, self._acks = min(self.request_max_bytes, smaller), 0
        if chunk.generation == self.generation and self.state is CopyState.COPYING:
            self.back_off(problem, now_s)

    def back_off(self, problem: str, now_s: float) -> None:
        """Discards what was fetched, after a problem that may pass; locating follows after a pause."""
        self._stop(CopyState.LOCATING, problem)
        self._failures += 1
        self._not_before_s = now_s + RETRY_BACKOFF.delay_s(self._failures, self._draw)

    def target_is(self, topic_id: UUID, now_s: float) -> None:
        """Takes the id of the target's topic, zero if there is none: in another topic nothing is copied, and
        why the copy in the one before was halted says nothing of it.
        """
        is_another = topic_id != self.seen_id
        self.seen_id = topic_id
        if self.state is CopyState.COPYING and topic_id != self.target_id:
            self.back_off(DELETED_AT_TARGET, now_s)
        elif self.state is CopyState.HALTED and is_another:
            self._stop(CopyState.LOCATING, DELETED_AT_TARGET)
            self._not_before_s = now_s

    def source_is_behind(self, problem: str, now_s: float) -> None:
        """Takes that the source ends before the copy, as far as its leader says. Only if that stays so, bytes
        are lost there, and the copy halts.
        """
        if self._behind_since_s is None:
            self._behind_since_s = now_s
        if now_s - self._behind_since_s < BEHIND_MAX_S:
            self.back_off(problem, now_s)
        else:
            self.halt(problem, now_s)

    def halt(self, problem: str, now_s: float, gap: tuple[int, int] | None = None) -> None:
        """Stops copying, after a problem that an operator must solve.

        The copy is located again now and then; sooner after a gap [from, to), which an operator may accept.
        """
        self._stop(CopyState.HALTED, problem)
        if gap is None:
            self._not_before_s = now_s + HALTED_RECHECK_S
        else:
            self.gap = AcceptedGap(self.target_partition, *gap)
            self.copied_to = self.gap.from_address
            self._not_before_s = now_s + GAP_RECHECK_S

    def locate_if_before(self, connected_s: float) -> bool:
        """Lets the copy be located again if that was before the connection to the target's leader was made:
        its broker may have come back without its log, which would take any address as its first. Returns
        whether nothing may be appended before.
        """
        if self._located_s >= connected_s:
            return False
        self._stop(CopyState.LOCATING, "")
        self._not_before_s = 0.0
        return True

    def recheck(self) -> None:
        """Lets a halted copy be located at once, because its topic has changed."""
        if self.state is CopyState.HALTED:
            self._not_before_s = 0.0

    def _stop(self, state: CopyState, problem: str) -> None:
        self.state = state
        self.problem = problem
        self.gap = self._bad_batch = None
        self.generation += 1
        self._waiting.clear()

    def status(self) -> dict[str, Any]:
        """Returns plain data for `GET /status`; `state` is caught_up if nothing is left to copy."""
        state: str = self.state
        if self.state is CopyState.COPYING and self.lag_bytes == 0:
            state = "caught_up"
        return {
            "topic": self.topic,
            "partition": self.partition,
            "target_partition": self.target_partition,
            "source_topic_id": str(self.topic_id),
            "target_topic_id": str(self.target_id if self.state is CopyState.COPYING else self.seen_id),
            "address": self.copied_to,
            "source_end": self.source_end,
            "lag_bytes": self.lag_bytes,
            "bytes_copied": self.bytes_copied,
            "state": state,
            "reason": self.problem,
            "gap": None if self.gap is None else _range(self.gap),
            "skipped": [_range(gap) for gap in self.passed_gaps],
            "skipped_bytes": sum(gap.size_bytes for gap in self.passed_gaps),
        }


def _pieces(batches: memoryview, size_max_bytes: int) -> Iterator[tuple[memoryview, int]]:
    """Cuts whole batches into pieces of at most `CHUNK_BATCHES_MAX` and `size_max_bytes`, or of one larger
    batch; yields each with their number.
    """
    begin = count = 0
    for at, header in hop(batches):
        if count and (count == CHUNK_BATCHES_MAX or at + header.size_bytes - begin > size_max_bytes):
            yield batches[begin:at], count
            begin, count = at, 0
        count += 1
    yield batches[begin:], count


def _reaches_too_far(fetched: Fetched, address: int) -> DamagedBatchError | None:
    """Returns what is wrong with a first batch that would end behind the source's end."""
    if len(fetched.batches) < HEADER_SIZE_BYTES:
        return None
    size_bytes = read_header(fetched.batches).size_bytes
    if address + size_bytes <= fetched.end_address:
        return None  # only a part of it was fetched
    problem = f"it claims {size_bytes} bytes, but the source ends at {fetched.end_address}"
    return DamagedBatchError(address, None, problem)


def _range(gap: AcceptedGap) -> dict[str, int]:
    return {"from": gap.from_address, "to": gap.to_address}
