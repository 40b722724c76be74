"""Follows other brokers: one connection and one Fetch at a time to each, for all partitions that it leads.

A fetch goes out once everything that came with the last one is flushed here, so the addresses that it asks
for say what is durable. The decisions are those of `replication.following`; `followed` works on the logs.
In a session (KIP-227, `handlers.follower_session`) a fetch names those partitions alone of which the leader
does not know already what is asked for; it forgets those that wait for something.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

from headrace.broker.loop import Timer
from headrace.broker.network.links import Lost
from headrace.broker.network.peers import Peers
from headrace.broker.replicas.copy_throttle import CopyThrottle
from headrace.broker.replicas.cuts import Cut, log_cut
from headrace.broker.replicas.fetch_session import SESSION_ENDED, FetchSession, Key
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.state import BrokerState
from headrace.client.calls import fetch_call
from headrace.log.errors import LogError
from headrace.replication.following import Append, AskAgain, OwnLog, next_step
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest
from headrace.wire.fetch_beginning import first_records

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "headrace-follower"
FETCH_MAX_BYTES: Final = 8 * 1024 * 1024  # of one response; written in one turn of the loop
PARTITION_FETCH_MAX_BYTES: Final = 8 * 1024 * 1024
RESPONSE_MORE_BYTES: Final = 60 * 1024 * 1024  # than the largest batch: what a response has besides
RESPONSE_CHUNK_BYTES: Final = 1024 * 1024  # of a response: fewer are not worth waking up for
RESPONSE_WAIT_MAX_S: Final = 10.0
PARTITIONS_PER_FETCH_MAX: Final = 2_000  # the others have their turn in the next ones
# How long a leader may hold a fetch that brings nothing. A partition that is to be followed meanwhile waits
# for it; the more partitions there are, the more each fetch costs.
WAIT_MIN_MS: Final = 100
WAIT_MAX_MS: Final = 500
WAIT_PER_PARTITION_MS: Final = 0.25
# A partition whose disk is slow keeps the others waiting no longer than this, and then each fetch is short.
STRAGGLER_MAX_MS: Final = 100.0
BUSY_WAIT_MS: Final = 50


class _Asked(NamedTuple):
    """What a fetch asked for: whatever has changed since makes its answer void."""

    followed: FollowedPartition
    leader_epoch: int
    address: int


class Fetcher:
    """Fetches from one leader."""

    def __init__(self, leader: int, state: BrokerState, followed: FollowedPartitions, peers: Peers) -> None:
        self._leader = leader
        self._state = state
        self._followed = followed
        self._peers = peers
        self._throttle = CopyThrottle(state)
        self._partitions: dict[FollowedPartition, None] = {}  # those that wait longest first
        self._touched: dict[FollowedPartition, None] = {}  # those that the next fetch names, if they may
        self._session: FetchSession[_Asked] = FetchSession()
        self._is_asking = False
        self._awaited: set[FollowedPartition] = set()  # whose disk the next fetch waits for
        self._patience_ends_ms = 0.0
        self._timer: Timer | None = None
        self._heard_ms = -inf
        self._problem = ""

    def add(self, followed: FollowedPartition) -> None:
        self._partitions[followed] = None
        self._touched[followed] = None
        self.wake()

    def discard(self, followed: FollowedPartition) -> None:
        self._partitions.pop(followed, None)
        self._touched.pop(followed, None)
        self._session.drop(_key(followed))
        if followed in self._awaited:
            self._done_with(followed)

    # --- asking ---

    def wake(self) -> None:
        """Fetches, unless a fetch is on its way or something is to be waited for."""
        if self._is_asking or not self._partitions:
            return
        now_ms = self._state.monotonic_ms()
        if self._awaited and now_ms < self._patience_ends_ms:
            self._wake_at(self._patience_ends_ms)
            return
        self._awaited.clear()
        ready, later_ms = self._ready(now_ms)
        for waiting in self._touched.keys() - set(ready):
            self._session.drop(_key(waiting))
        if not ready and not self._session.asks:
            if later_ms is not None:
                self._wake_at(later_ms)
            return
        broker = self._state.view.brokers.get(self._leader)
        if broker is None:
            return  # `brokers_changed` wakes this fetcher
        left_out = len(ready) < len(self._touched)
        idle_ms = min(WAIT_MAX_MS, max(WAIT_MIN_MS, WAIT_PER_PARTITION_MS * len(ready)))
        request = self._request(ready, int(BUSY_WAIT_MS if left_out else idle_ms))
        call = fetch_call(request, by_id=True, place=self._place, chunk_bytes=RESPONSE_CHUNK_BYTES)
        self._stop_timer()
        self._is_asking = True
        if not self._peers.ask(broker.host, broker.port, call, self._answered, timeout_s=RESPONSE_WAIT_MAX_S):
            self._is_asking = False
            self._end_session()
            self._wake_at(now_ms + WAIT_MAX_MS)

    def _ready(self, now_ms: float) -> tuple[list[FollowedPartition], float | None]:
        """Returns the partitions to name now, and when others are to be."""
        ready: list[FollowedPartition] = []
        later_ms = None
        throttle = self._throttle
        for followed in list(self._touched):
            if self._followed.flush(followed, self._flushed) or followed.is_working:
                continue
            at_ms = followed.retry_at_ms
            if at_ms <= now_ms and throttle.covers(followed):
                at_ms = now_ms + throttle.wait_ms(now_ms)
            if at_ms > now_ms:
                later_ms = min(later_ms or at_ms, at_ms)
            elif len(ready) < PARTITIONS_PER_FETCH_MAX:
                ready.append(followed)
        return ready, later_ms

    def _request(self, ready: Sequence[FollowedPartition], wait_ms: int) -> FetchRequest:
        named: dict[Key, tuple[FetchPartition, _Asked]] = {}
        shares = self._throttle.shares_bytes(ready, PARTITION_FETCH_MAX_BYTES)
        for followed in ready:
            log = followed.log
            part = FetchPartition(
                followed.name.partition,
                log.end_address,
                shares.get(followed, PARTITION_FETCH_MAX_BYTES),
                followed.leader_epoch,
                log.epochs.latest,
                log.start_address,
            )
            named[_key(followed)] = part, _Asked(followed, followed.leader_epoch, log.end_address)
            del self._touched[followed]
        topics, forgotten = self._session.next_request(named)
        own = self._state.broker_id
        return FetchRequest(
            wait_ms,
            1,
            FETCH_MAX_BYTES,
            topics,
            replica_id=own,
            replica_epoch=self._state.view.broker_epoch(own),
            session_id=self._session.id,
            session_epoch=self._session.epoch,
            forgotten=forgotten,
        )

    def _end_session(self) -> None:
        """Names all partitions from now on, until the leader grants another session."""
        self._session.end()
        self._touched = dict.fromkeys(self._partitions)

    def _wake_at(self, at_ms: float) -> None:
        self._stop_timer()
        delay_ms = max(1.0, at_ms - self._state.monotonic_ms())
        self._timer = self._state.loop.call_later(delay_ms, self.wake)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- answers ---

    def _place(self, beginning: memoryview, version: int) -> int:
        """Returns where an answer is to begin in a page of memory, so that its first records lie there as
        they will on the disk, whose blocks are pages or parts of them (`log.direct`).
        """
        first = first_records(beginning, version)
        asked = None if first is None else self._session.held.get((first.topic_id, first.partition))
        if first is None or asked is None:
            return 0
        return asked.followed.log.end_position_bytes - first.at

    def _answered(self, response: Any) -> None:
        self._is_asking = False
        if isinstance(response, Lost):
            self._pause_all(response.problem)
            return
        if response.error_code in SESSION_ENDED and self._session.id:
            self._end_session()
            self.wake()
            return
        if response.error_code != ErrorCode.NONE:
            self._pause_all(f"it answers {ErrorCode(response.error_code).name}")
            return
        if self._problem:
            self._problem = ""
            logger.info("broker %d answers again", self._leader)
        self._heard_ms = self._state.monotonic_ms()
        self._patience_ends_ms = self._heard_ms + STRAGGLER_MAX_MS
        for topic in response.topics:
            for result in topic.partitions:
                found = self._session.held.get((topic.topic_id, result.partition))
                if found is not None:
                    self._touch(found.followed)
                    self._take(found, result)
        if response.session_id:
            self._session.granted(response.session_id)
        else:
            self._end_session()
        self.wake()

    def note_heard(self) -> None:
        """Notes for which partitions the last answer speaks, those that it did not name, too."""
        for asked in self._session.held.values():
            if asked.followed.problem is None:
                asked.followed.heard_ms = max(asked.followed.heard_ms, self._heard_ms)

    def _touch(self, followed: FollowedPartition) -> None:
        if followed in self._partitions:
            self._touched[followed] = None

    def _pause_all(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            logger.warning("following broker %d: %s", self._leader, problem)
        now_ms = self._state.monotonic_ms()
        for found in self._session.held.values():
            found.followed.pause(now_ms)
        self._end_session()
        self.wake()

    def _take(self, asked: _Asked, result: FetchPartitionResult) -> None:
        """Does what follows from one partition's answer. A failure concerns that partition alone."""
        followed = asked.followed
        log = followed.log
        if followed not in self._partitions or followed.failure or followed.cutting:
            return
        if (followed.leader_epoch, log.end_address) != asked[1:] or log.appending is not None:
            self._session.drop(_key(followed))  # the leader takes for known what this answer told
            return
        try:
            step = next_step(OwnLog(log.start_address, log.end_address, log.epochs), result)
            if isinstance(step, Append):
                self._append(followed, step)
            elif isinstance(step, AskAgain):
                self._pause(followed, step.problem, is_expected=step.is_expected)
            else:
                self._cut(followed, step)
        except Exception as error:
            logger.exception("%s: what broker %d answered could not be used", followed, self._leader)
            self._pause(followed, f"{type(error).__name__}: {error}", is_expected=False)

    def _append(self, followed: FollowedPartition, step: Append) -> None:
        if step.batches:
            refusal = self._state.append_refusal
            if refusal is not None:
                self._pause(followed, refusal, is_expected=False)
                return
            if self._throttle.covers(followed):
                self._throttle.took(len(step.batches))
            self._partitions[followed] = self._partitions.pop(followed)  # the others are first next time
            leader_epoch = followed.leader_epoch

            def ended(error: LogError | None) -> None:
                if followed in self._partitions and followed.leader_epoch == leader_epoch:
                    self._appended(followed, step, error)

            try:
                if self._followed.append(followed, step, ended, self._flushed):
                    self._awaited.add(followed)
                    return
                followed.log.append_verbatim(step.batches, step.headers)
            except LogError as error:
                self._appended(followed, step, error)
                return
        self._appended(followed, step, None)
        if self._followed.flush(followed, self._flushed):
            self._awaited.add(followed)

    def _appended(self, followed: FollowedPartition, step: Append, error: LogError | None) -> None:
        """Notes what the leader has told, once its batches are in the log."""
        if error is not None:
            if followed.log.offline is not None:
                self._followed.fail(followed)
            else:
                self._pause(followed, str(error), is_expected=False)
            return
        if followed.saw(step.high_watermark, step.leader_start_address):
            self._followed.leader_deleted(followed)
        if step.problem is not None:
            self._pause(followed, str(step.problem), is_expected=False)
        else:
            followed.go_on()
            followed.heard_ms = self._heard_ms
            if followed.problem is not None:
                followed.problem = None
                logger.info("%s: follows broker %d again", followed, self._leader)

    def _cut(self, followed: FollowedPartition, step: Cut) -> None:
        log_cut(followed, self._leader, step)
        if followed.flushing:
            # With headrace.acks.all=replicated nobody waited for this flush.
            self._pause(followed, "its last flush still runs", is_expected=True)
            return
        self._awaited.add(followed)
        self._followed.cut(followed, step, self._flushed)

    def _pause(self, followed: FollowedPartition, problem: str, *, is_expected: bool) -> None:
        followed.pause(self._state.monotonic_ms())
        if followed.problem != problem:
            followed.problem = problem
            level = logging.INFO if is_expected else logging.WARNING
            logger.log(
                level, "%s: following broker %d stops for a moment: %s", followed, self._leader, problem
            )

    def _flushed(self, followed: FollowedPartition) -> None:
        """Called when a thread is done with a log."""
        if followed in self._partitions:
            self._touch(followed)
            self._done_with(followed)

    def _done_with(self, followed: FollowedPartition) -> None:
        self._awaited.discard(followed)
        if not self._awaited:
            self.wake()


def _key(followed: FollowedPartition) -> Key:
    return followed.topic_id, followed.name.partition
