"""Gives a topic's partitions more replicas, or fewer: what a change of `replication_factor` in HCL does.

`plan_resize` decides, purely: replicas that stay keep their place, new ones go to racks and hosts that the
partition does not use yet. `resize` makes the moves; it may be interrupted, and called again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from headrace.client.replica_admin import ReplicaAdmin
from headrace.client.replicas import ReplicaSurvey
from headrace.reassignment.draining import DrainPlan, Stuck, no_room
from headrace.reassignment.model import Assigned, Key, Move, Node, shared
from headrace.reassignment.moving import POLL_S, Mover, ReassignmentError, Report, silent
from headrace.reassignment.operations import Moved
from headrace.reassignment.reading import assigned, nodes_of, room_of
from headrace.reassignment.room import Room, shortage
from headrace.reassignment.throttling import Throttle

STUCK_NAMED_MAX: Final = 5
ROOM_REMEDY: Final = "Free space there (docs/operations/full-disk.md), or add a broker"


class CannotResizeError(ReassignmentError):
    """Some partitions cannot have so many replicas; nothing was changed. `stuck` names each."""

    def __init__(self, topic: str, factor: int, plan: DrainPlan) -> None:
        self.stuck = plan.stuck
        left = len(self.stuck) - STUCK_NAMED_MAX
        more = f"; and {left} more" if left > 0 else ""
        room = f". {plan.shortage}. {ROOM_REMEDY}" if plan.shortage else ""
        super().__init__(
            f"the partitions of {topic} cannot have {factor} replicas each, and nothing was changed: "
            f"{'; '.join(map(str, self.stuck[:STUCK_NAMED_MAX]))}{more}{room}"
        )


def plan_resize(
    nodes: Mapping[int, Node],
    partitions: Iterable[Assigned],
    in_sync: Mapping[Key, Collection[int]],
    topic: str,
    factor: int,
    room: Room | None = None,
) -> DrainPlan:
    """Returns the moves after which each partition of the topic has `factor` replicas.

    `partitions`: those of all topics, because the brokers with the fewest replicas get the new ones; `nodes`
    may take them, as far as there is `room`. What is taken away is out of sync or on a dead broker if
    anything is, and else shares a rack. The preferred leader stays. Deterministic.
    """
    wanted = sorted(partitions, key=lambda part: part.key)
    load = Counter(each for part in wanted for each in part.replicas)
    room = (room or Room()).copy()
    needed: list[int] = []
    is_short = False
    moves: list[Move] = []
    stuck: list[Stuck] = []
    for part in wanted:
        if part.key[0] != topic or len(part.replicas) == factor:
            continue
        if part.problem is not None:
            stuck.append(Stuck(part.key, part.problem))
            continue
        kept = _fewer(nodes, part.replicas, in_sync.get(part.key, ()), factor, load)
        needed += [part.size_bytes] * (factor - len(kept))
        after = _more(nodes, kept, factor, load, room, part.size_bytes)
        if len(after) < factor:
            free = [each for each in nodes if each not in kept]
            is_cramped = len(kept) + len(free) >= factor
            is_short = is_short or is_cramped
            problem = no_room(part, free) if is_cramped else _too_few(nodes, after, factor)
            stuck.append(Stuck(part.key, problem))
            continue
        load.subtract(part.replicas)
        load.update(after)
        moves.append(Move(part.key, part.replicas, after, part.size_bytes))
    return DrainPlan(tuple(moves), tuple(stuck), shortage(room, nodes, needed) if is_short else "")


def _more(
    nodes: Mapping[int, Node],
    replicas: tuple[int, ...],
    factor: int,
    load: Counter[int],
    room: Room,
    size_bytes: int,
) -> tuple[int, ...]:
    """Returns the replicas and as many others as are needed, or as there are with room; takes that room if
    they are as many as are needed."""
    after = list(replicas)
    added: list[int] = []
    while len(after) < factor:
        free = [each for each in nodes if each not in after and room.fits(each, size_bytes)]
        if not free:
            for each in added:
                room.take_back(each, size_bytes)
            break
        after.append(min(free, key=lambda each: (*shared(nodes, each, after), load[each], each)))
        room.put(after[-1], size_bytes)
        added.append(after[-1])
    return tuple(after)


def _fewer(
    nodes: Mapping[int, Node],
    replicas: tuple[int, ...],
    in_sync: Collection[int],
    factor: int,
    load: Counter[int],
) -> tuple[int, ...]:
    after = list(replicas)

    def worth(each: int) -> tuple[object, ...]:
        """The least is taken away first."""
        others = [other for other in after if other != each]
        racks, hosts = shared(nodes, each, others) if each in nodes else (0, 0)
        return (each in in_sync, each in nodes, each == replicas[0], -racks, -hosts, -load[each], -each)

    while len(after) > factor:
        after.remove(min(after, key=worth))
    return tuple(after)


def _too_few(nodes: Mapping[int, Node], replicas: tuple[int, ...], factor: int) -> str:
    able = f"{len(nodes)} are ({', '.join(map(str, sorted(nodes)))})" if nodes else "none is"
    out = sorted(set(replicas) - nodes.keys())
    held = f"; brokers {', '.join(map(str, out))}, which hold it, are not" if out else ""
    return f"it needs {factor} brokers that are alive and not drained, and {able}{held}"


def plan_of_resize(survey: ReplicaSurvey, topic: str, factor: int) -> DrainPlan:
    """Returns what giving a topic `factor` replicas would move."""
    in_sync = {key: part.isr for key, part in survey.partitions.items()}
    return plan_resize(nodes_of(survey), assigned(survey), in_sync, topic, factor, room_of(survey))


def resize(
    admin: ReplicaAdmin,
    topic: str,
    factor: int,
    *,
    timeout_s: float,
    throttle_bytes_per_s: int | None = None,
    report: Report = silent,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Moved:
    """Gives each partition of the topic `factor` replicas; returns once they are in sync.

    Raises `CannotResizeError` before anything is changed; `UnfinishedError` after `timeout_s` (what was begun
    goes on); `ReassignmentError` where brokers refuse; `ClientError`.
    """
    deadline_s = clock() + timeout_s
    survey = admin.replicas()
    while any(key[0] == topic for key in survey.unsettled) and clock() < deadline_s:
        sleep(POLL_S)  # another reassignment begins or ends just now
        survey = admin.replicas()
    plan = plan_of_resize(survey, topic, factor)
    if plan.stuck:
        raise CannotResizeError(topic, factor, plan)
    throttle = Throttle(admin, throttle_bytes_per_s)
    mover = Mover(admin, deadline_s, report, throttle.begin, clock=clock, sleep=sleep)
    begun = _on_their_way(survey, topic, plan)
    if begun:
        throttle.lift(topic)
    mover.run([*begun, *plan.moves])  # in this order they are throttled together
    if mover.refused:
        raise ReassignmentError("; ".join(list(mover.refused.values())[:STUCK_NAMED_MAX]))
    throttle.end()
    return Moved(len(plan.moves), sum(move.copied_bytes for move in plan.moves))


def _on_their_way(survey: ReplicaSurvey, topic: str, plan: DrainPlan) -> list[Move]:
    """Returns the partitions that an earlier call has sent on their way: they are awaited, too."""
    planned = {move.key for move in plan.moves}
    return [
        Move(key, survey.former(key), survey.targets(key), survey.size_bytes(key))
        for key in survey.reassignments
        if key[0] == topic and key in survey.partitions and key not in planned
    ]
