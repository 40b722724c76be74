"""Kafka's own group protocol on the wire: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Translates between messages and the state machine in `broker.groups`; owns the timer of its deadlines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

from headrace.broker.bodies import Tree
from headrace.broker.cluster import NO_EPOCH
from headrace.broker.groups.coordinator import GroupCoordinator, coordinator_for
from headrace.broker.groups.fencing import NotCoordinatorError
from headrace.broker.groups.generations import StoredGeneration
from headrace.broker.groups.group import Stored
from headrace.broker.groups.recovery import Recovery
from headrace.broker.groups.store import GroupStore
from headrace.broker.groups.types import (
    GroupLimits,
    Join,
    JoinReply,
    MemberProtocol,
    Sync,
    SyncReply,
)
from headrace.broker.handlers.group_admin import GroupAdministration
from headrace.broker.handlers.offsets import OffsetService
from headrace.broker.loop import Timer
from headrace.broker.promise import Parked, Promise
from headrace.broker.service import Api, BrokerService
from headrace.broker.state import BrokerState
from headrace.coordination.consumers import is_group_name
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

logger = logging.getLogger(__name__)

MEMBER_ID_REQUIRED_FROM: Final = 4  # JoinGroup versions that know KIP-394
SKIPPING_FROM: Final = 9  # JoinGroup versions that know KIP-814
MEMBERS_FROM: Final = 3  # LeaveGroup versions that name several members
TURN_MAX_BYTES: Final = 256 * 1024  # of the groups that go on in one turn: about a kilobyte for each member
CLIENT_ID_LENGTH_MAX: Final = 255  # characters of it that a member's id begins with
_MISPLACED: Final = ErrorCode.NOT_COORDINATOR


class GroupService:
    """The groups this broker coordinates, and their timer."""

    def __init__(self, state: BrokerState, store: GroupStore) -> None:
        self._state = state
        self._store = store
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._epoch = NO_EPOCH  # of this broker's registration, as it was seen last
        self.coordinator = GroupCoordinator(
            coordinates=self._coordinates,
            new_member_id=lambda client_id: f"{client_id[:CLIENT_ID_LENGTH_MAX]}-{uuid4()}",
            store=self._store_generation,
            initial_delay_ms=state.config["group.initial.rebalance.delay.ms"],
            limits=GroupLimits(
                state.config["group.min.session.timeout.ms"],
                state.config["group.max.session.timeout.ms"],
                state.config["group.max.size"],
            ),
        )
        self._recovery = Recovery(
            self.coordinator,
            store,
            coordinates=self._coordinates,
            now_ms=lambda: state.monotonic_ms(),
            restored=self._set_timer,
        )
        self.administration = GroupAdministration(self.coordinator, store, self._recovery, self._coordinates)
        store.on_other_generation = self._lose

    def _coordinates(self, group_id: str) -> bool:
        return coordinator_for(group_id, self._state.view.brokers) == self._state.broker_id

    def serve(self, service: BrokerService, offsets: OffsetService) -> None:
        """Serves all APIs of groups, those of their offsets included."""
        service.add(ApiKey.JOIN_GROUP, Api(0, 9, self.join))
        service.add(ApiKey.SYNC_GROUP, Api(0, 5, self.sync))
        service.add(ApiKey.HEARTBEAT, Api(0, 4, self.heartbeat))
        service.add(ApiKey.LEAVE_GROUP, Api(0, 5, self.leave))
        service.add(ApiKey.DESCRIBE_GROUPS, Api(0, 5, self.administration.describe))
        service.add(ApiKey.LIST_GROUPS, Api(0, 5, self.administration.list))
        service.add(ApiKey.DELETE_GROUPS, Api(0, 2, self.administration.delete))
        service.add(ApiKey.OFFSET_COMMIT, Api(2, 9, offsets.commit))
        service.add(ApiKey.OFFSET_FETCH, Api(1, 9, offsets.fetch))
        service.add(ApiKey.OFFSET_DELETE, Api(0, 0, offsets.delete))

    def brokers_changed(self) -> None:
        """Forgets the groups that other brokers coordinate now, or did since this one registered before, and
        restores those that it coordinates.
        """
        epoch_before, self._epoch = self._epoch, self._state.view.broker_epoch(self._state.broker_id)
        has_registered = self._epoch != epoch_before
        self.coordinator.brokers_changed(has_registered=has_registered)
        self._store.brokers_changed(lambda group_id: not has_registered and self._coordinates(group_id))
        self._recovery.brokers_changed()

    def when_known(self, group_id: str, then: Callable[[ErrorCode], None]) -> None:
        """Calls back once the coordinator has what another one stored of the group, as `Recovery` does."""
        self._recovery.when_known(group_id, then)

    def _store_generation(self, group_id: str, generation: StoredGeneration | None, then: Stored) -> None:
        def stored(error: Exception | None) -> None:
            if error is None:
                then(self._state.monotonic_ms())
                self._set_timer()
            else:
                logger.info("group %r: its members are not stored, and join again: %s", group_id, error)
                is_misplaced = isinstance(error, NotCoordinatorError)
                self._lose(group_id, _MISPLACED if is_misplaced else ErrorCode.COORDINATOR_NOT_AVAILABLE)

        self._store.store(group_id, generation).then(stored)

    def _lose(self, group_id: str, error: ErrorCode = _MISPLACED) -> None:
        """Forgets a group of which another generation may be stored: it is read when somebody asks for it."""
        self._recovery.forget(group_id)
        self.coordinator.disband(group_id, error)

    def join(self, _: BrokerState, request: Request) -> Promise[Tree]:
        body = request.body
        promise: Parked[Tree] = Parked()
        session_ms = _ms(body.session_timeout)
        rebalance_ms = _ms(getattr(body, "rebalance_timeout", body.session_timeout))
        if not is_group_name(body.group_id):
            promise.resolve(_joined(JoinReply(error=ErrorCode.INVALID_GROUP_ID, member_id=body.member_id)))
            return promise
        join = Join(
            group_id=body.group_id,
            member_id=body.member_id,
            group_instance_id=getattr(body, "group_instance_id", None),
            client_id=request.client_id or "",
            client_host=self._state.peer.rpartition(":")[0],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms if rebalance_ms > 0 else session_ms,
            protocol_type=body.protocol_type,
            protocols=tuple(MemberProtocol(known.name, bytes(known.metadata)) for known in body.protocols),
            requires_known_member=request.version >= MEMBER_ID_REQUIRED_FROM,
            knows_skipping=request.version >= SKIPPING_FROM,
        )

        def known(code: ErrorCode) -> None:
            promise.taken.resolve(None)  # from now on what is kept of it is in the bounds of groups
            if code is not ErrorCode.NONE:
                promise.resolve(_joined(JoinReply(error=code, member_id=body.member_id)))
                return
            self.coordinator.join(
                join, self._state.monotonic_ms(), lambda reply: promise.resolve(_joined(reply))
            )
            self._set_timer()

        self.when_known(body.group_id, known)
        return promise

    def sync(self, _: BrokerState, request: Request) -> Promise[Tree]:
        body = request.body
        promise: Parked[Tree] = Parked()
        sync = Sync(
            group_id=body.group_id,
            member_id=body.member_id,
            group_instance_id=getattr(body, "group_instance_id", None),
            generation_id=body.generation_id,
            protocol_type=getattr(body, "protocol_type", None),
            protocol_name=getattr(body, "protocol_name", None),
            assignments={given.member_id: bytes(given.assignment) for given in body.assignments},
        )

        def known(code: ErrorCode) -> None:
            promise.taken.resolve(None)
            if code is not ErrorCode.NONE:
                promise.resolve(_synced(SyncReply(error=code)))
                return
            self.coordinator.sync(
                sync, self._state.monotonic_ms(), lambda reply: promise.resolve(_synced(reply))
            )
            self._set_timer()

        self.when_known(body.group_id, known)
        return promise

    def heartbeat(self, _: BrokerState, request: Request) -> Promise[Tree]:
        body = request.body
        promise: Promise[Tree] = Promise()

        def known(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                code = self.coordinator.heartbeat(
                    body.group_id,
                    body.member_id,
                    getattr(body, "group_instance_id", None),
                    body.generation_id,
                    self._state.monotonic_ms(),
                )
            promise.resolve({"error_code": code})

        self.when_known(body.group_id, known)
        return promise

    def leave(self, _: BrokerState, request: Request) -> Promise[Tree]:
        promise: Promise[Tree] = Promise()

        def known(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                promise.resolve(self._leave(request))
            else:
                promise.resolve({"error_code": code, "members": []})

        self.when_known(request.body.group_id, known)
        return promise

    def _leave(self, request: Request) -> Tree:
        body = request.body
        now_ms = self._state.monotonic_ms()
        if request.version < MEMBERS_FROM:
            code = self.coordinator.leave(body.group_id, body.member_id, None, now_ms)
            self._set_timer()
            return {"error_code": code}
        if len(body.members) > self._state.config["group.max.size"]:
            return {"error_code": ErrorCode.INVALID_REQUEST, "members": []}
        members = [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": self.coordinator.leave(
                    body.group_id, member.member_id, member.group_instance_id, now_ms
                ),
            }
            for member in body.members
        ]
        self._set_timer()
        misplaced = self.coordinator.misplaced(body.group_id)
        return {"error_code": misplaced, "members": members if misplaced is ErrorCode.NONE else []}

    # --- time ---

    def _set_timer(self) -> None:
        due_ms = self.coordinator.next_deadline_ms()
        if due_ms is None or (self._timer is not None and self._timer_at_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = due_ms
        self._timer = self._state.loop.call_later(max(0, due_ms - self._state.monotonic_ms()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        # Members choose their timeouts: thousands of groups may wait for one moment.
        self.coordinator.expire_and_advance(self._state.monotonic_ms(), size_max_bytes=TURN_MAX_BYTES)
        self._set_timer()


def _ms(span: Any) -> int:
    return int(span.total_seconds() * 1000)


def _joined(reply: JoinReply) -> Tree:
    return {
        "error_code": reply.error,
        "generation_id": reply.generation_id,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name or "",
        "leader": reply.leader_id,
        "skip_assignment": reply.skips_assignment,
        "member_id": reply.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in reply.members
        ],
    }


def _synced(reply: SyncReply) -> Tree:
    return {
        "error_code": reply.error,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }
