"""Fences the coordinators of Kafka's groups: one that was replaced stores no offset any more.

Which broker coordinates a group follows from the live brokers. A coordinator that hangs is replaced once its
session has ended; its successor takes newer commits. Should the old one then go on with a commit that it had
accepted before, the group's offset would go back.

So each commit is stored only while its coordinator is registered as the one that accepted it (its broker
epoch, KIP-380), and the group is still its own by what ZooKeeper holds. A group moves away from a broker that
lives only when another one registers: so the write also checks that none has since. Nor may the group have
been another broker's meanwhile and have come back: that one took newer commits. Calls block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.broker.groups.coordinator import coordinator_for
from headrace.broker.state import BrokerState
from headrace.coordination import documents, znodes
from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import ZooKeeperSession


class NotCoordinatorError(CoordinationError):
    """Another broker coordinates the group, or this one has registered again since the commit was accepted:
    nothing was stored. The client finds the coordinator, and commits where it is then.
    """


@dataclass(slots=True)
class Coordinator:
    """The broker that accepted a commit, and the broker epoch that it had then.

    `is_over`: it has seen since that another broker coordinated the group. Set on the loop's thread.
    """

    broker_id: int
    broker_epoch: int
    is_over: bool = field(default=False, compare=False)


def registered(state: BrokerState) -> Coordinator:
    """Returns this broker, as it was registered last as far as it has seen."""
    return Coordinator(state.broker_id, state.view.broker_epoch(state.broker_id))


class Registrations(NamedTuple):
    """The brokers that were registered at one moment, as a coordinator has read them.

    `version`: of the node that counts the registrations of all brokers.
    """

    coordinator: Coordinator
    version: int
    live: Collection[int]

    def guard(self, group: str) -> Mapping[str, int]:
        """Returns the nodes, with their versions (-1: any), that a write for this group must check. They hold
        until a broker registers: one that dies takes no group from a broker that lives.

        Raises `NotCoordinatorError`.
        """
        broker_id = self.coordinator.broker_id
        now = coordinator_for(group, self.live)
        if now != broker_id:
            raise NotCoordinatorError(f"group {group!r} is coordinated by broker {now}, not by {broker_id}")
        return {znodes.REGISTRATIONS: self.version, znodes.broker(broker_id): -1}


def registrations(session: ZooKeeperSession, group: str, coordinator: Coordinator) -> Registrations:
    """Reads the brokers that live now. Raises `NotCoordinatorError`, `CoordinationError`."""
    broker_id, epoch = coordinator.broker_id, coordinator.broker_epoch
    # The count of all registrations comes first: its version guards what is read then.
    (counted,) = session.stat_many([znodes.REGISTRATIONS])
    stat = session.exists(znodes.broker(broker_id))
    if counted is None or stat is None or stat.created_zxid != epoch:
        raise NotCoordinatorError(
            f"group {group!r}: broker {broker_id} accepted a commit in broker epoch {epoch}, which is over"
        )
    live = documents.numbers(session.children_or_empty(znodes.BROKER_IDS))
    _refuse_if_over(group, coordinator)
    return Registrations(coordinator, counted.version, live)


def _refuse_if_over(group: str, coordinator: Coordinator) -> None:
    if coordinator.is_over:
        accepted = f"broker {coordinator.broker_id} accepted this"
        raise NotCoordinatorError(f"group {group!r}: another broker coordinated it since {accepted}")


def guard(session: ZooKeeperSession, group: str, coordinator: Coordinator) -> Mapping[str, int]:
    """Returns what a write for this group must check. Raises `NotCoordinatorError`, `CoordinationError`."""
    return registrations(session, group, coordinator).guard(group)


class Guards(Protocol):
    """Makes what the writes of one session must check."""

    session: ZooKeeperSession

    def guard(self, group: str, coordinator: Coordinator) -> Mapping[str, int]: ...

    def anew(self, group: str, coordinator: Coordinator) -> Mapping[str, int]: ...


class Fence:
    """Makes the guards of one session's commits. Most take no read: the brokers that it has read stay known,
    until they do not do for a group, or a write found that its guard did not hold.
    """

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session
        self._known: Registrations | None = None

    def guard(self, group: str, coordinator: Coordinator) -> Mapping[str, int]:
        """Returns a guard of what is known, which a write may find outdated. Raises as `anew`."""
        _refuse_if_over(group, coordinator)
        known = self._known
        if known is not None and known.coordinator == coordinator:
            with suppress(NotCoordinatorError):  # the broker that had the group may have died since
                return known.guard(group)
        return self.anew(group, coordinator)

    def anew(self, group: str, coordinator: Coordinator) -> Mapping[str, int]:
        """Returns a guard of what is read now. Raises `NotCoordinatorError`, `CoordinationError`."""
        self._known = found = registrations(self.session, group, coordinator)
        return found.guard(group)
