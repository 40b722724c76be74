"""Has a replica fetched again from its leader: for one whose bytes differ from those that were counted.

The partition leaves the broker, which deletes what it holds, and comes back. A leader gives its leadership up
by that. The function may be interrupted, and called again: it begins with what it finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from headrace.client.errors import ClientError, NetworkError
from headrace.client.replica_admin import ReplicaAdmin
from headrace.client.replicas import ReplicaSurvey
from headrace.reassignment.model import Key, Move, named
from headrace.reassignment.moving import (
    POLL_S,
    Mover,
    ReassignmentError,
    Report,
    UnfinishedError,
    silent,
)
from headrace.wire.log_contents import NO_LOG, ContentRange, parse_value

DELETED_WAIT_MAX_S: Final = 10.0
"""How long a broker that has closed its old replica may take to delete it: the folder is renamed."""


class CannotRefetchError(ReassignmentError):
    """The replica cannot be fetched again; nothing was changed. The message says why."""


def refetch(
    admin: ReplicaAdmin,
    key: Key,
    broker_id: int,
    *,
    timeout_s: float,
    report: Report = silent,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Has the replica of one broker fetched again; returns its bytes.

    Raises `CannotRefetchError`, `UnfinishedError` or `ReassignmentError`.
    """
    deadline_s = clock() + timeout_s
    survey = admin.replicas()
    before, others = _checked(survey, key, broker_id)
    size_bytes = survey.size_bytes(key)
    # It gets what it had, and its bytes may be freed a moment after the folder is gone.
    mover = Mover(admin, deadline_s, report, clock=clock, sleep=sleep, looks_at_room=False)
    if broker_id in before:
        _move(mover, Move(key, before, others, size_bytes))
    # Else an earlier call was interrupted here: the broker comes back as the last replica.
    after = before if broker_id in before else (*others, broker_id)
    while _is_stored(admin, broker_id, key):
        if clock() >= deadline_s:
            raise UnfinishedError(
                f"broker {broker_id} still has its old replica of {named(key)}: run the same command again"
            )
        sleep(POLL_S)
    closed_s = clock()
    while _has_files(admin, broker_id, key):
        if clock() - closed_s >= DELETED_WAIT_MAX_S:
            raise ReassignmentError(
                f"broker {broker_id} was started again before it had deleted its old replica of "
                f"{named(key)}, and keeps the files: remove the folder {named(key)} from its data directory, "
                "then run the same command again"
            )
        sleep(POLL_S)
    _move(mover, Move(key, others, after, size_bytes))
    return size_bytes


def _checked(survey: ReplicaSurvey, key: Key, broker_id: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the replicas that a partition is to have, and those without the broker."""
    name = named(key)
    part = survey.partitions.get(key)
    if part is None:
        raise CannotRefetchError(f"there is no partition {name}")
    if broker_id not in survey.brokers or broker_id in {each.broker_id for each in survey.silent}:
        raise CannotRefetchError(f"broker {broker_id} does not answer: start it first")
    if key in survey.unsettled or key in survey.reassignments:
        raise CannotRefetchError(f"{name} is on its way to other replicas: try again when it has arrived")
    before = survey.targets(key)
    siblings = [survey.targets(each) for each in survey.partitions if each[0] == key[0] and each != key]
    if broker_id not in before and len(before) >= max(map(len, siblings), default=len(before) + 1):
        raise CannotRefetchError(
            f"broker {broker_id} has no replica of {name}, which is on brokers {', '.join(map(str, before))} "
            "(kafka-reassign-partitions adds one)"
        )
    others = tuple(each for each in before if each != broker_id)
    if not set(others) & set(part.isr):
        raise CannotRefetchError(
            f"no other replica of {name} than that of broker {broker_id} is in sync, so there is nothing to "
            "fetch it from: take the bytes from the mirror's copy or from a backup (docs/operations/"
            "dead-disk.md)"
        )
    return before, others


def _move(mover: Mover, move: Move) -> None:
    mover.run([move])
    if mover.refused:
        raise ReassignmentError("; ".join(mover.refused.values()))


def _is_stored(admin: ReplicaAdmin, broker_id: int, key: Key) -> bool:
    """Whether the broker may still have its old replica: one that does not answer comes back with it."""
    try:
        survey = admin.replicas()
    except NetworkError:
        return True
    is_silent = broker_id not in survey.brokers or broker_id in {each.broker_id for each in survey.silent}
    return is_silent or (broker_id, *key) in survey.stored


def _has_files(admin: ReplicaAdmin, broker_id: int, key: Key) -> bool:
    """Whether files of the old replica may be in the broker's data directory, although no log is open there:
    it would go on with them, and nothing would be fetched again."""
    asked = ContentRange(*key, 0, 1)
    try:
        entry = admin.describe_broker_configs(broker_id, [asked.name]).get(asked.name)
    except ClientError:
        return True
    answer = None if entry is None else parse_value(entry.value)
    return answer is None or answer.problem != NO_LOG
