"""Produce: each partition of a request is staged, passed on to its leader or refused.

Source: https://kafka.apache.org/protocol#The_Messages_Produce. Nothing is written here: batches are staged in
the partition's log, and the end of the wakeup writes them. `produce.job` collects what becomes of them.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from headrace.broker.core import ClientConnection
from headrace.broker.errors import Refused
from headrace.broker.produce.job import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    PartitionAppend,
    PassedPartition,
    ProduceJob,
    fill,
)
from headrace.broker.produce.opening_threads import BUSY, Found
from headrace.broker.produce.staging import stage
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.produce import ProduceRequest, refuse


class PassOn(Protocol):
    """Takes the partitions of a request that other brokers lead, and completes the job for them. `may_keep`:
    their batches stay as they are; otherwise they are valid during the call only.
    """

    def __call__(
        self, job: ProduceJob, body: ProduceRequest, passed: list[PassedPartition], *, may_keep: bool
    ) -> None: ...


def handle(
    state: BrokerState,
    connection: ClientConnection,
    request: Request,
    *,
    may_keep: bool,
    pass_on: PassOn | None = None,
) -> None:
    """Stages every partition's batches; the partitions complete the job.

    With `pass_on`, partitions that other brokers lead are given to it instead of being refused, and refusals
    name no leader: the client may have no way there.
    """
    body: ProduceRequest = request.body
    slot = None if body.acks == ACKS_NONE else connection.open_slot()
    refusal = _refusal(body)
    if refusal is not None:
        if slot is not None:
            fill(slot, request, refuse(body, *refusal))
        return
    job = ProduceJob(state, connection, slot, request, names_leaders=pass_on is None)
    found, left = state.checks.open_now(job.unopened(), state.clock_ms())
    if not left:
        _stage_all(state, job, body, found, may_keep=may_keep, pass_on=pass_on)
        return
    if not may_keep:
        job.copy_records()
        left = [each for each in job.unopened() if each.place not in found]

    def opened(later: Found) -> None:
        _stage_all(state, job, body, found | later, may_keep=True, pass_on=pass_on)
        connection.release()

    if state.checks.open_later(connection.peer, left, state.clock_ms(), opened):
        connection.hold()
    else:
        busy = Refused(ErrorCode.LEADER_NOT_AVAILABLE, BUSY)
        waiting: Found = {each.place: busy for each in left}
        _stage_all(state, job, body, found | waiting, may_keep=True, pass_on=pass_on)


def _stage_all(
    state: BrokerState,
    job: ProduceJob,
    body: ProduceRequest,
    found: Found,
    *,
    may_keep: bool,
    pass_on: PassOn | None,
) -> None:
    """Stages each part, passes it on or refuses it. `found`: what was learnt by opening the batches."""
    passed: list[PassedPartition] = []
    for place, (topic, part) in enumerate(job.parts):
        name = job.topic_name(topic)
        try:
            if name is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic.topic_id}")
            job.check_order(place)
            known = state.view.partition(name, part.partition)
            if pass_on is not None and known is not None and known.leader != state.broker_id:
                _result(job.batches[place])
                passed.append(PassedPartition(place, known.leader, topic, part))
                continue
            partition = state.led_partition(name, part.partition)
            state.check_not_cut_off(partition)
            if body.acks == ACKS_ALL:
                state.check_in_sync(partition)
            batches, opened = _result(job.batches[place]), _result(found.get(place))
            staged = stage(state, partition, batches, opened, may_keep=may_keep)
        except Refused as refused:
            job.refuse(place, refused)
            refused.kept()
            continue
        end = partition.log.staged_end_address
        append = PartitionAppend(job, place, staged, end, durable=body.acks == ACKS_ALL)
        state.partitions.staged(partition, append, staged.records)
    if pass_on is not None and passed:
        pass_on(job, body, passed, may_keep=may_keep)
    job.drop_records()


T = TypeVar("T")


def _result(found: T | Refused) -> T:
    """Returns what was found. Raises it if it is a refusal."""
    if isinstance(found, Refused):
        raise found
    return found


def _refusal(body: ProduceRequest) -> tuple[ErrorCode, str] | None:
    if body.transactional_id is not None:
        return (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "headrace has no transactions: send without a transactional id",
        )
    if body.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks={body.acks}: must be 0, 1 or -1 (all)"
    return None
