"""One Produce request: each of its partitions is staged, passed on to its leader or refused. The response
follows when all their bytes are written (acks=1) or durable (acks=all), or when the request's own timeout is
over.

Source: https://kafka.apache.org/protocol#The_Messages_Produce, KIP-98. Nothing is written here: batches are
staged in the partition's log, and the end of the wakeup writes them.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple, Protocol, TypeVar

from headrace.broker import leader_hints
from headrace.broker.core import ClientConnection, Slot
from headrace.broker.errors import Refused
from headrace.broker.produce import validation
from headrace.broker.produce.checks import Found, Unopened
from headrace.broker.produce.opening import needs_opening
from headrace.broker.produce.refusals import SequencedBatch, StoredSequence, sequenced_batch
from headrace.broker.produce.staging import NOT_STAMPED, Staged, stage
from headrace.broker.produce.validation import Batches
from headrace.broker.settings.usable import is_mirror
from headrace.broker.state import BrokerState
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResult,
    RecordError,
    encode_response,
    refuse,
)

logger = logging.getLogger(__name__)

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1


class PassedPartition(NamedTuple):
    """A partition that another broker leads; `place`: its number among the request's partitions. `topic`: as
    the client has named it, by its name or by its id.
    """

    place: int
    leader: int
    topic: ProduceTopic
    part: ProducePartition


class ProduceJob:
    """A request in progress: collects its partitions' results, then fills its slot (with acks=0 there is
    none). `batches`: of each part, with verified checksums, or the refusal of those that are invalid.
    """

    __slots__ = (
        "_copied_batches_left",
        "_left",
        "_names_leaders",
        "_request",
        "_results",
        "_sequenced",
        "_slot",
        "_state",
        "batches",
        "connection",
        "parts",
    )

    def __init__(
        self,
        state: BrokerState,
        connection: ClientConnection,
        slot: Slot | None,
        request: Request,
        *,
        names_leaders: bool,
    ) -> None:
        self._state = state
        self._names_leaders = names_leaders
        self.connection = connection
        self._slot = slot
        self._request = request
        body: ProduceRequest = request.body
        self.parts = [(topic, part) for topic in body.topics for part in topic.partitions]
        self._copied_batches_left = validation.COPIED_BATCHES_MAX
        self.batches = [self._verified(topic, part) for topic, part in self.parts]
        self._sequenced = [_sequenced(batches) for batches in self.batches]
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

    def _verified(self, topic: ProduceTopic, part: ProducePartition) -> Batches | Refused:
        def most() -> int:
            known = self._state.view.topics.get(self.topic_name(topic) or "")
            return max(1, self._copied_batches_left) if known and is_mirror(known.config) else 1

        try:
            records = None if part.records is None else memoryview(part.records)
            batches = validation.split_verified(records, most)
        except Refused as refused:
            return refused.kept()
        self._copied_batches_left -= len(batches)
        return batches

    def check_order(self, place: int) -> None:
        """Raises `Refused` if the producer must first send an earlier batch again, which was refused."""
        topic, part = self.parts[place]
        batch, name = self._sequenced[place], _topic_key(topic)
        awaited = self._state.refusals.awaited_before(
            name, part.partition, batch, self._state.monotonic_ms(), self._stored(place)
        )
        if awaited is not None and batch is not None:
            raise Refused(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"{name}-{part.partition}: producer {batch.producer_id} must send sequence {awaited} again "
                f"before {batch.first_sequence}",
            )

    def _stored(self, place: int) -> StoredSequence | None:
        """Returns the last sequence number that the log holds of the producer."""
        batch, (topic, part) = self._sequenced[place], self.parts[place]
        partition = self._state.partitions.get(self.topic_name(topic) or "", part.partition)
        entry = partition.log.producers.get(batch.producer_id) if partition and batch else None
        return StoredSequence(entry.epoch, entry.batches[-1].last_sequence) if entry else None

    def unopened(self) -> list[Unopened]:
        """Returns the batches that must be opened before this broker stores them."""
        return [each for place in range(len(self.parts)) if (each := self._unopened(place)) is not None]

    def _unopened(self, place: int) -> Unopened | None:
        topic, part = self.parts[place]
        batches = self.batches[place]
        partition = self._state.partitions.get(self.topic_name(topic) or "", part.partition)
        if partition is None or partition.config.mirror or isinstance(batches, Refused) or len(batches) != 1:
            return None
        batch, header = batches[0]
        config = partition.config
        try:
            validation.check_header(header, config)
        except Refused:
            return None  # `stage` refuses it for the same reason
        return Unopened(place, batch, header, config) if needs_opening(header, config) else None

    def copy_records(self) -> None:
        """Copies what the request refers to, since its frame is valid during the call only."""
        for place, (topic, part) in enumerate(self.parts):
            if part.records is None:
                continue
            copied = memoryview(bytearray(part.records))
            self.parts[place] = (topic, part._replace(records=copied))
            batches = self.batches[place]
            if not isinstance(batches, Refused):
                self.batches[place] = validation.split(copied)

    def refuse(self, place: int, refused: Refused) -> None:
        """Records that one partition's batch is not stored."""
        index = refused.record_index
        errors = () if index is None else (RecordError(index, refused.message),)
        self.complete(place, refused.code, -1, refused.message, errors)

    def complete(
        self,
        place: int,
        code: ErrorCode,
        base_offset: int,
        message: str | None,
        record_errors: tuple[RecordError, ...] = (),
        stamped_ms: int = NOT_STAMPED,
    ) -> None:
        """Records one partition's outcome; the last one completes the response."""
        topic, part = self.parts[place]
        name = self.topic_name(topic) or ""
        found = self._state.partitions.get(name, part.partition)
        hint = leader_hints.hint(self._state, name, part.partition, code) if self._names_leaders else None
        result = ProducePartitionResult(
            part.partition,
            code,
            base_offset,
            stamped_ms if code is ErrorCode.NONE else NOT_STAMPED,
            -1 if found is None else found.log.start_address,
            message,
            record_errors,
            current_leader=hint,
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
            _topic_key(topic), part.partition, self._sequenced[place], code, self._state.monotonic_ms()
        )
        if self._slot is None:
            # With acks=0 nothing else tells the client that its view of the cluster is wrong.
            name = self.topic_name(topic) or ""
            self.connection.abort(
                f"Produce with acks=0 to {name}-{part.partition} failed: {code.name} {message or ''}"
            )

    def _respond(self) -> None:
        if self._slot is None:
            return
        hints = [result.current_leader for result in self._results if result is not None]
        endpoints = leader_hints.endpoints(self._state.view, hints)
        results = iter(self._results)
        topics = [
            ProduceTopicResult(topic.name, topic.topic_id, [next(results) for _ in topic.partitions])  # type: ignore[misc]
            for topic in self._request.body.topics
        ]
        _fill(self._slot, self._request, ProduceResponse(topics, node_endpoints=endpoints))


class PartitionAppend:
    """One partition of a job, until its bytes are written (or durable)."""

    __slots__ = ("_job", "_place", "_staged", "durable", "end_address")

    def __init__(
        self, job: ProduceJob, place: int, staged: Staged, end_address: int, *, durable: bool
    ) -> None:
        self._job = job
        self._place = place
        self._staged = staged
        self.end_address = end_address
        self.durable = durable

    @property
    def timeout_ms(self) -> int:
        return self._job.timeout_ms

    def appended(self, code: ErrorCode, message: str | None) -> None:
        base_offset, _, stamped_ms = self._staged
        try:
            stored_at = base_offset if code is ErrorCode.NONE else -1
            self._job.complete(self._place, code, stored_at, message, stamped_ms=stamped_ms)
        except Exception:
            abort_after_failure(self._job.connection)


def abort_after_failure(connection: ClientConnection) -> None:
    """Ends the connection whose response could not be made. The partition that called calls others, too."""
    logger.exception("%s: responding to Produce failed", connection.peer)
    connection.abort("responding to Produce failed")


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
            _fill(slot, request, refuse(body, *refusal))
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

    if state.checks.open_later(left, state.clock_ms(), opened):
        connection.hold()
    else:
        busy = Refused(ErrorCode.LEADER_NOT_AVAILABLE, "too many batches are being checked: send it again")
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


T = TypeVar("T")


def _result(found: T | Refused) -> T:
    """Returns what was found. Raises it if it is a refusal."""
    if isinstance(found, Refused):
        raise found
    return found


def _sequenced(batches: Batches | Refused) -> SequencedBatch | None:
    return None if isinstance(batches, Refused) else sequenced_batch(batches[0][1])


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
