"""Consumer groups over ZooKeeper: streams that share partitions without a coordinator (paper §3.2).

Owns what the application calls: joining, committing, leaving. `client.group_thread` polls and rebalances.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headrace.client.cluster import TopicPartition
from headrace.client.consumer import Consumer
from headrace.client.errors import GroupError
from headrace.client.group_thread import GIVEN_UP, GroupThread, MemberSettings
from headrace.client.lifecycle import Client
from headrace.client.streams import MessageStream
from headrace.coordination.consumers import (
    STREAMS_MAX,
    ConsumerRegistry,
    check_group_name,
    check_member_id,
)
from headrace.coordination.session import ZooKeeperSession

COMMIT_WAIT_MAX_S: Final = 30.0


class ConsumerGroup(Client):
    """One member of a group. `streams(n)` joins the group, `close` leaves it. A context manager.

    A message counts as consumed when its reader requests the next one from its stream, or calls `commit` or
    `close`; not if an error ends the reader's `with` block. Consumed offsets are committed at an interval,
    before every rebalance and on close. Before a rebalance readers have a while to finish the message last
    returned; one that is not finished by then is delivered again: at least once.

    A partition without a committed offset is read from where `auto_offset_reset` says, and one that was
    created after the group had begun from its beginning. With "latest" the end that was found is committed at
    once, also without an interval.
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
        """Connects to nothing yet. Raises `ValueError` for an invalid option.

        - `zookeeper`: a connect string, such as `zk1:2181,zk2:2181/kafka`.
        - `bootstrap`: brokers as `host:port`, a list or one text with commas.
        - `topics`: names, or the name of one.
        - `member_id`: unique in the group. Default: host, process and a random number.
        - `auto_commit_interval_ms`: how often consumed offsets are committed. None: only by `commit`,
          before a rebalance and on close.
        - `rebalance_grace_ms`: how long readers may take to finish a message before a rebalance.
        - `session_timeout_ms`: how long after this process has died others get its partitions.
        - `consumer_options`: go to the `Consumer` (`auto_offset_reset`, `on_corrupt`, sizes …). A damaged
          batch ends the streams with `CorruptRecordsError`, unless `on_corrupt` is "skip".
        """
        super().__init__("group")
        check_group_name(group)
        self.group = group
        self.topics = sorted({topics} if isinstance(topics, str) else set(topics))
        if not self.topics:
            raise ValueError("a consumer group needs at least one topic")
        self.member_id = member_id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        check_member_id(self.member_id)
        session = ZooKeeperSession(zookeeper, timeout_s=session_timeout_ms / 1000, name=f"group-{group}")
        registry = ConsumerRegistry(session, group)
        options = {"client_id": f"headrace-group-{group}", **(consumer_options or {})}
        settings = MemberSettings(
            group,
            self.member_id,
            self.topics,
            commit_interval_s=None if auto_commit_interval_ms is None else auto_commit_interval_ms / 1000,
            grace_s=rebalance_grace_ms / 1000,
            begins_at_end=options.get("auto_offset_reset", "latest") == "latest",
        )
        consumer = Consumer(bootstrap, **options)
        self._thread = GroupThread(settings, session, registry, consumer, clock=clock, draw=draw)
        self._streams: list[MessageStream] = []

    def streams(self, count: int) -> list[MessageStream]:
        """Joins the group with `count` streams and starts reading. Call it once.

        Raises `ValueError` for a count that is not from 1 to `STREAMS_MAX`, `RuntimeError` at a second call,
        `NodeHeldError` if another member has this member's id, `ZooKeeperUnavailableError`, `ClosedError`,
        `ForkedError`.
        """
        self._check_usable()
        if self._thread.has_started:
            raise RuntimeError("this member has joined with its streams already")
        if not 1 <= count <= STREAMS_MAX:
            raise ValueError(f"a member needs 1 to {STREAMS_MAX} streams, not {count}")
        self._streams = [
            MessageStream(i, wants_more=self._thread.wake, check_not_forked=self._check_not_forked)
            for i in range(count)
        ]
        self._thread.start(self._streams)
        return list(self._streams)

    @property
    def assignment(self) -> dict[int, list[TopicPartition]]:
        """The partitions that each stream reads now, by stream number."""
        return self._thread.assignment

    @property
    def rebalances(self) -> int:
        """How often this member has taken a share."""
        return self._thread.rebalances

    def commit(self) -> None:
        """Commits what is consumed, with the message this thread got last; returns once ZooKeeper has it.

        Raises `GroupError` if that takes longer than `COMMIT_WAIT_MAX_S`, or this member ends before, or has
        lost that message's partition meanwhile: then the message is delivered again, to the next owner.
        Raises `ClosedError` and `ForkedError`, too.
        """
        self._check_usable()
        if not self._thread.has_started:
            return
        if not self._mark_consumed():
            raise GroupError(f"group {self.group}: {GIVEN_UP}")
        commits = self._thread.commits
        wanted = commits.request()
        self._thread.wake()
        problem = commits.wait(wanted, COMMIT_WAIT_MAX_S)
        if problem is None and commits.is_met(wanted):
            if self._mark_consumed():
                return
            problem = GIVEN_UP  # meanwhile
        if problem is None:
            problem = f"ZooKeeper stored no offsets in {COMMIT_WAIT_MAX_S:g} s"
            if commits.has_ended:
                cause = self._thread.error or "it was closed while ZooKeeper could not be reached"
                problem = f"member {self.member_id} ended, and its offsets are not stored: {cause}"
        raise GroupError(f"group {self.group}: {problem}") from self._thread.error

    def close(self) -> None:
        """Commits, leaves the group, ends the streams. May be called again, and from any thread."""
        if self._forked:
            return
        if self._thread.has_started:
            self._mark_consumed()
        self._thread.close()

    def __exit__(self, *exc_info: object) -> None:
        for stream in self._streams if exc_info[0] is not None and not self._forked else ():
            stream.give_up(threading.get_ident())
        self.close()

    @property
    def _is_closed(self) -> bool:
        return self._thread.is_closing

    def _mark_consumed(self) -> bool:
        """Returns whether what this thread got last can be stored."""
        return False not in [stream.mark_consumed_by(threading.get_ident()) for stream in self._streams]
