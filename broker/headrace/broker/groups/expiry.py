"""Deletes the offsets of groups that nobody uses any more (`offsets.retention.minutes`, KIP-211).

The coordinator of a group looks at it now and then. While the group has no members and its offsets do not
change, ZooKeeper's node `idle` of the group says for how long. Each look adds the time since the last one,
but at most two steps of it: so a clock that was set to another time, a cluster that was down for weeks, and
the first start of a version that expires offsets make no group old.

Groups whose members register in ZooKeeper (the paper's) keep their offsets: brokers do not see who uses them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import Any, Final, NamedTuple

from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.deletion import delete_unchanged, stored
from headrace.broker.groups.fencing import Coordinator, NotCoordinatorError, registered
from headrace.broker.groups.generation_nodes import without_members
from headrace.broker.settings.groups import RETENTION, RETENTION_CHECK
from headrace.broker.state import BrokerState
from headrace.broker.workers import Jobs
from headrace.coordination import documents, znodes
from headrace.coordination.consumers import groups, registering_here
from headrace.coordination.errors import (
    CoordinationError,
    CorruptNodeError,
    NodeExistsError,
    NoNodeError,
    SessionClosedError,
    ZooKeeperUnavailableError,
)
from headrace.coordination.session import ZooKeeperSession
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

MINUTE_MS: Final = 60_000
STEPS: Final = 100
"""In so many steps a group grows old, if looks are not rarer: each one is a write."""
GROUPS_PER_JOB_MAX: Final = 20


class Idle(NamedTuple):
    """`idle_ms`: how long a group was seen unused. `looked_ms`: when it was noted, in ms since 1970.
    `newest_zxid`: of its last commit, by ZooKeeper's transaction ids.
    """

    idle_ms: int
    looked_ms: int
    newest_zxid: int


class Pace(NamedTuple):
    """`retention_ms`: after which idle time offsets are deleted. `interval_ms`: from look to look."""

    retention_ms: int
    interval_ms: int

    @property
    def step_ms(self) -> int:
        return max(self.interval_ms, self.retention_ms // STEPS)


def is_due(before: Idle | None, now_ms: int, pace: Pace) -> bool:
    """Whether a step has passed since a group was noted, or the clock was set back."""
    return before is None or not 0 <= now_ms - before.looked_ms < pace.step_ms


def longer(before: Idle | None, newest_zxid: int, now_ms: int, pace: Pace) -> Idle:
    """Returns what to note of a group that has no members."""
    if before is None or before.newest_zxid != newest_zxid:
        return Idle(0, now_ms, newest_zxid)
    passed_ms = min(max(0, now_ms - before.looked_ms), 2 * pace.step_ms)
    return Idle(before.idle_ms + passed_ms, now_ms, newest_zxid)


def look_at(
    session: ZooKeeperSession, group: str, coordinator: Coordinator, now_ms: int, pace: Pace
) -> int | None:
    """Notes how long a group without members is idle; deletes it after `pace.retention_ms`, and returns how
    many offsets it had; else None. Blocks. Raises `NotCoordinatorError`, `CoordinationError`.
    """
    before = _noted(session, group)
    if not is_due(before, now_ms, pace) or registering_here(session, [group]):
        return None
    if without_members(session, group) is None:  # they are not restored yet
        return None
    offsets = stored(session, group)
    newest_zxid = max((stat.modified_zxid for stat in offsets.values()), default=0)
    idle = longer(before, newest_zxid, now_ms, pace)
    if idle.idle_ms >= pace.retention_ms:
        return len(offsets) if delete_unchanged(session, group, coordinator, offsets) else None
    _note(session, group, idle)
    return None


def note_use(session: ZooKeeperSession, group: str) -> None:
    """Notes that a group has members. Blocks. Raises `CoordinationError`."""
    path = znodes.idle(group)
    if session.exists(path) is not None:
        with contextlib.suppress(NoNodeError):
            session.delete(path)


def _noted(session: ZooKeeperSession, group: str) -> Idle | None:
    path = znodes.idle(group)
    node = session.get_or_none(path)
    if node is None:
        return None
    with contextlib.suppress(CorruptNodeError):
        fields = documents.decode(path, node.data)
        found: list[Any] = [fields.get(name) for name in Idle._fields]
        if all(type(each) is int and each >= 0 for each in found):  # a bool is an int, too
            return Idle(*found)
    logger.warning("%s: not how long a group is idle, counted anew: %s", path, node.data[:80])
    return None


def _note(session: ZooKeeperSession, group: str, idle: Idle) -> None:
    path, data = znodes.idle(group), documents.encode(idle._asdict())
    with contextlib.suppress(NodeExistsError, NoNodeError):  # others change the group: the next look tells
        if session.exists(path) is None:
            session.create(path, data)
        else:
            session.set(path, data)


class OffsetExpiry:
    """Of the groups that this broker coordinates. Called on the loop's thread; `jobs` run what blocks."""

    def __init__(
        self, session: ZooKeeperSession, state: BrokerState, coordinator: GroupCoordinator, jobs: Jobs
    ) -> None:
        self._session = session
        self._state = state
        self._coordinator = coordinator
        self._jobs = jobs
        self._pace = Pace(state.config[RETENTION] * MINUTE_MS, state.config[RETENTION_CHECK])
        self._left: deque[str] = deque()
        self._is_looking = False

    def begin(self) -> None:
        self._state.loop.every(self._pace.interval_ms, self.look)

    def look(self) -> None:
        """Looks at all groups, some at a time, unless the last look still runs."""
        if not self._is_looking and self._state.broker_id in self._state.view.brokers:
            self._is_looking = True
            self._jobs.submit(lambda: groups(self._session), self._listed)

    def _listed(self, names: list[str] | None, error: Exception | None) -> None:
        if names is None:
            logger.warning("groups that nobody uses are not looked for this time: %s", error)
        self._left.extend(names or ())
        self._next()

    def _next(self) -> None:
        chosen: list[tuple[str, bool]] = []  # each group, and whether it has members
        while self._left and len(chosen) < GROUPS_PER_JOB_MAX:
            group = self._left.popleft()
            code = self._coordinator.refuse_delete(group)
            if code in (ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP):
                chosen.append((group, code is ErrorCode.NON_EMPTY_GROUP))
        if not chosen:
            self._is_looking = False
            return
        coordinator, now_ms = registered(self._state), self._state.clock_ms()

        def work() -> None:
            for group, has_members in chosen:
                self._look_at(group, coordinator, now_ms, has_members=has_members)

        self._jobs.submit(work, self._worked)

    def _look_at(self, group: str, coordinator: Coordinator, now_ms: int, *, has_members: bool) -> None:
        """Raises `CoordinationError` if ZooKeeper is away. The problem of one group is logged alone: it must
        not keep the others.
        """
        deleted = None
        try:
            if has_members:
                note_use(self._session, group)
            else:
                deleted = look_at(self._session, group, coordinator, now_ms, self._pace)
        except NotCoordinatorError as error:
            logger.info("group %r is not looked at: %s", group, error)
        except (ZooKeeperUnavailableError, SessionClosedError):
            raise
        except CoordinationError as error:
            logger.warning("group %r: whether anybody uses its offsets is not known: %s", group, error)
        if deleted is not None:
            logger.info(
                "group %r had no members and no commit for %d minutes (%s): its %d offsets are deleted",
                group,
                self._pace.retention_ms // MINUTE_MS,
                RETENTION,
                deleted,
            )

    def _worked(self, _: None, error: Exception | None) -> None:
        if isinstance(error, CoordinationError):
            logger.warning("groups that nobody uses are looked for later: %s", error)
            self._left.clear()
        elif error is not None:
            logger.error("groups that nobody uses cannot be looked for: %r", error)
            self._left.clear()
        self._next()
