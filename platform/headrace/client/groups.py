"""Consumer groups over ZooKeeper: streams that share partitions without a coordinator (paper §3.2).

Owns the group's thread: it polls one `Consumer`, fills the streams, commits offsets to ZooKeeper, and
rebalances when members or partitions change: every member reads the registries again, computes its share by
Algorithm 1 (`coordination.assignment`), claims it, and continues at the committed offsets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headrace.client.backoff import Backoff
from headrace.client.cluster import TopicPartition
from headrace.client.consumer import Consumer
from headrace.client.errors import ClientError
from headrace.client.errors import GroupError as GroupError
from headrace.client.group_commits import CommitRequests
from headrace.client.group_offsets import GroupOffsets
from headrace.client.lifecycle import Client
from headrace.client.streams import MessageStream
from headrace.client.unpacking import ConsumerRecord
from headrace.coordination.assignment import StreamId, assign_streams
from headrace.coordination.consumers import (
    STREAMS_MAX,
    ConsumerRegistry,
    NotOwnerError,
    OtherTopicError,
    check_group_name,
)
from headrace.coordination.errors import CoordinationError, NodeHeldError
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch
from headrace.coordination.topics import TopicRegistry, TopicState

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
BEGIN_POLL_S: Final = 0.05  # while it is not stored yet where the share begins
CLAIM_WAIT_S: Final = 1.0
REBALANCE_RETRY: Final = Backoff(first_ms=50, max_ms=2000)
COMMIT_WAIT_MAX_S: Final = 30.0
JOIN_WAIT_MAX_S: Final = 60.0
GIVEN_UP: Final = "the partition was given up before the offset was stored: its messages are delivered again"


class ConsumerGroup(Client):
    """One member of a group. `streams(n)` joins the group, `close` leaves it. A context manager.

    `zookeeper` is a connect string. A message counts as consumed when its reader requests the next one from
    its stream, or calls `commit` or `close`; not if an error ends the reader's `with` block. Consumed offsets
    are committed every `auto_commit_interval_ms` (None: only by `commit`), before every rebalance and on
    close. Before a rebalance readers have `rebalance_grace_ms` to finish the message last returned; one that
    is not finished by then is delivered again: at least once. A partition without a committed offset is read
    from where `auto_offset_reset` says, and one that was created after the group had begun from its
    beginning. With "latest" the end that was found is committed at once, also without an interval.
    """

    def __init__(
        self,
        zookeeper: str,
        bootstrap: str | Iterable[str],
        group: str,
        topics: Iterable[str],
        *,
        member_id: str | None = None,
        auto_commit_interval_ms: float | None = 5000,
        rebalance_grace_ms: float = 5000,
        session_timeout_ms: float = 10_000,
        consumer_options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`consumer_options` go to the `Consumer` (`auto_offset_reset`, `on_corrupt`, sizes …).

        A damaged batch ends the streams with `CorruptRecordsError`, unless `on_corrupt` is "skip". Raises
        `ValueError`. `topics` may be the name of one.
        """
        super().__init__("group")
        check_group_name(group)
        self.group = group
        self.topics = sorted({topics} if isinstance(topics, str) else set(topics))
        if not self.topics:
            raise ValueError("a consumer group needs at least one topic")
        self.member_id = member_id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._commit_interval_s = None if auto_commit_interval_ms is None else auto_commit_interval_ms / 1000
        self._grace_s = rebalance_grace_ms / 1000
        self._clock = clock
        self._draw = draw
        self._session = ZooKeeperSession(
            zookeeper, timeout_s=session_timeout_ms / 1000, name=f"group-{group}"
        )
        self._registry = ConsumerRegistry(self._session, group)
        self._topic_registry = TopicRegistry(self._session)
        options = {"client_id": f"headrace-group-{group}", **(consumer_options or {})}
        self._consumer = Consumer(bootstrap, **options)
        self._streams: list[MessageStream] = []
        self._owners: dict[TopicPartition, StreamId] = {}
        begins_at_end = options.get("auto_offset_reset", "latest") == "latest"
        self._offsets = GroupOffsets(self._consumer, self._registry, begins_at_end=begins_at_end)
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._created_zxids: dict[TopicPartition, int] = {}
        self._assigned_for: tuple[object, ...] | None = None  # what the present share was computed from
        self._membership: HeldNode | None = None
        self._watches: list[Watch] = []
        self._rebalance_wanted = threading.Event()
        self._session_lost = threading.Event()  # and with it all claims, even if there is a new one by now
        self._closing = threading.Event()
        self._commits = CommitRequests()
        self._not_stored: str | None = None
        """Why the latest commit left offsets out that are another member's, or another topic's, by now."""
        self._error: ClientError | None = None  # why the thread has ended, unless by `close`
        self._thread: threading.Thread | None = None
        self.rebalances = 0  # how often this member has taken a share

    # --- called by the application ---

    def streams(self, count: int) -> list[MessageStream]:
        """Joins the group with `count` streams and starts reading. Call it once.

        Raises `ZooKeeperUnavailableError`.
        """
        self._check_usable()
        if self._thread is not None:
            raise RuntimeError("this member has joined with its streams already")
        if not 1 <= count <= STREAMS_MAX:
            raise ValueError(f"a member needs 1 to {STREAMS_MAX} streams, not {count}")
        self._streams = [
            MessageStream(i, wants_more=self._consumer.wakeup, check_not_forked=self._check_not_forked)
            for i in range(count)
        ]
        self._session.start()
        self._session.on_restored(self._want_rebalance)
        self._session.on_state(self._on_session)
        self._membership = self._registry.join(self.member_id, dict.fromkeys(self.topics, count))
        self._watches = [
            self._registry.watch_members(lambda _: self._want_rebalance()),
            self._topic_registry.watch(self._on_topics),
        ]
        self._thread = threading.Thread(target=self._run, name=f"group-{self.group}", daemon=True)
        self._thread.start()
        return list(self._streams)

    @property
    def assignment(self) -> dict[int, list[TopicPartition]]:
        """The partitions that each stream reads now, by stream number."""
        owners = self._owners.items()
        return {s.number: [key for key, owner in owners if owner.stream == s.number] for s in self._streams}

    def commit(self) -> None:
        """Commits what is consumed, with the message this thread got last; returns once ZooKeeper has it.

        Raises `GroupError` if that takes longer than `COMMIT_WAIT_MAX_S`, or this member ends before, or has
        lost that message's partition meanwhile: then the message is delivered again, to the next owner.
        """
        self._check_usable()
        if self._thread is None:
            return
        if not self._mark_consumed():
            raise GroupError(f"group {self.group}: {GIVEN_UP}")
        wanted = self._commits.request()
        self._consumer.wakeup()
        problem = self._commits.wait(wanted, COMMIT_WAIT_MAX_S)
        if problem is None and self._commits.is_met(wanted):
            if self._mark_consumed():
                return
            problem = GIVEN_UP  # meanwhile
        if problem is None:
            problem = f"ZooKeeper stored no offsets in {COMMIT_WAIT_MAX_S:g} s"
            if self._commits.has_ended:
                cause = self._error or "it was closed while ZooKeeper could not be reached"
                problem = f"member {self.member_id} ended, and its offsets are not stored: {cause}"
        raise GroupError(f"group {self.group}: {problem}") from self._error

    def close(self) -> None:
        """Commits, leaves the group, ends the streams. May be called again, and from any thread."""
        if self._forked:
            return
        if self._thread is None:
            self._closing.set()
            self._consumer.close()
            if self._streams:  # joining failed: what it has registered goes with the session
                self._session.close()
            return
        self._mark_consumed()
        self._closing.set()
        self._consumer.wakeup()
        self._thread.join(JOIN_WAIT_MAX_S)

    def __exit__(self, *exc_info: object) -> None:
        for stream in self._streams if exc_info[0] is not None and not self._forked else ():
            stream.give_up(threading.get_ident())
        self.close()

    @property
    def _is_closed(self) -> bool:
        return self._closing.is_set()

    def _mark_consumed(self) -> bool:
        """Returns whether what this thread got last can be stored."""
        return False not in [stream.mark_consumed_by(threading.get_ident()) for stream in self._streams]

    # --- callbacks from ZooKeeper ---

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._session_lost.set()
        self._consumer.wakeup()

    def _want_rebalance(self) -> None:
        self._rebalance_wanted.set()
        self._consumer.wakeup()

    def _on_topics(self, topics: dict[str, TopicState]) -> None:
        present = {name: topics[name].partitions for name in self.topics if name in topics}
        created_zxids = {
            (name, index): state.created_zxid for name in present for index, state in present[name].items()
        }
        if created_zxids != self._created_zxids:  # another one of the same name is another topic
            self._partitions = {name: tuple(sorted(partitions)) for name, partitions in present.items()}
            self._created_zxids = created_zxids
            self._want_rebalance()

    # --- the thread ---

    def _run(self) -> None:
        error: ClientError | None = None
        try:
            self._loop()
        except ClientError as failure:
            error = failure
        except Exception as failure:
            logger.exception("group %s: the group's thread failed", self.group)
            error = GroupError(f"group {self.group}: {type(failure).__name__}: {failure}")
        if error is not None:
            logger.error("group %s: member %s ends: %s", self.group, self.member_id, error)
        self._closing.set()
        self._leave(error)

    def _loop(self) -> None:
        failures = 0
        next_commit_s = self._clock() + (self._commit_interval_s or 0)
        while not self._closing.is_set():
            if self._session_lost.is_set():
                self._session_lost.clear()
                self._stop_reading()
            elif self._rebalance_wanted.is_set() and self._session.state is SessionState.CONNECTED:
                try:
                    failures = 0 if self._rebalance() else failures + 1
                except CoordinationError as error:
                    failures += 1
                    self._raise_unless_retriable(error)
                if failures:
                    self._rebalance_wanted.set()
                    self._closing.wait(REBALANCE_RETRY.delay_s(failures, self._draw))
                    continue
            requested = self._commits.requested
            is_time = self._commit_interval_s is not None and self._clock() >= next_commit_s
            if (is_time or requested > self._commits.made) and self._session.state is SessionState.CONNECTED:
                next_commit_s = self._clock() + (self._commit_interval_s or 0)
                if self._commit():
                    self._finish_commits(requested)
            records = self._consumer.poll(POLL_S if self._offsets.is_complete else BEGIN_POLL_S)
            if self._offsets.look(records) and self._session.state is SessionState.CONNECTED:
                self._store(self._offsets.begins())  # alone: `records` are not delivered yet
            self._deliver(records)

    def _deliver(self, records: list[ConsumerRecord]) -> None:
        if self._session_lost.is_set():
            return
        by_stream: dict[int, list[ConsumerRecord]] = {}
        for record in records:
            key = (record.topic, record.partition)
            owner = self._owners.get(key)
            if owner is not None:
                by_stream.setdefault(owner.stream, []).append(record)
                self._offsets.delivered(key, record.offset)
        for number, records_of_stream in by_stream.items():
            self._streams[number].put(records_of_stream)
        for key, owner in self._owners.items():
            if self._streams[owner.stream].is_full:
                self._consumer.pause(*key)
            else:
                self._consumer.resume(*key)

    def _stop_reading(self) -> None:
        """Stops delivering after the session was lost: other members may own the partitions by now."""
        if self._owners:
            logger.warning("group %s: the ZooKeeper session expired", self.group)
            self._commits.finish(self._commits.requested, GIVEN_UP)
            for stream in self._streams:
                stream.drain(0.0)
                stream.reset_positions(self._offsets.is_stored)
            self._owners = {}
            self._assigned_for = None
            self._offsets.end()
            self._rebalance_wanted.set()

    def _rebalance(self) -> bool:
        """Releases the old share and claims the new one. Returns False if not all of it was free yet."""
        self._rebalance_wanted.clear()
        members = self._registry.members()
        partitions, created_zxids = dict(self._partitions), self._created_zxids
        situation = (members, partitions, created_zxids)
        if situation == self._assigned_for:
            return True
        self._assigned_for = None
        self._release_share()
        if self.member_id not in members:
            return False  # the session is restoring this member's node
        shares = assign_streams(members, partitions)
        owners = {
            key: stream for stream, keys in shares.items() if stream.member == self.member_id for key in keys
        }
        try:
            self._registry.claim_all({key: str(owner) for key, owner in owners.items()}, wait_s=CLAIM_WAIT_S)
        except NodeHeldError as error:
            logger.info("group %s: %s; reading the registries again", self.group, error)
            return False
        self._owners = owners
        self._offsets.begin(list(owners), created_zxids)
        self._assigned_for = situation
        self.rebalances += 1
        logger.info("group %s: member %s reads %s", self.group, self.member_id, sorted(owners))
        return True

    def _release_share(self) -> None:
        """Waits until readers finish the messages last returned, commits, and releases the claims."""
        if not self._owners:
            self._finish_commits(self._commits.requested)
            return
        until_s = self._clock() + self._grace_s
        for stream in self._streams:
            stream.drain(max(0.0, until_s - self._clock()))
        requested = self._commits.requested
        self._offsets.look()
        self._finish_commits(requested, None if self._commit() else GIVEN_UP)
        for stream in self._streams:
            stream.reset_positions(self._offsets.is_stored)
        owners, self._owners = self._owners, {}
        self._offsets.end()
        for key, owner in owners.items():
            self._registry.release(*key, str(owner))

    # --- offsets ---

    def _commit(self) -> bool:
        """Commits every consumed offset that is not committed yet; returns whether all could be stored."""
        consumed = {key: offset for stream in self._streams for key, offset in stream.consumed().items()}
        owned = {key: offset for key, offset in consumed.items() if key in self._owners}
        return self._store(self._offsets.to_store(owned))

    def _store(self, offsets: Mapping[TopicPartition, int]) -> bool:
        complete = True
        for key, offset in offsets.items():
            try:
                self._offsets.store(key, offset, str(self._owners[key]))
            except (NotOwnerError, OtherTopicError) as error:
                logger.warning("group %s: %s", self.group, error)
                self._not_stored = str(error)
                self._assigned_for = None
                self._rebalance_wanted.set()
            except CoordinationError as error:
                self._raise_unless_retriable(error)
                complete = False
        return complete

    def _finish_commits(self, requested: int, problem: str | None = None) -> None:
        not_stored, self._not_stored = self._not_stored, None
        self._commits.finish(requested, not_stored or problem)

    def _raise_unless_retriable(self, error: CoordinationError) -> None:
        if not error.retriable:
            raise GroupError(f"group {self.group}: {error}") from error
        logger.warning("group %s: %s; retrying", self.group, error)

    # --- leaving ---

    def _leave(self, error: ClientError | None) -> None:
        for watch in self._watches:
            watch.cancel()
        with contextlib.suppress(Exception):  # readers must learn of the end, and the session be closed
            if self._session.state is SessionState.CONNECTED:
                self._release_share()
                if self._membership is not None:
                    self._membership.release()
        for stream in self._streams:
            stream.end(error)
        self._consumer.close()
        self._session.close()
        self._error = error
        self._commits.end()
