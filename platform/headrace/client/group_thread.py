"""The thread of one member of a consumer group: it polls, fills streams, commits, rebalances (paper §3.2).

Owns the member's share: which partitions it has claimed in ZooKeeper, which stream reads each, and when their
offsets are stored. To rebalance, every member reads the registries again, computes its share by Algorithm 1
(`coordination.assignment`), claims it, and continues at the committed offsets. `client.groups` has what the
application calls.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.client.backoff import Backoff
from headrace.client.cluster import TopicPartition
from headrace.client.consumer import Consumer
from headrace.client.errors import ClientError, GroupError
from headrace.client.group_commits import CommitRequests
from headrace.client.group_offsets import GroupOffsets
from headrace.client.streams import MessageStream
from headrace.client.unpacking import ConsumerRecord
from headrace.coordination.assignment import StreamId, assign_streams
from headrace.coordination.consumers import ConsumerRegistry, NotOwnerError, OtherTopicError
from headrace.coordination.errors import CoordinationError, NodeHeldError
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch
from headrace.coordination.topics import TopicRegistry, TopicState

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
BEGIN_POLL_S: Final = 0.05
"""How long a poll lasts while it is not stored yet where each partition of the share begins."""
CLAIM_WAIT_S: Final = 1.0
"""How long one attempt to rebalance waits for the claims of others to be released."""
REBALANCE_RETRY: Final = Backoff(first_ms=50, max_ms=2000)
JOIN_WAIT_MAX_S: Final = 60.0
GIVEN_UP: Final = "the partition was given up before the offset was stored: its messages are delivered again"


class MemberSettings(NamedTuple):
    """What a member is started with. See `ConsumerGroup`, which documents the options."""

    group: str
    member_id: str
    topics: Sequence[str]
    commit_interval_s: float | None
    grace_s: float
    begins_at_end: bool
    """Whether a partition without a committed offset is read from the log's end."""


class GroupThread:
    """Everything runs in the group's thread, except the methods under "other threads" and the callbacks.

    `clock` is monotonic, in seconds; `draw` draws from [0, 1), for the jitter of retries. `close` ends the
    consumer and the session, also if the thread was never started.
    """

    def __init__(
        self,
        settings: MemberSettings,
        session: ZooKeeperSession,
        registry: ConsumerRegistry,
        consumer: Consumer,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._group = settings.group  # for messages
        self._session = session
        self._registry = registry
        self._consumer = consumer
        self._clock = clock
        self._draw = draw
        self._offsets = GroupOffsets(consumer, registry, begins_at_end=settings.begins_at_end)
        self._streams: Sequence[MessageStream] = ()
        self._owners: dict[TopicPartition, StreamId] = {}
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._created_zxids: dict[TopicPartition, int] = {}
        self._missing: set[str] = set()
        """Topics that are not there, as the log has said."""
        self._assigned_for: tuple[object, ...] | None = None
        """What the present share was computed from."""
        self._membership: HeldNode | None = None
        self._watches: list[Watch] = []
        self._rebalance_wanted = threading.Event()
        self._session_lost = threading.Event()
        """Set once all claims are gone with a session, even if there is a new one by now."""
        self._closing = threading.Event()
        self._not_stored: str | None = None
        """Why the latest commit left offsets out that are another member's, or another topic's, by now."""
        self._thread: threading.Thread | None = None
        self.commits = CommitRequests()
        self.error: ClientError | None = None
        """Why the thread has ended, unless by `close`."""
        self.rebalances = 0
        """How often this member has taken a share."""

    # --- other threads ---

    def start(self, streams: Sequence[MessageStream]) -> None:
        """Joins the group and fills these streams from now on. Call it once.

        Raises `ZooKeeperUnavailableError`, and `NodeHeldError` if another process has this member's id.
        """
        self._streams = streams
        self._session.start()
        self._session.on_restored(self._want_rebalance)
        self._session.on_state(self._on_session)
        subscription = dict.fromkeys(self._settings.topics, len(streams))
        self._membership = self._registry.join(self._settings.member_id, subscription)
        self._watches = [
            self._registry.watch_members(lambda _: self._want_rebalance()),
            TopicRegistry(self._session).watch(self._on_topics),
        ]
        self._thread = threading.Thread(target=self._run, name=f"group-{self._group}", daemon=True)
        self._thread.start()

    @property
    def has_started(self) -> bool:
        return self._thread is not None

    @property
    def is_closing(self) -> bool:
        """Whether the thread ends, by `close` or by an error, or has ended."""
        return self._closing.is_set()

    @property
    def assignment(self) -> dict[int, list[TopicPartition]]:
        """The partitions that each stream reads now, by stream number."""
        owners = self._owners.items()
        return {s.number: [key for key, owner in owners if owner.stream == s.number] for s in self._streams}

    def wake(self) -> None:
        """Ends the present wait for records."""
        self._consumer.wakeup()

    def close(self) -> None:
        """Commits what is consumed, leaves the group, ends the streams, in at most `JOIN_WAIT_MAX_S`."""
        self._closing.set()
        if self._thread is not None:
            self.wake()
            self._thread.join(JOIN_WAIT_MAX_S)
            return
        self._consumer.close()
        if self._streams:  # joining failed: what it has registered goes with the session
            self._session.close()

    # --- callbacks from ZooKeeper, in the session's thread ---

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._session_lost.set()
        self._consumer.wakeup()

    def _want_rebalance(self) -> None:
        self._rebalance_wanted.set()
        self._consumer.wakeup()

    def _on_topics(self, topics: dict[str, TopicState]) -> None:
        present = {name: topics[name].partitions for name in self._settings.topics if name in topics}
        for name in sorted(set(self._settings.topics) - present.keys() - self._missing):
            logger.warning("group %s: there is no topic %r: it is read once it is made", self._group, name)
        self._missing = set(self._settings.topics) - present.keys()
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
            logger.exception("group %s: the group's thread failed", self._group)
            error = GroupError(f"group {self._group}: {type(failure).__name__}: {failure}")
        if error is not None:
            logger.error("group %s: member %s ends: %s", self._group, self._settings.member_id, error)
        self._closing.set()
        self._leave(error)

    def _loop(self) -> None:
        failures = 0
        next_commit_s = self._clock() + (self._settings.commit_interval_s or 0)
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
            requested = self.commits.requested
            is_time = self._settings.commit_interval_s is not None and self._clock() >= next_commit_s
            if (is_time or requested > self.commits.made) and self._session.state is SessionState.CONNECTED:
                next_commit_s = self._clock() + (self._settings.commit_interval_s or 0)
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
            logger.warning("group %s: the ZooKeeper session expired", self._group)
            self.commits.finish(self.commits.requested, GIVEN_UP)
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
        if self._settings.member_id not in members:
            return False  # the session is restoring this member's node
        shares = assign_streams(members, partitions)
        owners = {
            key: stream
            for stream, keys in shares.items()
            if stream.member == self._settings.member_id
            for key in keys
        }
        try:
            self._registry.claim_all({key: str(owner) for key, owner in owners.items()}, wait_s=CLAIM_WAIT_S)
        except NodeHeldError as error:
            logger.info("group %s: %s; reading the registries again", self._group, error)
            return False
        self._owners = owners
        self._offsets.begin(list(owners), created_zxids)
        self._assigned_for = situation
        self.rebalances += 1
        logger.info("group %s: member %s reads %s", self._group, self._settings.member_id, sorted(owners))
        return True

    def _release_share(self) -> None:
        """Waits until readers finish the messages last returned, commits, and releases the claims."""
        if not self._owners:
            self._finish_commits(self.commits.requested)
            return
        until_s = self._clock() + self._settings.grace_s
        for stream in self._streams:
            stream.drain(max(0.0, until_s - self._clock()))
        requested = self.commits.requested
        self._offsets.look()
        self._finish_commits(requested, None if self._commit() else GIVEN_UP)
        for stream in self._streams:
            stream.reset_positions(self._offsets.is_stored)
        owners, self._owners = self._owners, {}
        self._offsets.end()
        for key, owner in owners.items():
            self._registry.release(*key, str(owner))

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
                logger.warning("group %s: %s", self._group, error)
                self._not_stored = str(error)
                self._assigned_for = None
                self._rebalance_wanted.set()
            except CoordinationError as error:
                self._raise_unless_retriable(error)
                complete = False
        return complete

    def _finish_commits(self, requested: int, problem: str | None = None) -> None:
        not_stored, self._not_stored = self._not_stored, None
        self.commits.finish(requested, not_stored or problem)

    def _raise_unless_retriable(self, error: CoordinationError) -> None:
        if not error.retriable:
            raise GroupError(f"group {self._group}: {error}") from error
        logger.warning("group %s: %s; retrying", self._group, error)

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
        self.error = error
        self.commits.end()
