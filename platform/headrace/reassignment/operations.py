"""Drains a broker, takes it back, balances a cluster: what `headrace brokers` and Terraform call.

Each function may be interrupted at any moment, and called again: it begins with what it finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from headrace.client.replica_admin import ReplicaAdmin
from headrace.client.replicas import ReplicaSurvey
from headrace.reassignment.balancing import SMALL_BYTES, BalancePlan, plan_balance
from headrace.reassignment.draining import DrainPlan, plan_drain
from headrace.reassignment.model import Key, Move
from headrace.reassignment.moving import (
    POLL_S,
    Mover,
    ReassignmentError,
    Report,
    UnfinishedError,
    silent,
)
from headrace.reassignment.reading import assigned, held_by, nodes_of, room_of
from headrace.reassignment.room import DiskUse, uses
from headrace.reassignment.throttling import Throttle

DRAINED: Final = "headrace.drained"
DRAIN_TIMEOUT_S: Final = 3600.0
STUCK_NAMED_MAX: Final = 20
SEEN_MAX_S: Final = 5.0
GONE_WAIT_MAX_S: Final = 20.0  # a broker that was killed is registered until its session ends


class CannotDrainError(ReassignmentError):
    """Some partitions cannot leave the broker; nothing was changed. `stuck` names each, and its way out."""

    def __init__(self, broker_id: int, plan: DrainPlan) -> None:
        self.stuck = plan.stuck
        lines = [str(each) for each in self.stuck[:STUCK_NAMED_MAX]]
        if len(self.stuck) > STUCK_NAMED_MAX:
            lines.append(f"and {len(self.stuck) - STUCK_NAMED_MAX} more")
        if plan.shortage:
            lines.append(f"{plan.shortage}. {room_remedy(broker_id)}")
        super().__init__(
            f"broker {broker_id} cannot be drained, and nothing was changed: {len(self.stuck)} partitions "
            "cannot leave it:\n  " + "\n  ".join(lines)
        )


def room_remedy(broker_id: int) -> str:
    return (
        "Free space there (docs/operations/full-disk.md), or add a broker; `headrace brokers drain "
        f"{broker_id} --ignore-room` moves them all the same"
    )


class UnknownBrokerError(ReassignmentError):
    """No broker of this id is registered, has replicas, or is drained."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What was done: partitions that have moved, and the bytes that were copied for it."""

    partitions: int
    copied_bytes: int


def plan_of_drain(survey: ReplicaSurvey, broker_id: int, *, ignore_room: bool = False) -> DrainPlan:
    """Returns what draining a broker would move. Raises `UnknownBrokerError`."""
    _check_known(survey, broker_id)
    room = None if ignore_room else room_of(survey)
    return plan_drain(nodes_of(survey, without={broker_id}), assigned(survey), {broker_id}, room)


def drain(
    admin: ReplicaAdmin,
    broker_id: int,
    *,
    timeout_s: float = DRAIN_TIMEOUT_S,
    throttle_bytes_per_s: int | None = None,
    ignore_room: bool = False,
    report: Report = silent,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Moved:
    """Moves all replicas of a broker, alive or dead, to others, and keeps new ones away from it.

    `throttle_bytes_per_s`: how fast each broker copies (KIP-73); `ignore_room`: moves replicas to disks that
    have no room for them, too. Returns once nothing is left on it. Raises `CannotDrainError` before anything
    is changed if a partition's replicas could not all be kept, or the others' disks have no room for them;
    `UnfinishedError` after `timeout_s` (the broker stays marked as drained, and what was begun goes on);
    `ReassignmentError` where brokers refuse; `UnknownBrokerError`.
    """
    plan = plan_of_drain(admin.replicas(), broker_id, ignore_room=ignore_room)
    if plan.stuck:
        raise CannotDrainError(broker_id, plan)
    admin.alter_broker_configs(broker_id, {DRAINED: "true"})
    deadline_s = clock() + timeout_s
    throttle = Throttle(admin, throttle_bytes_per_s)
    moved, copied_bytes = set[Key](), 0
    while True:
        survey = admin.replicas()
        held = held_by(survey, broker_id)
        is_marked = broker_id in survey.drained_for_all
        if is_marked and not held:
            throttle.end()
            return Moved(len(moved), copied_bytes)
        plan = plan_of_drain(survey, broker_id, ignore_room=ignore_room)
        if plan.stuck and not plan.moves:
            room = f". {plan.shortage}. {room_remedy(broker_id)}" if plan.shortage else ""
            raise ReassignmentError("; ".join(map(str, plan.stuck[:STUCK_NAMED_MAX])) + room)
        # Those first: what an interrupted command has begun is throttled on, and is some of those at once.
        moves = [*_on_their_way(survey, held, plan, broker_id), *plan.moves]
        mover = Mover(
            admin,
            deadline_s,
            report,
            throttle.begin,
            clock=clock,
            sleep=sleep,
            looks_at_room=not ignore_room,
        )
        mover.run(moves)
        arrived = [move for move in moves if move.key not in mover.refused]
        if moves and not arrived and not mover.stale:
            raise ReassignmentError("; ".join(list(mover.refused.values())[:STUCK_NAMED_MAX]))
        moved |= {move.key for move in arrived}
        copied_bytes += sum(move.copied_bytes for move in arrived)
        if clock() >= deadline_s:
            raise UnfinishedError(f"broker {broker_id} is not drained in time: the same command continues")
        if not moves or mover.stale:
            sleep(POLL_S)  # a broker has not seen the mark yet, or others move partitions just now


def undrain(
    admin: ReplicaAdmin,
    broker_id: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Lets a broker get new replicas again; returns whether it was drained. Raises `UnknownBrokerError`.

    Waits until every broker that answers has seen it, at most `SEEN_MAX_S`.
    """
    survey = admin.replicas()
    _check_known(survey, broker_id)
    if broker_id not in survey.drained:
        return False
    admin.alter_broker_configs(broker_id, {DRAINED: None})
    deadline_s = clock() + SEEN_MAX_S
    while broker_id in admin.replicas().drained and clock() < deadline_s:
        sleep(POLL_S / 5)
    return True


def undrain_gone(
    admin: ReplicaAdmin,
    broker_id: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> bool:
    """Takes the mark of a drained broker away, once it is no longer registered; returns whether it is. One
    that runs on would get replicas again, and its host is taken away. Raises
    `UnknownBrokerError`.
    """
    deadline_s = clock() + GONE_WAIT_MAX_S
    while broker_id in admin.replicas().brokers:
        if clock() >= deadline_s:
            return False
        sleep(POLL_S)
    undrain(admin, broker_id)
    return True


def plan_of_balance(
    survey: ReplicaSurvey, *, small_bytes: int = SMALL_BYTES, ignore_room: bool = False
) -> BalancePlan:
    """Returns what would even replicas, bytes and leaders; what is on its way already stays as it is."""
    on_their_way = (*survey.reassignments, *survey.unsettled)
    waiting = dict.fromkeys(on_their_way, "it is on its way to other replicas")
    partitions = [
        each if each.problem else replace(each, problem=waiting.get(each.key)) for each in assigned(survey)
    ]
    room = None if ignore_room else room_of(survey)
    return plan_balance(nodes_of(survey), partitions, room, small_bytes=small_bytes)


def balance(
    admin: ReplicaAdmin,
    plan: BalancePlan,
    *,
    timeout_s: float = DRAIN_TIMEOUT_S,
    throttle_bytes_per_s: int | None = None,
    ignore_room: bool = False,
    report: Report = silent,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Moved, dict[Key, str]]:
    """Makes the moves of a plan, then gives partitions to their preferred leaders.

    Returns what was done, and why some partitions stay where they are. Raises `UnfinishedError`.
    """
    throttle = Throttle(admin, throttle_bytes_per_s)
    mover = Mover(
        admin,
        clock() + timeout_s,
        report,
        throttle.begin,
        clock=clock,
        sleep=sleep,
        looks_at_room=not ignore_room,
    )
    mover.run(plan.moves)
    throttle.end()
    elect_preferred(admin)
    arrived = [move for move in plan.moves if move.key not in mover.refused]
    return Moved(len(arrived), sum(move.copied_bytes for move in arrived)), mover.refused


def disks_of(survey: ReplicaSurvey, moves: Iterable[Move]) -> list[DiskUse]:
    """Returns the disks of all brokers that say what is free, and what moves need there."""
    return uses(room_of(survey), ((each, move.size_bytes) for move in moves for each in move.adding))


def elect_preferred(admin: ReplicaAdmin) -> int:
    """Gives partitions to their preferred leaders, where these are in sync; returns how many."""
    survey = admin.replicas()
    others = [
        key
        for key, part in survey.partitions.items()
        if key not in survey.reassignments and part.replicas[:1] != (part.leader,)
        if part.replicas[0] in part.isr and part.replicas[0] in survey.brokers
    ]
    if not others:
        return 0
    return len(others) - len(admin.elect_preferred(others))


def drain_broker(
    bootstrap: str,
    broker_id: int,
    *,
    timeout_s: float = DRAIN_TIMEOUT_S,
    report: Report = silent,
) -> Moved:
    """`drain` with an admin client of its own: for callers that have a cluster's addresses alone.

    Raises `ClientError` if no broker answers, and what `drain` raises.
    """
    with ReplicaAdmin(bootstrap) as admin:
        return drain(admin, broker_id, timeout_s=timeout_s, report=report)


def _on_their_way(survey: ReplicaSurvey, held: list[Key], plan: DrainPlan, broker_id: int) -> list[Move]:
    """Returns the partitions that leave the broker already: nothing is to be begun, only awaited. Those that
    were to get a replica on it stay where they were: it has died.
    """
    planned = {move.key for move in plan.moves} | {each.key for each in plan.stuck}
    moves: list[Move] = []
    for key in (key for key in held if key not in planned):
        before, after = survey.former(key), survey.targets(key)
        if broker_id in after:
            before, after = after, before
        moves.append(Move(key, before, after, survey.size_bytes(key)))
    return moves


def _check_known(survey: ReplicaSurvey, broker_id: int) -> None:
    known = set(survey.brokers) | survey.drained
    known |= {each for part in survey.partitions.values() for each in part.replicas}
    if broker_id not in known:
        raise UnknownBrokerError(
            f"there is no broker {broker_id}; known are {', '.join(map(str, sorted(known)))}"
        )
