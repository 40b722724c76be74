"""One Produce request: each of its partitions is staged, passed on to its leader or refused. The response
follows when all their bytes are written (acks=1) or durable (acks=all), or when the request's own timeout is
over.

Source: https://kafka.apache.org/protocol#The_Messages_Produce, KIP-98. Nothing is written here: batches are
staged in the partition's log, and the end of the wakeup writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.broker.core import ClientConnection, Slot
from headrace.broker.errors import Refused
from headrace.broker.produce.refusals import sequenced_batch
from headrace.broker.produce.staging import stage
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.primitives import LeaderAndEpoch
from headrace.wire.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResult,
    encode_response,
    refuse,
)

logger = logging.getLogger(__name__)

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1


class PassedPartition(NamedTuple):
    """A partition that another broker leads; `place`: its number among the request's partitions."""

    place: int
    leader: int
    topic: str
    part: ProducePartition


class ProduceJob:
    """A request in progress: collects its partitions' results, then fills its slot (with acks=0 there is
    none).
    """

    __slots__ = ("_batches", "_left", "_request", "_results", "_slot", "_state", "connection", "parts")

    def __init__(
        self, state: BrokerState, connection: ClientConnection, slot: Slot | None, request: Request
    ) -> None:
        self._state = state
        self.connection = connection
        self._slot = slot
        self._request = request
        body: ProduceRequest = request.body
        self.parts = [(topic, part) for topic in body.topics for part in topic.partitions]
        self._batches = [sequenced_batch(part.records) for _, part in self.parts]
        self._results: list[ProducePartitionResult | None] = [None] * len(self.parts)
        self._left = len(self.parts)
        if not self.parts:
            self._respond()

    @property
    def timeout_ms(self) -> int:
        """How long the client wants to wait for acks=all."""
        timeout_ms: int = self._request.body.timeout_ms
        return timeout_ms

    def topic_name(self, topic: ProduceTopic) -> str | None:
        """None for an id that no known topic has."""
        return topic.name or self._state.view.names_by_id.get(topic.topic_id)

    def check_order(self, place: int) -> None:
        """Raises `Refused` if the producer must first send an earlier batch again, which was refused."""
        topic, part = self.parts[place]
        batch, name = self._batches[place], _topic_key(topic)
        awaited = self._state.refusals.awaited_before(name, part.partition, batch, self._state.monotonic_ms())
        if awaited is not None and batch is not None:
            raise Refused(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"{name}-{part.partition}: producer {batch.producer_id} must send sequence {awaited} again "
                f"before {batch.first_sequence}",
            )

    def complete(self, place: int, code: ErrorCode, base_offset: int, message: str | None) -> None:
        """Records one partition's outcome; the last one completes the response."""
        topic, part = self.parts[place]
        name = self.topic_name(topic) or ""
        found = self._state.partitions.get(name, part.partition)
        stamped = found is not None and code is ErrorCode.NONE and found.config.log_append_time
        misdirected = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        result = ProducePartitionResult(
            part.partition,
            code,
            base_offset,
            self._state.clock_ms() if stamped else -1,
            -1 if found is None else found.log.start_address,
            message,
            current_leader=self._leader(name, part.partition) if misdirected else None,
        )
        self.complete_with(place, result)

    def complete_with(self, place: int, result: ProducePartitionResult) -> None:
        """Records one partition's finished result. An error is remembered until the batch is sent again."""
        code = ErrorCode(result.error_code)
        self._results[place] = result
        self._left -= 1
        if code is not ErrorCode.NONE:
            self._note_refusal(place, code, result.error_message)
        if not self._left:
            self._respond()

    def _note_refusal(self, place: int, code: ErrorCode, message: str | None) -> None:
        topic, part = self.parts[place]
        self._state.refusals.note(
            _topic_key(topic), part.partition, self._batches[place], code, self._state.monotonic_ms()
        )
        if self._slot is None:
            # With acks=0 nothing else tells the client that its view of the cluster is wrong.
            name = self.topic_name(topic) or ""
            self.connection.abort(
                f"Produce with acks=0 to {name}-{part.partition} failed: {code.name} {message or ''}"
            )

    def _leader(self, name: str, partition: int) -> LeaderAndEpoch | None:
        known = self._state.view.partition(name, partition)
        return None if known is None else LeaderAndEpoch(known.leader, known.leader_epoch)

    def _respond(self) -> None:
        if self._slot is None:
            return
        results = iter(self._results)
        topics = [
            ProduceTopicResult(topic.name, topic.topic_id, [next(results) for _ in topic.partitions])  # type: ignore[misc]
            for topic in self._request.body.topics
        ]
        _fill(self._slot, self._request, ProduceResponse(topics))


class PartitionAppend:
    """One partition of a job, until its bytes are written (or durable)."""

    __slots__ = ("_base_offset", "_job", "_place", "durable", "end_address")

    def __init__(
        self, job: ProduceJob, place: int, base_offset: int, end_address: int, *, durable: bool
    ) -> None:
        self._job = job
        self._place = place
        self._base_offset = base_offset
        self.end_address = end_address
        self.durable = durable

    @property
    def timeout_ms(self) -> int:
        return self._job.timeout_ms

    def appended(self, code: ErrorCode, message: str | None) -> None:
        base_offset = self._base_offset if code is ErrorCode.NONE else -1
        try:
            self._job.complete(self._place, code, base_offset, message)
        except Exception:
            abort_after_failure(self._job.connection)


def abort_after_failure(connection: ClientConnection) -> None:
    """Ends the connection whose response could not be made. The partition that called calls others, too."""
    logger.exception("%s: responding to Produce failed", connection.peer)
    connection.abort("responding to Produce failed")


PassOn = Callable[[ProduceJob, ProduceRequest, list[PassedPartition]], None]


def handle(
    state: BrokerState,
    connection: ClientConnection,
    request: Request,
    *,
    may_keep: bool,
    pass_on: PassOn | None = None,
) -> None:
    """Stages every partition's batches; the partitions complete the job.

    With `pass_on`, partitions that other brokers lead are given to it instead of being refused.
    """
    body: ProduceRequest = request.body
    slot = None if body.acks == ACKS_NONE else connection.open_slot()
    refusal = _refusal(body)
    if refusal is not None:
        if slot is not None:
            _fill(slot, request, refuse(body, *refusal))
        return
    job = ProduceJob(state, connection, slot, request)
    passed: list[PassedPartition] = []
    for place, (topic, part) in enumerate(job.parts):
        name = job.topic_name(topic)
        try:
            if name is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic.topic_id}")
            job.check_order(place)
            known = state.view.partition(name, part.partition)
            if pass_on is not None and known is not None and known.leader != state.broker_id:
                passed.append(PassedPartition(place, known.leader, name, part))
                continue
            partition = state.led_partition(name, part.partition)
            base, count = stage(state, partition, part.records, may_keep=may_keep)
        except Refused as error:
            job.complete(place, error.code, -1, error.message)
            continue
        end = partition.log.staged_end_address
        append = PartitionAppend(job, place, base, end, durable=body.acks == ACKS_ALL)
        state.partitions.staged(partition, append, count)
    if pass_on is not None and passed:
        pass_on(job, body, passed)


def _refusal(body: ProduceRequest) -> tuple[ErrorCode, str] | None:
    if body.transactional_id is not None:
        return (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "headrace has no transactions: send without a transactional id",
        )
    if body.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks={body.acks}: must be 0, 1 or -1 (all)"
    return None


def _fill(slot: Slot, request: Request, response: ProduceResponse) -> None:
    encoded = encode_response(response, version=request.version, correlation_id=request.correlation_id)
    slot.fill((encoded,))


def _topic_key(topic: ProduceTopic) -> str:
    """What the producer calls the topic: its name, or an id that may not be known here yet."""
    return topic.name or str(topic.topic_id)
