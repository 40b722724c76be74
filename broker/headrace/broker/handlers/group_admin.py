"""The APIs of Kafka's administration tools for groups: ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.fencing import NotCoordinatorError
from headrace.broker.groups.recovery import Recovery
from headrace.broker.groups.store import GroupStore
from headrace.broker.groups.subscriptions import CONSUMER_PROTOCOL_TYPE
from headrace.broker.groups.types import GroupOverview
from headrace.broker.handlers import allowed
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.coordination.consumers import is_group_name
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

GROUP_TYPE: Final = "classic"
LISTED_HERE_MAX: Final = 100


class GroupAdministration:
    """The handlers of these APIs. `coordinates(group_id)`: whether this broker is the group's coordinator."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        store: GroupStore,
        recovery: Recovery,
        coordinates: Callable[[str], bool],
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._recovery = recovery
        self._coordinates = coordinates

    def describe(self, _: BrokerState, request: Request) -> Promise[Tree | Exception]:
        """Describes groups; those without members are "Empty" if they have offsets, else "Dead". While that
        is not known, they get an error after which clients ask again.
        """
        # Each group is answered once: repeated ones would multiply the response.
        wanted = list(dict.fromkeys(request.body.groups))
        promise: Promise[Tree | Exception] = Promise()

        def respond(stored: list[str] | Exception) -> None:
            known = None if isinstance(stored, Exception) else set(stored)
            may = allowed.answer(allowed.ON_GROUP, request.body, "include_authorized_operations")
            found = [self._describe(group, known) for group in wanted]
            promise.resolve({"groups": [{**each, "authorized_operations": may} for each in found]})

        self._read_groups(respond, frozenset(wanted).__contains__)
        return promise

    def _read_groups(
        self, respond: Callable[[list[str] | Exception], None], is_wanted: Callable[[str], bool]
    ) -> None:
        """Reads the names of all groups that are wanted; then restores those that are this broker's own."""

        def read(stored: list[str] | Exception) -> None:
            if isinstance(stored, Exception):
                respond(stored)
            else:
                self._recovery.when_all_known(stored, lambda: respond(stored))

        self._store.groups(is_wanted).then(read)

    def _describe(self, group_id: str, stored: Collection[str] | None) -> Tree:
        code, found = self._coordinator.describe(group_id)
        if found is None:
            is_stored = group_id in (stored or ())
            is_untold = stored is None or (is_stored and not self._recovery.is_known(group_id))
            if is_untold and code is ErrorCode.NONE:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            state = "Empty" if is_stored else "Dead"
            kind = CONSUMER_PROTOCOL_TYPE if is_stored else ""  # as ListGroups says
            return {
                "error_code": code,
                "group_id": group_id,
                "group_state": state,
                "protocol_type": kind,
                "protocol_data": "",
                "members": [],
            }
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

    def list(self, _: BrokerState, request: Request) -> Promise[Tree | Callable[[], Tree] | Exception]:
        """Lists this broker's groups: those with members, and those with offsets only. While the latter are
        not known, there is an error beside the others. A long list is made on a thread.
        """
        # The Java client writes "Classic" for "classic": names of states and types are compared without case.
        states = {state.lower() for state in getattr(request.body, "states_filter", ())}
        types = {kind.lower() for kind in getattr(request.body, "types_filter", ())}
        promise: Promise[Tree | Callable[[], Tree] | Exception] = Promise()

        def respond(stored: list[str] | Exception) -> None:
            present = self._coordinator.groups()
            names = () if isinstance(stored, Exception) else stored

            def make() -> Tree:
                found = {group.group_id: _listed(group) for group in present}
                for group_id in names:
                    if group_id not in found and self._coordinates(group_id):
                        found[group_id] = _listed_empty(group_id)
                return {
                    "error_code": ErrorCode.NONE if names is stored else ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    "groups": [
                        group
                        for group in found.values()
                        if (not states or group["group_state"].lower() in states)
                        and (not types or group["group_type"].lower() in types)
                    ],
                }

            promise.resolve(make if len(present) + len(names) > LISTED_HERE_MAX else make())

        self._read_groups(respond, self._coordinates)
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
                code = self._coordinator.refuse_delete(name)
                if code is ErrorCode.NONE and is_group_name(name):
                    self._store.delete(name).then(deleted)
                    return
                record(code if code is not ErrorCode.NONE else ErrorCode.GROUP_ID_NOT_FOUND)
            promise.resolve({"results": results})

        self._recovery.when_all_known(names, go_on)
        return promise


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
        "protocol_type": CONSUMER_PROTOCOL_TYPE,
        "group_state": "Empty",
        "group_type": GROUP_TYPE,
    }
