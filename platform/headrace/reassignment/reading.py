"""What a survey of a cluster means for a plan: who can take replicas, which ones partitions will have."""

from __future__ import annotations

from collections.abc import Collection

from headrace.client.replicas import ReplicaSurvey
from headrace.reassignment.model import Assigned, Key, Node


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
    return None
