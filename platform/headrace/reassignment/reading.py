"""What a survey of a cluster means for a plan: who can take replicas, which ones partitions will have, and
how much room there is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from headrace.client.replicas import ReplicaSurvey
from headrace.reassignment.model import Assigned, Key, Move, Node
from headrace.reassignment.room import GROWTH_PART, Disk, Room

RESERVE_DEFAULT_BYTES: Final = 256 * 1024 * 1024
"""What stays free on the disk of a broker that does not say its reserve: the default of ours."""


def nodes_of(survey: ReplicaSurvey, *, without: Collection[int] = ()) -> dict[int, Node]:
    """Returns the brokers that can take replicas: registered, answering, not drained, not in `without`."""
    silent = {each.broker_id for each in survey.silent}
    out = survey.drained | silent | set(without)
    return {
        each.broker_id: Node(each.broker_id, each.rack, each.address.host)
        for each in survey.brokers.values()
        if each.broker_id not in out
    }


def assigned(survey: ReplicaSurvey) -> list[Assigned]:
    """Returns all partitions as they will be when the reassignments under way have ended; one that cannot end
    as it was before it began."""
    return [
        Assigned(key, expected(survey, key), survey.size_bytes(key), _problem(survey, key))
        for key in sorted(survey.partitions)
    ]


def room_of(survey: ReplicaSurvey, *, begun: Iterable[Move] = (), growth_part: int = GROWTH_PART) -> Room:
    """Returns the room on the disks. `begun`: moves that were asked for; those that no broker shows yet take
    their room, too.

    Brokers that do not say on which file system their logs are share one with all others of their address.
    """
    lacking = _lacking(survey, begun)
    by_disk: dict[str, list[int]] = defaultdict(list)
    for each in sorted(survey.rooms):
        host = survey.brokers[each].address.host if each in survey.brokers else str(each)
        by_disk[survey.rooms[each].file_system or f"of {host}"].append(each)
    disks = []
    for brokers in by_disk.values():
        rooms = [survey.rooms[each] for each in brokers]
        reserves = [
            each.reserve_bytes if each.reserve_bytes >= 0 else RESERVE_DEFAULT_BYTES for each in rooms
        ]
        owed_bytes = sum(lacking[each] for each in brokers)
        disks.append(Disk(tuple(brokers), min(each.free_bytes for each in rooms), max(reserves), owed_bytes))
    return Room(disks, growth_part=growth_part)


def _lacking(survey: ReplicaSurvey, begun: Iterable[Move]) -> Counter[int]:
    """Returns how many bytes each broker has yet to fetch of the replicas that it has, or is to get."""
    lacking: Counter[int] = Counter()
    after = {move.key: move.after for move in begun}
    for key in survey.partitions:
        size_bytes = survey.size_bytes(key)
        for each in {*expected(survey, key), *after.get(key, ())}:
            held = survey.stored.get((each, *key))
            lacking[each] += max(0, size_bytes - (0 if held is None else held.size_bytes))
    return lacking


def held_by(survey: ReplicaSurvey, broker_id: int) -> list[Key]:
    """Returns the partitions of which a broker has a replica, also one that it gains or loses now."""
    return sorted(key for key, part in survey.partitions.items() if broker_id in part.replicas)


def expected(survey: ReplicaSurvey, key: Key) -> tuple[int, ...]:
    """Returns the replicas that a partition will have; those of before a reassignment that cannot end."""
    under_way = survey.reassignments.get(key)
    # One that is added, and to go, is of an earlier reassignment: nobody waits for it.
    adding = set(under_way.adding) - set(under_way.removing) if under_way else set()
    has_died = any(each not in survey.brokers for each in adding)
    return survey.former(key) if has_died else survey.targets(key)


def _problem(survey: ReplicaSurvey, key: Key) -> str | None:
    """Why a partition cannot move: nobody could give its new replicas what it holds."""
    part = survey.partitions[key]
    if part.leader not in survey.brokers:
        return (
            "it has no leader, so nothing can be copied: start one of the brokers that are in sync, or "
            f"eligible (`headrace topics describe {key[0]}`), or delete its topic"
        )
    if key in survey.unsettled:
        return "its replicas change just now: try again"
    if not survey.is_size_known(key):
        return (
            f"how large it is is not known, because broker {part.leader}, which leads it, does not answer: "
            "start it again"
        )
    return None
