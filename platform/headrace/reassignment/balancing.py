"""Which replicas move so that racks, replicas, bytes and leaders are spread evenly. Pure.

Four goals, one after the other; a later one does not undo an earlier one:
1. no partition has two replicas on one rack while a rack is free;
2. brokers have equally many replicas, give or take one;
3. brokers have equally many bytes, within a tolerance: a large replica is exchanged for a small one;
4. brokers are the preferred leaders of equally many partitions, give or take one. This copies nothing.

Each step strictly improves one sum of squares, so the plan ends; what is even already is not touched. A
broker gets only what its disk has room for, so goals may be missed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from headrace.reassignment.model import Assigned, Key, Load, Move, Node, loads, rack_count, shared
from headrace.reassignment.room import Room

BYTES_TOLERANCE: Final = 0.1  # of a broker's fair share
SMALL_BYTES: Final = 64 * 1024 * 1024  # a difference that is not worth a copy
EXCHANGES_MAX: Final = 500
LOOKED_AT_MAX: Final = 200  # replicas of a broker, the largest, that are looked at for one exchange


class BalancePlan(NamedTuple):
    """The moves, and what the brokers hold before and after them. `shortage`: the room on the disks of those
    that would have got more, if there are any."""

    moves: tuple[Move, ...]
    before: dict[int, Load]
    after: dict[int, Load]
    shortage: str = ""


def plan_balance(
    nodes: Mapping[int, Node],
    partitions: Iterable[Assigned],
    room: Room | None = None,
    *,
    small_bytes: int = SMALL_BYTES,
) -> BalancePlan:
    """Returns the moves that spread replicas over `nodes` evenly, as far as there is `room`; other brokers
    keep what they have.

    Partitions with a problem stay, and count. Deterministic.
    """
    before = sorted(partitions, key=lambda part: part.key)
    work = _Work(nodes, before, (room or Room()).copy())
    _separate_racks(work)
    _even_counts(work)
    _even_bytes(work, small_bytes)
    _even_leaders(work)
    moves = []
    for part in before:
        after = tuple(work.replicas[part.key])
        if set(after) != set(part.replicas) or after[0] != part.replicas[0]:
            moves.append(Move(part.key, part.replicas, after, part.size_bytes))
    done = [Assigned(part.key, tuple(work.replicas[part.key]), part.size_bytes) for part in before]
    short = work.room.refused
    told = work.room.described(short) if short else ""
    return BalancePlan(tuple(moves), loads(nodes, before), loads(nodes, done), told)


class _Work:
    """The assignment while it changes, and the sums that the steps look at."""

    def __init__(self, nodes: Mapping[int, Node], partitions: list[Assigned], room: Room) -> None:
        self.nodes = nodes
        self.room = room
        self.order = sorted(nodes)
        self.parts = {part.key: part for part in partitions}
        self.replicas = {part.key: list(part.replicas) for part in partitions}
        self.held: dict[int, set[Key]] = {each: set() for each in nodes}
        self.size_bytes: Counter[int] = Counter()
        for part in partitions:
            for each in set(part.replicas) & nodes.keys():
                self.held[each].add(part.key)
                self.size_bytes[each] += part.size_bytes

    def count(self, broker_id: int) -> int:
        return len(self.held[broker_id])

    def size(self, key: Key) -> int:
        return self.parts[key].size_bytes

    def movable(self, broker_id: int) -> Iterator[Key]:
        """Yields the partitions whose replica on this broker may move, in a fixed order."""
        return (key for key in sorted(self.held[broker_id]) if self.parts[key].problem is None)

    def may_move(self, key: Key, source: int, target: int) -> bool:
        """Whether a replica may go there: no second one on that broker, no fewer racks than now, and room."""
        if key in self.held[target]:
            return False
        now = self.replicas[key]
        then = [target if each == source else each for each in now]
        return rack_count(self.nodes, then) >= rack_count(self.nodes, now) and self.fits(key, target)

    def fits(self, key: Key, target: int) -> bool:
        """Whether a broker has room for a replica; for one that is there before the plan, it has."""
        return self.is_there(key, target) or self.room.fits(target, self.size(key))

    def is_there(self, key: Key, broker_id: int) -> bool:
        """Whether a broker has a replica before the plan."""
        return broker_id in self.parts[key].replicas

    def may_exchange(self, given: Key, taken: Key, source: int, target: int) -> bool:
        """Whether there is room for both, each of which may move; on one disk they need it together."""
        if not self.room.is_one_disk(source, target):
            return True
        return self.room.fits(target, self.size(given), beside_bytes=self.size(taken))

    def move(self, key: Key, source: int, target: int) -> None:
        replicas = self.replicas[key]
        replicas[replicas.index(source)] = target
        self.held[source].discard(key)
        self.held[target].add(key)
        self.size_bytes[source] -= self.size(key)
        self.size_bytes[target] += self.size(key)
        if not self.is_there(key, target):
            self.room.put(target, self.size(key))
        if not self.is_there(key, source):
            self.room.take_back(source, self.size(key))


def _separate_racks(work: _Work) -> None:
    """Moves replicas that share a rack to racks that their partition does not use."""
    for key, part in work.parts.items():
        while part.problem is None:
            replicas = [each for each in work.replicas[key] if each in work.nodes]
            used = {work.nodes[each].rack for each in replicas}
            sharing = [each for each in replicas if shared(work.nodes, each, replicas)[0] > 1]
            free = (
                [each for each in work.order if work.nodes[each].rack not in used and work.fits(key, each)]
                if sharing
                else []
            )
            if not sharing or not free:
                break
            source = max(sharing, key=lambda each: (work.count(each), work.size_bytes[each], each))
            target = min(free, key=lambda each: (work.count(each), work.size_bytes[each], each))
            work.move(key, source, target)


def _even_counts(work: _Work) -> None:
    while (step := _next_count_step(work)) is not None:
        work.move(*step)


def _next_count_step(work: _Work) -> tuple[Key, int, int] | None:
    """Returns a replica that goes from a broker to one with at least two fewer: the one that brings their
    bytes closest."""
    by_count = sorted(work.order, key=lambda each: (work.count(each), work.size_bytes[each], each))
    for source in reversed(by_count):
        for target in by_count:
            if work.count(source) - work.count(target) < 2:
                break
            gap_bytes = work.size_bytes[source] - work.size_bytes[target]
            keys = [key for key in work.movable(source) if work.may_move(key, source, target)]
            if keys:
                best = min(keys, key=lambda key: (abs(gap_bytes - 2 * work.size(key)), key))
                return best, source, target
    return None


def _even_bytes(work: _Work, small_bytes: int) -> None:
    if not work.order:
        return
    tolerance = max(small_bytes, BYTES_TOLERANCE * sum(work.size_bytes.values()) / len(work.order))
    for _ in range(EXCHANGES_MAX):
        exchange = _next_exchange(work, tolerance)
        if exchange is None:
            return
        given, taken, source, target = exchange
        work.move(given, source, target)
        if taken is not None:
            work.move(taken, target, source)
        _even_counts(work)  # racks may have been in the way before


def _next_exchange(work: _Work, tolerance: float) -> tuple[Key, Key | None, int, int] | None:
    by_bytes = sorted(work.order, key=lambda each: (work.size_bytes[each], each))
    for source in reversed(by_bytes):
        for target in by_bytes:
            gap_bytes = work.size_bytes[source] - work.size_bytes[target]
            if gap_bytes <= tolerance:
                break
            best = _best_exchange(work, source, target, gap_bytes)
            if best is not None:
                return (*best, source, target)
    return None


def _best_exchange(work: _Work, source: int, target: int, gap_bytes: int) -> tuple[Key, Key | None] | None:
    """Returns what goes to the target and what comes back, so that their bytes come closest. Nothing has to
    come back if the source has more replicas."""
    largest_first = sorted(work.movable(source), key=lambda key: (-work.size(key), key))[:LOOKED_AT_MAX]
    smallest_first = sorted(work.movable(target), key=lambda key: (work.size(key), key))[:LOOKED_AT_MAX]
    back: list[Key | None] = [key for key in smallest_first if work.may_move(key, target, source)]
    if work.count(source) > work.count(target):
        back.insert(0, None)
    best: tuple[int, int, Key, Key | None] | None = None
    for given in largest_first:
        if not work.may_move(given, source, target):
            continue
        for taken in back:
            difference = work.size(given) - (0 if taken is None else work.size(taken))
            if 0 < difference < gap_bytes and (
                taken is None or work.may_exchange(given, taken, source, target)
            ):
                found = (abs(gap_bytes - 2 * difference), 0 if taken is None else 1, given, taken)
                if best is None or found[:2] < best[:2]:
                    best = found
    return None if best is None else (best[2], best[3])


# --- leaders ---


def _even_leaders(work: _Work) -> None:
    """Changes preferred leaders along chains of replicas: from a broker with many to one with at least two
    fewer."""
    leaders = Counter(replicas[0] for replicas in work.replicas.values())
    while (chain := _next_chain(work, leaders)) is not None:
        first, last = work.replicas[chain[0][0]][0], chain[-1][1]
        for key, follower in chain:
            replicas = work.replicas[key]
            at = replicas.index(follower)
            replicas[0], replicas[at] = replicas[at], replicas[0]
        leaders[first] -= 1
        leaders[last] += 1


def _next_chain(work: _Work, leaders: Counter[int]) -> list[tuple[Key, int]] | None:
    """Returns a chain as (partition, its next preferred leader), from the leader of the first to the broker
    with the fewest that is reached; the shortest one to it."""
    led: dict[int, list[Key]] = {each: [] for each in work.order}
    for key, replicas in work.replicas.items():
        if work.parts[key].problem is None and replicas[0] in led:
            led[replicas[0]].append(key)
    for source in sorted(work.order, key=lambda each: (-leaders[each], each)):
        reached = _reached(work, led, source)
        last = min(reached, key=lambda each: leaders[each])
        if leaders[source] - leaders[last] >= 2:
            return _chain_to(last, reached)
    return None


def _reached(work: _Work, led: Mapping[int, list[Key]], source: int) -> dict[int, tuple[Key, int] | None]:
    """Returns the brokers that could lead more if `source` led less, nearest first: by which partition, and
    from whom."""
    reached: dict[int, tuple[Key, int] | None] = {source: None}
    waiting = deque([source])
    while waiting:
        broker = waiting.popleft()
        steps = [(key, each) for key in led[broker] for each in work.replicas[key][1:]]
        for key, follower in steps:
            if follower in led and follower not in reached:
                reached[follower] = (key, broker)
                waiting.append(follower)
    return reached


def _chain_to(broker: int, reached: Mapping[int, tuple[Key, int] | None]) -> list[tuple[Key, int]]:
    chain: list[tuple[Key, int]] = []
    while (step := reached[broker]) is not None:
        key, before = step
        chain.append((key, broker))
        broker = before
    return chain[::-1]
