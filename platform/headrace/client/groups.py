"""Consumer groups over ZooKeeper: streams that share the partitions of topics, without any coordinator
(paper §3.2).

Owns the group's thread: it polls one `Consumer`, fills the streams, commits offsets to ZooKeeper, and
rebalances whenever members or partitions change: everybody re-reads the registries, takes its share by
Algorithm 1 (`coordination.assignment`), claims it, and goes on at the stored offsets.
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

from headrace.client import forks
from headrace.client.backoff import Backoff
from headrace.client.consumer import Consumer, ConsumerRecord
from headrace.client.errors import ClientError, ClosedError, ForkedError
from headrace.client.fetching import Key
from headrace.client.streams import MessageStream
from headrace.coordination.assignment import StreamId, assign_streams
from headrace.coordination.consumers import ConsumerRegistry, NotOwnerError, check_group_name
from headrace.coordination.errors import CoordinationError, NodeHeldError
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch
from headrace.coordination.topics import TopicRegistry, TopicState

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
CLAIM_WAIT_S: Final = 1.0
REBALANCE_RETRY: Final = Backoff(first_ms=50, max_ms=2000)
COMMIT_WAIT_MAX_S: Final = 30.0
JOIN_WAIT_MAX_S: Final = 60.0


class GroupError(ClientError):
    """The group cannot go on: ZooKeeper's registries are unusable. The message says why."""


class ConsumerGroup:
    """One member of a group. `streams(n)` joins it; a context manager that leaves it.

    `zookeeper` is a connect string. A message counts as consumed when its reader asks its stream for the
    next one, or calls `commit` or `close`; consumed offsets are committed every `auto_commit_interval_ms`
    (None: only by `commit`), before every rebalance and on close. Before a rebalance readers get
    `rebalance_grace_ms` to finish what they have in hand; if that is not enough, the message is given out
    again: at least once.

    Where nothing is committed yet, `auto_offset_reset` decides where to begin.
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
        """`consumer_options` go to the `Consumer`: `auto_offset_reset`, fetch sizes and so on. Raises
        `ValueError`.
        """
        check_group_name(group)
        self.group = group
        self.topics = sorted(set(topics))
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
        self._owners: dict[Key, StreamId] = {}
        self._given: dict[Key, int] = {}  # the last offset given to a stream
        self._committed: dict[Key, int] = {}
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._situation: tuple[dict[str, dict[str, int]], dict[str, tuple[int, ...]]] | None = None
        """The members and partitions that our share was computed from; None if we must take one."""
        self._membership: HeldNode | None = None
        self._watches: list[Watch] = []
        self._rebalance_wanted = threading.Event()
        self._closing = threading.Event()
        self._commit_done = threading.Condition()
        self._commits_asked = self._commits_made = 0
        self._thread: threading.Thread | None = None
        self._forked = False
        self.rebalances = 0
        """How often this member has taken a share."""
        forks.watch(self)

    # the application's side

    def streams(self, count: int) -> list[MessageStream]:
        """Join the group with `count` streams, and begin. Once only. Raises `ZooKeeperUnavailableError`."""
        self._check_usable()
        if self._thread is not None:
            raise RuntimeError("this member has its streams already")
        if count < 1:
            raise ValueError(f"a member has at least one stream, not {count}")
        self._streams = [MessageStream(i, wants_more=self._consumer.wakeup) for i in range(count)]
        self._session.start()
        self._session.on_restored(self._want_rebalance)
        self._session.on_state(lambda _: self._consumer.wakeup())
        self._membership = self._registry.join(self.member_id, dict.fromkeys(self.topics, count))
        self._watches = [
            self._registry.watch_members(lambda _: self._want_rebalance()),
            self._topic_registry.watch(self._on_topics),
        ]
        self._thread = threading.Thread(target=self._run, name=f"group-{self.group}", daemon=True)
        self._thread.start()
        return list(self._streams)

    @property
    def assignment(self) -> dict[int, list[Key]]:
        """Stream number → the partitions it reads now."""
        owners = self._owners
        shares: dict[int, list[Key]] = {stream.number: [] for stream in self._streams}
        for key, owner in owners.items():
            shares[owner.stream].append(key)
        return shares

    def commit(self) -> None:
        """Commit what is consumed, with what this thread has in hand; returns when ZooKeeper has it.

        Raises `GroupError` if that takes longer than `COMMIT_WAIT_MAX_S`.
        """
        self._check_usable()
        if self._thread is None:
            return
        self._put_down()
        with self._commit_done:
            self._commits_asked += 1
            wanted = self._commits_asked
            self._consumer.wakeup()
            if not self._commit_done.wait_for(
                lambda: self._commits_made >= wanted or self._closing.is_set(), COMMIT_WAIT_MAX_S
            ):
                raise GroupError(f"group {self.group}: ZooKeeper took no offsets in {COMMIT_WAIT_MAX_S:g} s")

    def close(self) -> None:
        """Commit, leave the group, end the streams. May be called again, and from any thread."""
        if self._forked:
            return
        if self._thread is None:
            self._closing.set()
            self._consumer.close()
            return
        self._put_down()
        self._closing.set()
        self._consumer.wakeup()
        self._thread.join(JOIN_WAIT_MAX_S)

    def __enter__(self) -> ConsumerGroup:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def after_fork_in_child(self) -> None:
        self._forked = True

    def _check_usable(self) -> None:
        if self._forked:
            raise ForkedError("this group was made before os.fork; make a new one in the child")
        if self._closing.is_set():
            raise ClosedError("the group is closed")

    def _put_down(self) -> None:
        for stream in self._streams:
            stream.put_down_by(threading.get_ident())

    # ZooKeeper's callbacks

    def _want_rebalance(self) -> None:
        self._rebalance_wanted.set()
        self._consumer.wakeup()

    def _on_topics(self, topics: dict[str, TopicState]) -> None:
        found = {name: tuple(sorted(topics[name].partitions)) for name in self.topics if name in topics}
        if found != self._partitions:
            self._partitions = found
            self._want_rebalance()

    # the group's thread

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
            if self._session.state is SessionState.LOST:
                self._stop_reading()
            elif self._rebalance_wanted.is_set() and self._session.state is SessionState.CONNECTED:
                try:
                    failures = 0 if self._rebalance() else failures + 1
                except CoordinationError as error:
                    failures += 1
                    self._tolerate(error)
                if failures:
                    self._rebalance_wanted.set()
                    self._closing.wait(REBALANCE_RETRY.delay_s(failures, self._draw))
                    continue
            asked = self._commits_asked
            timer_due = self._commit_interval_s is not None and self._clock() >= next_commit_s
            if (timer_due or asked > self._commits_made) and self._session.state is SessionState.CONNECTED:
                next_commit_s = self._clock() + (self._commit_interval_s or 0)
                if self._commit():
                    self._note_commit(asked)
            self._deliver(self._consumer.poll(POLL_S))

    def _deliver(self, records: list[ConsumerRecord]) -> None:
        if self._rebalance_wanted.is_set() and self._session.state is SessionState.LOST:
            return
        by_stream: dict[int, list[ConsumerRecord]] = {}
        for record in records:
            key = (record.topic, record.partition)
            owner = self._owners.get(key)
            if owner is not None:
                by_stream.setdefault(owner.stream, []).append(record)
                self._given[key] = record.offset
        for number, share in by_stream.items():
            self._streams[number].put(share)
        for key, owner in self._owners.items():
            if self._streams[owner.stream].is_full:
                self._consumer.pause(*key)
            else:
                self._consumer.resume(*key)

    def _stop_reading(self) -> None:
        """Our claims are gone, others may have our partitions by now: give out nothing more."""
        if self._owners:
            logger.warning("group %s: the ZooKeeper session expired", self.group)
            for stream in self._streams:
                stream.drain(0.0)
                stream.forget()
            self._owners = {}
            self._situation = None
            self._consumer.assign([])
            self._rebalance_wanted.set()

    def _rebalance(self) -> bool:
        """Give up what we have, take our share of what there is. False: not all of it was free yet."""
        self._rebalance_wanted.clear()
        members = self._registry.members()
        situation = (members, dict(self._partitions))
        if situation == self._situation:
            return True
        self._situation = None
        self._give_up()
        if self.member_id not in members:
            return False  # our own node is being put back
        shares = assign_streams(*situation)
        owners = {
            key: stream for stream, keys in shares.items() if stream.member == self.member_id for key in keys
        }
        try:
            self._registry.claim_all({key: str(owner) for key, owner in owners.items()}, wait_s=CLAIM_WAIT_S)
        except NodeHeldError as error:
            logger.info("group %s: %s; reading the registries again", self.group, error)
            return False
        self._owners = owners
        self._begin(list(owners))
        self._situation = situation
        self.rebalances += 1
        logger.info("group %s: member %s reads %s", self.group, self.member_id, sorted(owners))
        return True

    def _begin(self, keys: list[Key]) -> None:
        self._consumer.assign([])
        self._consumer.assign(keys)
        self._given = {}
        self._committed = {}
        for key, offset in self._registry.offsets(keys).items():
            if offset is not None:
                self._consumer.seek(*key, offset)
                self._committed[key] = offset

    def _give_up(self) -> None:
        """Let the readers finish what they have in hand, commit, release."""
        if not self._owners:
            return
        until_s = self._clock() + self._grace_s
        for stream in self._streams:
            stream.drain(max(0.0, until_s - self._clock()))
        self._commit()
        for stream in self._streams:
            stream.forget()
        owners, self._owners = self._owners, {}
        self._consumer.assign([])
        for key, owner in owners.items():
            self._registry.release(*key, str(owner))

    # offsets

    def _commit(self) -> bool:
        """Store every consumed offset that is not stored yet; False if ZooKeeper did not take them all."""
        complete = True
        for stream in self._streams:
            for key, offset in stream.consumed().items():
                owner = self._owners.get(key)
                if owner is None:
                    continue
                if self._given.get(key) == offset - 1:
                    offset = self._consumer.position(*key)  # all given out is consumed: past the batch's end
                if self._committed.get(key) == offset:
                    continue
                try:
                    self._registry.commit(*key, offset, owner=str(owner))
                    self._committed[key] = offset
                except NotOwnerError as error:
                    logger.warning("group %s: %s", self.group, error)
                    self._situation = None
                    self._rebalance_wanted.set()
                except CoordinationError as error:
                    self._tolerate(error)
                    complete = False
        return complete

    def _note_commit(self, asked: int) -> None:
        with self._commit_done:
            self._commits_made = asked
            self._commit_done.notify_all()

    def _tolerate(self, error: CoordinationError) -> None:
        if not error.retriable:
            raise GroupError(f"group {self.group}: {error}") from error
        logger.warning("group %s: %s; trying again", self.group, error)

    # end

    def _leave(self, error: ClientError | None) -> None:
        for watch in self._watches:
            watch.cancel()
        with contextlib.suppress(CoordinationError, GroupError):
            if self._session.state is SessionState.CONNECTED:
                self._give_up()
                if self._membership is not None:
                    self._membership.release()
        for stream in self._streams:
            stream.end(error)
        self._consumer.close()
        self._session.close()
        with self._commit_done:
            self._commits_made = self._commits_asked
            self._commit_done.notify_all()
