"""Moves partitions to other brokers: a bounded number at a time, watched until each has arrived.

The cluster alone knows how far a move is, so a process that dies or is interrupted in between loses nothing:
what it began goes on, and a new plan begins with what is left. Logs grow meanwhile, so each move begins only
if there is room for it by then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.client.errors import NetworkError
from headrace.client.replica_admin import ReplicaAdmin
from headrace.client.replicas import ReplicaSurvey
from headrace.reassignment.model import Key, Move, named
from headrace.reassignment.reading import expected, room_of
from headrace.reassignment.room import Room

AT_ONCE_MAX: Final = 20
"""Partitions that move at the same time: each is one more that the leaders read from disk."""
POLL_S: Final = 0.5
RATE_OVER_S: Final = 10.0
ASK_AGAIN_S: Final = 5.0
"""A reassignment that no broker shows after so long is asked for again; to repeat it changes nothing."""
GONE_MAX_S: Final = 30.0
"""How long a broker may be away that a partition moves to, before the move is given up: it may restart."""
NAMED_MAX: Final = 5
CAUSES_MAX: Final = 1_000  # characters


class ReassignmentError(Exception):
    """Replicas could not be moved. The message names partitions, and says what to do."""


class UnfinishedError(ReassignmentError):
    """The time is up. What was begun goes on in the brokers; the same call later does the rest."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far moves are. `bytes_per_s` is that of the last seconds."""

    partitions_left: int
    partitions_total: int
    copied_bytes: int
    total_bytes: int
    bytes_per_s: float


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Reports to nobody."""


@dataclass(slots=True)
class _Active:
    move: Move
    asked_s: float
    gone_s: float | None = None
    """Since when a broker that it moves to is away."""


@dataclass(slots=True)
class Mover:
    """`run` makes moves, until `deadline_s` of the clock. `before_each` is called with the moves that are
    about to begin: throttles are set there. `refused` collects why partitions stay where they are, `stale`
    those of them for which another plan may do more: the cluster is not as it was when theirs was made.
    `delayed`: why brokers have not begun a move yet, which is asked for again.
    `looks_at_room`: whether a move whose new brokers have no room for it is given up.
    """

    admin: ReplicaAdmin
    deadline_s: float
    report: Report = silent
    before_each: Callable[[list[Move]], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    looks_at_room: bool = True
    refused: dict[Key, str] = field(default_factory=dict)
    stale: set[Key] = field(default_factory=set)
    delayed: dict[Key, str] = field(default_factory=dict)

    def run(self, moves: Iterable[Move]) -> None:
        """Returns once all partitions have arrived, or were refused. Raises `UnfinishedError`."""
        waiting = deque(moves)
        total, total_bytes = len(waiting), sum(move.copied_bytes for move in waiting)
        active: dict[Key, _Active] = {}
        done_bytes = 0
        rates: deque[tuple[float, int]] = deque()
        problem = ""
        while waiting or active:
            try:
                survey = self.admin.replicas()
            except NetworkError as error:
                problem = f" ({error})"
            else:
                problem = ""
                done_bytes += self._arrived(survey, active)
                self._begin(survey, waiting, active)
                copied = done_bytes + sum(_copied_bytes(survey, each.move) for each in active.values())
                rate = _rate(rates, self.clock(), copied)
                self.report(Progress(len(waiting) + len(active), total, copied, total_bytes, rate))
            if not waiting and not active:
                return
            if self.clock() >= self.deadline_s:
                raise self._unfinished([*active, *(move.key for move in waiting)], problem)
            self.sleep(POLL_S)

    def _begin(self, survey: ReplicaSurvey, waiting: deque[Move], active: dict[Key, _Active]) -> None:
        starting: list[Move] = []
        room = Room()
        if waiting and self.looks_at_room:
            # Without more for what arrives later: the plan has kept that.
            room = room_of(survey, begun=[each.move for each in active.values()], growth_part=0)
        while waiting and len(starting) < AT_ONCE_MAX - len(active):
            move = waiting.popleft()
            if problem := _outdated(survey, move) or _cramped(survey, move, room):
                self._give_up(move.key, problem)
            else:
                starting.append(move)
        now_s = self.clock()
        late = [each for each in active.values() if now_s - each.asked_s >= ASK_AGAIN_S]
        if starting:
            self.before_each(starting)
        for each in late:
            each.asked_s = now_s
        active |= {move.key: _Active(move, now_s) for move in starting}
        asked = starting + [each.move for each in late]
        if not asked:
            return
        try:
            refusals = self.admin.reassign({move.key: move.after for move in asked})
        except NetworkError as error:
            # Asked for again after `ASK_AGAIN_S`.
            self.delayed |= {move.key: f"{move.name}: {error}" for move in asked}
            return
        for move in asked:
            self.delayed.pop(move.key, None)
        for key, refusal in refusals.items():
            if refusal.retriable:
                self.delayed[key] = str(refusal)
            else:
                self.refused[key] = str(refusal)
                active.pop(key, None)

    def _give_up(self, key: Key, problem: str) -> None:
        self.refused[key] = problem
        self.stale.add(key)

    def _arrived(self, survey: ReplicaSurvey, active: dict[Key, _Active]) -> int:
        """Takes out what has arrived, or moves no more; returns the bytes that were copied for it."""
        copied = 0
        for key, each in list(active.items()):
            if key in survey.unsettled:
                continue
            if key not in survey.partitions:
                del active[key]  # its topic was deleted
            elif self._is_given_up(survey, each):
                del active[key]
            elif key in survey.reassignments:
                each.asked_s = self.clock()
            elif survey.targets(key) == each.move.after:
                copied += each.move.copied_bytes
                del active[key]
            elif set(survey.targets(key)) != set(each.move.before):
                self.refused[key] = f"{named(key)}: others moved it to {list(survey.targets(key))} meanwhile"
                del active[key]
        return copied

    def _is_given_up(self, survey: ReplicaSurvey, each: _Active) -> bool:
        gone = [broker for broker in each.move.adding if broker not in survey.brokers]
        if not gone:
            each.gone_s = None
            return False
        each.gone_s = self.clock() if each.gone_s is None else each.gone_s
        if self.clock() - each.gone_s < GONE_MAX_S:
            return False
        self._give_up(each.move.key, f"{each.move.name}: broker {gone[0]}, to which it moves, is gone")
        return True

    def _unfinished(self, left: list[Key], problem: str) -> UnfinishedError:
        names = ", ".join(map(named, left[:NAMED_MAX])) + (", …" if len(left) > NAMED_MAX else "")
        problem += "".join(f"; {self.delayed[key]}" for key in left if key in self.delayed)[:CAUSES_MAX]
        return UnfinishedError(
            f"not done in time: {len(left)} partitions are left ({names}){problem}; what was begun goes on, "
            "and the same command continues with the rest"
        )


def _outdated(survey: ReplicaSurvey, move: Move) -> str:
    """Returns why a move is not to begin: others have changed what its plan was made from. "" if nothing is
    known of that.
    """
    if move.key not in survey.partitions or move.key in survey.unsettled:
        return ""
    present = expected(survey, move.key)
    if present not in (move.before, move.after):
        return f"{move.name}: others moved it to {list(present)} meanwhile"
    if present == move.before and (drained := [each for each in move.adding if each in survey.drained]):
        return f"{move.name}: broker {drained[0]}, to which it was to move, is drained"
    if gone := [each for each in move.adding if each not in survey.brokers]:
        return f"{move.name}: broker {gone[0]}, to which it was to move, is gone"
    return ""


def _cramped(survey: ReplicaSurvey, move: Move, room: Room) -> str:
    """Returns why there is no room for a move; "" if there is, and then notes in `room` what it takes."""
    if move.key not in survey.partitions or expected(survey, move.key) == move.after:
        return ""  # it was begun already, and `room` knows it
    size_bytes = survey.size_bytes(move.key)
    full = room.put_all(move.adding, size_bytes)
    if full is None:
        return ""
    return (
        f"{move.name}: broker {full}, to which it was to move, has no room by now for its {size_bytes:,} "
        f"bytes: {room.described([full])}"
    )


def _copied_bytes(survey: ReplicaSurvey, move: Move) -> int:
    """Returns how much of a partition's new replicas is on their disks."""
    held = (survey.stored.get((each, *move.key)) for each in move.adding)
    return min(move.copied_bytes, sum(each.size_bytes for each in held if each is not None))


def _rate(seen: deque[tuple[float, int]], now_s: float, copied_bytes: int) -> float:
    """Returns the bytes a second of the last `RATE_OVER_S`."""
    seen.append((now_s, copied_bytes))
    while len(seen) > 2 and seen[0][0] < now_s - RATE_OVER_S:
        seen.popleft()
    elapsed_s = now_s - seen[0][0]
    return (copied_bytes - seen[0][1]) / elapsed_s if elapsed_s > 0 else 0.0
