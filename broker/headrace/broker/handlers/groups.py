"""Kafka's own group protocol on the wire: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ListGroups,
DescribeGroups, DeleteGroups.

Translates between messages and the state machine in `broker.groups`; owns the timer of its deadlines.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from uuid import uuid4

from headrace.broker.bodies import Tree
from headrace.broker.cluster import NO_EPOCH
from headrace.broker.errors import Refused
from headrace.broker.groups.coordinator import GroupCoordinator, coordinator_for
from headrace.broker.groups.fencing import NotCoordinatorError
from headrace.broker.groups.offset_queue import OffsetStore
from headrace.broker.groups.types import (
    GroupLimits,
    GroupOverview,
    Join,
    JoinReply,
    MemberProtocol,
    Sync,
    SyncReply,
)
from headrace.broker.handlers.offsets import OffsetService
from headrace.broker.loop import Timer
from headrace.broker.promise import Promise
from headrace.broker.service import Api, BrokerService
from headrace.broker.state import BrokerState
from headrace.coordination.consumers import is_group_name
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

MEMBER_ID_REQUIRED_FROM: Final = 4  # JoinGroup versions that know KIP-394
MEMBERS_FROM: Final = 3  # LeaveGroup versions that name several members
GROUP_TYPE: Final = "classic"
CLIENT_ID_LENGTH_MAX: Final = 255  # characters of it that a member's id begins with


class GroupService:
    """The groups this broker coordinates, and their timer."""

    def __init__(self, state: BrokerState, offsets: OffsetStore) -> None:
        self._state = state
        self._offsets = offsets
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._epoch = NO_EPOCH  # of this broker's registration, as it was seen last
        self.coordinator = GroupCoordinator(
            coordinates=self._coordinates,
            new_member_id=lambda client_id: f"{client_id[:CLIENT_ID_LENGTH_MAX]}-{uuid4()}",
            initial_delay_ms=state.config["group.initial.rebalance.delay.ms"],
            limits=GroupLimits(
                state.config["group.min.session.timeout.ms"],
                state.config["group.max.session.timeout.ms"],
                state.config["group.max.size"],
            ),
        )

    def _coordinates(self, group_id: str) -> bool:
        return coordinator_for(group_id, self._state.view.brokers) == self._state.broker_id

    def serve(self, service: BrokerService, offsets: OffsetService) -> None:
        """Serves all APIs of groups, those of their offsets included."""
        service.add(ApiKey.JOIN_GROUP, Api(0, 9, self.join))
        service.add(ApiKey.SYNC_GROUP, Api(0, 5, self.sync))
        service.add(ApiKey.HEARTBEAT, Api(0, 4, self.heartbeat))
        service.add(ApiKey.LEAVE_GROUP, Api(0, 5, self.leave))
        service.add(ApiKey.DESCRIBE_GROUPS, Api(0, 5, self.describe))
        service.add(ApiKey.LIST_GROUPS, Api(0, 5, self.list))
        service.add(ApiKey.DELETE_GROUPS, Api(0, 2, self.delete))
        service.add(ApiKey.OFFSET_COMMIT, Api(2, 9, offsets.commit))
        service.add(ApiKey.OFFSET_FETCH, Api(1, 9, offsets.fetch))
        service.add(ApiKey.OFFSET_DELETE, Api(0, 0, offsets.delete))

    def brokers_changed(self) -> None:
        """Disbands the groups that other brokers coordinate now, or did since this one registered before."""
        epoch_before, self._epoch = self._epoch, self._state.view.broker_epoch(self._state.broker_id)
        self.coordinator.brokers_changed(has_registered=self._epoch != epoch_before)
        self._offsets.brokers_changed(self._coordinates)

    def join(self, _: BrokerState, request: Request) -> Promise[Tree]:
        body = request.body
        promise: Promise[Tree] = Promise()
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
        )
        self.coordinator.join(join, self._state.monotonic_ms(), lambda reply: promise.resolve(_joined(reply)))
        self._set_timer()
        return promise

    def sync(self, _: BrokerState, request: Request) -> Promise[Tree]:
        body = request.body
        promise: Promise[Tree] = Promise()
        sync = Sync(
            group_id=body.group_id,
            member_id=body.member_id,
            group_instance_id=getattr(body, "group_instance_id", None),
            generation_id=body.generation_id,
            protocol_type=getattr(body, "protocol_type", None),
            protocol_name=getattr(body, "protocol_name", None),
            assignments={given.member_id: bytes(given.assignment) for given in body.assignments},
        )
        self.coordinator.sync(sync, self._state.monotonic_ms(), lambda reply: promise.resolve(_synced(reply)))
        self._set_timer()
        return promise

    def heartbeat(self, _: BrokerState, request: Request) -> Tree:
        body = request.body
        code = self.coordinator.heartbeat(
            body.group_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
            body.generation_id,
            self._state.monotonic_ms(),
        )
        return {"error_code": code}

    def leave(self, _: BrokerState, request: Request) -> Tree:
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
        misplaced = self.coordinator.refuse_offset_read(body.group_id)
        return {"error_code": misplaced, "members": members if misplaced is ErrorCode.NONE else []}

    def describe(self, _: BrokerState, request: Request) -> Promise[Tree | Exception]:
        """Describes groups; those without members are "Empty" if they have offsets, else "Dead". While that
        is not known, they get an error after which clients ask again.
        """
        # Each group is answered once: repeated ones would multiply the response.
        wanted = list(dict.fromkeys(request.body.groups))
        promise: Promise[Tree | Exception] = Promise()

        def respond(stored: list[str] | Exception) -> None:
            known = None if isinstance(stored, Exception) else set(stored)
            promise.resolve({"groups": [self._describe(group, known) for group in wanted]})

        self._offsets.groups().then(respond)
        return promise

    def _describe(self, group_id: str, stored: Collection[str] | None) -> Tree:
        code, found = self.coordinator.describe(group_id)
        if found is None:
            if stored is None and code is ErrorCode.NONE:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            state = "Empty" if group_id in (stored or ()) else "Dead"
            dead = {"group_state": state, "protocol_type": "", "protocol_data": ""}
            return {"error_code": code, "group_id": group_id, "members": [], **dead}
        return {
            "error_code": code,
            "group_id": group_id,
            "group_state": found.state.value,
            "protocol_type": found.protocol_type,
            "protocol_data": found.protocol_name,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata,
                    "member_assignment": member.assignment,
                }
                for member in found.members
            ],
        }

    def list(self, _: BrokerState, request: Request) -> Promise[Tree | Exception]:
        """Lists this broker's groups: those with members, and those with offsets only. While the latter are
        not known, there is an error beside the others.
        """
        # The Java client writes "Classic" for "classic": names of states and types are compared without case.
        states = {state.lower() for state in getattr(request.body, "states_filter", ())}
        types = {kind.lower() for kind in getattr(request.body, "types_filter", ())}
        promise: Promise[Tree | Exception] = Promise()

        def respond(stored: list[str] | Exception) -> None:
            found = {group.group_id: _listed(group) for group in self.coordinator.groups()}
            is_known = not isinstance(stored, Exception)
            for group_id in () if isinstance(stored, Exception) else stored:
                if group_id not in found and self._coordinates(group_id):
                    found[group_id] = _listed_empty(group_id)
            promise.resolve(
                {
                    "error_code": ErrorCode.NONE if is_known else ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    "groups": [
                        group
                        for group in found.values()
                        if (not states or group["group_state"].lower() in states)
                        and (not types or group["group_type"].lower() in types)
                    ],
                }
            )

        self._offsets.groups().then(respond)
        return promise

    def delete(self, _: BrokerState, request: Request) -> Promise[Tree]:
        names = list(dict.fromkeys(request.body.groups_names))
        promise: Promise[Tree] = Promise()
        results: list[Tree] = []

        def record(code: ErrorCode) -> None:
            results.append({"group_id": names[len(results)], "error_code": code})

        def deleted(outcome: bool | Exception) -> None:
            if isinstance(outcome, NotCoordinatorError):
                record(ErrorCode.NOT_COORDINATOR)
            elif isinstance(outcome, Exception):
                is_passing = isinstance(outcome, Refused) or getattr(outcome, "retriable", False)
                record(ErrorCode.COORDINATOR_NOT_AVAILABLE if is_passing else ErrorCode.NON_EMPTY_GROUP)
            else:
                record(ErrorCode.NONE if outcome else ErrorCode.GROUP_ID_NOT_FOUND)
            go_on()

        def go_on() -> None:
            """Deletes one group after the other: a request occupies one thread, however many it names."""
            while len(results) < len(names):
                name = names[len(results)]
                code = self.coordinator.refuse_delete(name)
                if code is ErrorCode.NONE and is_group_name(name):
                    self._offsets.delete(name).then(deleted)
                    return
                record(code if code is not ErrorCode.NONE else ErrorCode.GROUP_ID_NOT_FOUND)
            promise.resolve({"results": results})

        go_on()
        return promise

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
        self.coordinator.expire_and_advance(self._state.monotonic_ms())
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


def _listed(group: GroupOverview) -> Tree:
    return {
        "group_id": group.group_id,
        "protocol_type": group.protocol_type,
        "group_state": group.state.value,
        "group_type": GROUP_TYPE,
    }


def _listed_empty(group_id: str) -> Tree:
    return {
        "group_id": group_id,
        "protocol_type": "consumer",
        "group_state": "Empty",
        "group_type": GROUP_TYPE,
    }
