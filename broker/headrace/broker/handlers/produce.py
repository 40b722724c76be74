"""Produce: validate, stage, answer when the bytes are written (acks=1) or durable (acks=all), or when the
request's own timeout is over.

Source: https://kafka.apache.org/protocol#The_Messages_Produce, KIP-98. Nothing is written here: batches are
staged in the partition's log, and the wakeup's end writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.broker import validation
from headrace.broker.core import Connection, Slot
from headrace.broker.errors import Refused
from headrace.broker.partitions import Partition
from headrace.broker.refusals import ProducerBatch, producer_batch
from headrace.broker.state import BrokerState
from headrace.log.errors import LogStorageError
from headrace.log.producers import SequenceVerdict, check
from headrace.log.staging import COPY_BELOW_BYTES
from headrace.replication.gaps import SETTING, AcceptedGap
from headrace.wire.batch import BatchHeader
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


class Passing(NamedTuple):
    """A request's partition that another broker leads; `place`: its number among all of the request's."""

    place: int
    leader: int
    topic: str
    part: ProducePartition
    batch: ProducerBatch | None


class ProduceJob:
    """One request on its way: collects its partitions' results, then fills its slot (none for acks=0)."""

    __slots__ = (
        "_body",
        "_connection",
        "_correlation_id",
        "_left",
        "_results",
        "_slot",
        "_state",
        "_version",
    )

    def __init__(
        self, state: BrokerState, connection: Connection, slot: Slot | None, request: Request
    ) -> None:
        self._state = state
        self._connection = connection
        self._slot = slot
        self._version = request.version
        self._correlation_id = request.correlation_id
        self._body: ProduceRequest = request.body
        self._left = sum(len(topic.partitions) for topic in self._body.topics)
        self._results: list[ProducePartitionResult | None] = [None] * self._left
        if not self._left:
            self._answer()

    @property
    def timeout_ms(self) -> int:
        """How long the client wants to wait for acks=all."""
        return self._body.timeout_ms

    def settle(self, index: int, code: ErrorCode, base_address: int, message: str | None) -> None:
        """One partition's outcome; the last one answers the request."""
        name, partition = self._place(index)
        found = self._state.partitions.get(name, partition)
        append_time_ms = -1
        if found is not None and code is ErrorCode.NONE and found.config.log_append_time:
            append_time_ms = self._state.clock_ms()
        self._results[index] = ProducePartitionResult(
            partition,
            code,
            base_address,
            append_time_ms,
            -1 if found is None else found.log.start_address,
            message,
            current_leader=self._leader(name, partition)
            if code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            else None,
        )
        self._settled(name, partition, code, message)

    def settle_as(self, index: int, result: ProducePartitionResult) -> None:
        """The outcome another broker told."""
        name, partition = self._place(index)
        self._results[index] = result._replace(current_leader=None)
        self._settled(name, partition, ErrorCode(result.error_code), result.error_message)

    def note(self, index: int, batch: ProducerBatch | None, code: ErrorCode) -> None:
        """Before one partition's outcome is told: what comes behind a batch that was refused must wait."""
        if code is not ErrorCode.NONE:
            topic, partition = self._asked(index)
            self._state.refusals.note(
                topic_key(topic), partition.partition, batch, code, self._state.clock_ms()
            )

    def _settled(self, name: str, partition: int, code: ErrorCode, message: str | None) -> None:
        self._left -= 1
        if self._slot is None and code is not ErrorCode.NONE:
            # acks=0 has no other way to tell the client that its view of the cluster is wrong.
            self._connection.abort(
                f"Produce with acks=0 to {name}-{partition} failed: {code.name} {message or ''}"
            )
        if not self._left:
            self._answer()

    def _place(self, index: int) -> tuple[str, int]:
        topic, partition = self._asked(index)
        return topic.name or self._state.view.names_by_id.get(topic.topic_id, ""), partition.partition

    def _asked(self, index: int) -> tuple[ProduceTopic, ProducePartition]:
        for topic in self._body.topics:
            if index < len(topic.partitions):
                return topic, topic.partitions[index]
            index -= len(topic.partitions)
        raise IndexError(index)

    def _leader(self, name: str, partition: int) -> LeaderAndEpoch | None:
        known = self._state.view.partition(name, partition)
        return None if known is None else LeaderAndEpoch(known.leader, known.leader_epoch)

    def _answer(self) -> None:
        if self._slot is None:
            return
        results = iter(self._results)
        topics = [
            ProduceTopicResult(topic.name, topic.topic_id, [next(results) for _ in topic.partitions])  # type: ignore[misc]
            for topic in self._body.topics
        ]
        self._slot.fill(
            (
                encode_response(
                    ProduceResponse(topics), version=self._version, correlation_id=self._correlation_id
                ),
            )
        )


class _Waiting:
    """One partition of a job, until its bytes are written (or durable)."""

    __slots__ = ("_base_address", "_batch", "_index", "_job", "durable", "end_address")

    def __init__(
        self,
        job: ProduceJob,
        index: int,
        batch: ProducerBatch | None,
        base_address: int,
        end_address: int,
        *,
        durable: bool,
    ) -> None:
        self._job = job
        self._index = index
        self._batch = batch
        self._base_address = base_address
        self.end_address = end_address
        self.durable = durable

    @property
    def timeout_ms(self) -> int:
        return self._job.timeout_ms

    def appended(self, code: ErrorCode, message: str | None) -> None:
        self._job.note(self._index, self._batch, code)
        self._job.settle(self._index, code, self._base_address if code is ErrorCode.NONE else -1, message)


def topic_key(topic: ProduceTopic) -> str:
    """What a producer calls the topic: by name, or by an id that may not be known here yet."""
    return topic.name or str(topic.topic_id)


PassOn = Callable[[ProduceJob, ProduceRequest, list[Passing]], None]


def handle(
    state: BrokerState,
    connection: Connection,
    request: Request,
    *,
    owned: bool,
    pass_on: PassOn | None = None,
) -> None:
    """Stage every partition's batches; whoever must wait is told by the partitions.

    With `pass_on`, partitions that other brokers lead are given to it instead of being refused.
    """
    body: ProduceRequest = request.body
    slot = None if body.acks == ACKS_NONE else connection.open_slot()
    refusal = _refusal(body)
    if refusal is not None and slot is not None:
        response = refuse(body, *refusal)
        slot.fill(
            (encode_response(response, version=request.version, correlation_id=request.correlation_id),)
        )
    if refusal is not None:
        return
    job = ProduceJob(state, connection, slot, request)
    index = 0
    passings: list[Passing] = []
    for topic in body.topics:
        name = topic.name or state.view.names_by_id.get(topic.topic_id)
        for part in topic.partitions:
            batch = producer_batch(part.records)
            try:
                if name is None:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic.topic_id}")
                _check_turn(state, topic_key(topic), part.partition, batch)
                known = state.view.partition(name, part.partition)
                if pass_on is not None and known is not None and known.leader != state.broker_id:
                    passings.append(Passing(index, known.leader, name, part, batch))
                    index += 1
                    continue
                partition = state.led_partition(name, part.partition)
                _append(state, partition, part, job, index, batch, durable=body.acks == ACKS_ALL, owned=owned)
            except Refused as error:
                job.note(index, batch, error.code)
                job.settle(index, error.code, -1, error.message)
            index += 1
    if pass_on is not None and passings:
        pass_on(job, body, passings)


def _refusal(body: ProduceRequest) -> tuple[ErrorCode, str] | None:
    if body.transactional_id is not None:
        return (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "headrace has no transactions: send without a transactional id",
        )
    if body.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks={body.acks}: must be 0, 1 or -1 (all)"
    return None


def _check_turn(state: BrokerState, topic: str, partition: int, batch: ProducerBatch | None) -> None:
    """Raises `Refused` for a batch that stands behind one that was refused and will come again."""
    awaited = state.refusals.awaited_before(topic, partition, batch, state.clock_ms())
    if awaited is not None and batch is not None:
        raise Refused(
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"{topic}-{partition}: producer {batch.producer_id} must send sequence {awaited} again before "
            f"{batch.first_sequence}",
        )


def _append(
    state: BrokerState,
    partition: Partition,
    part: ProducePartition,
    job: ProduceJob,
    index: int,
    batch: ProducerBatch | None,
    *,
    durable: bool,
    owned: bool,
) -> None:
    if partition.failure:
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, partition.failure)
    records = part.records
    batches = validation.split(None if records is None else memoryview(records))
    log = partition.log
    try:
        if partition.config.mirror:
            base, count = _stage_verbatim(partition, batches, owned=owned)
        else:
            base, count = _stage(state, partition, batches, owned=owned)
    except LogStorageError as error:
        # The roll inside `stage` failed: whatever was staged before it is settled, this batch is not there.
        state.partitions.settle(partition)
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    waiting = _Waiting(job, index, batch, base, log.staged_end_address, durable=durable)
    state.partitions.staged(partition, waiting, count)


def _stage(
    state: BrokerState, partition: Partition, batches: list[tuple[memoryview, BatchHeader]], *, owned: bool
) -> tuple[int, int]:
    """`(address, records staged)`; a duplicate has its first copy's address and stages nothing."""
    if len(batches) != 1:
        raise Refused(
            ErrorCode.INVALID_RECORD, f"{len(batches)} batches for {partition.name}: exactly one is allowed"
        )
    config = partition.config
    batch, header = batches[0]
    validation.check(header, config)
    if header.producer_id >= 0:
        address = _check_sequence(partition, header)
        if address >= 0:
            return address, 0
    stored, stored_header = validation.to_store(batch, header, config, state.clock_ms())
    if stored is batch and not owned and len(batch) >= COPY_BELOW_BYTES:
        stored = memoryview(bytearray(batch))
    return partition.log.stage(stored, stored_header), header.record_count


def _check_sequence(partition: Partition, header: BatchHeader) -> int:
    """The first copy's address for a duplicate, -1 for a batch to store. Raises `Refused`."""
    entry = partition.log.producers.get(header.producer_id)
    checked = check(entry, header.producer_epoch, header.base_sequence, header.last_sequence)
    if checked.verdict is SequenceVerdict.ACCEPT:
        return -1
    if checked.verdict is SequenceVerdict.DUPLICATE:
        return checked.address
    who = f"{partition.name}: producer {header.producer_id} epoch {header.producer_epoch}"
    if checked.verdict is SequenceVerdict.FENCED:
        raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"{who} is fenced by a newer epoch")
    raise Refused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"{who} sent sequence {header.base_sequence}, expected {checked.expected_sequence}",
    )


def _stage_verbatim(
    partition: Partition, batches: list[tuple[memoryview, BatchHeader]], *, owned: bool
) -> tuple[int, int]:
    """A mirror's batches: they must carry exactly the addresses they get here."""
    log = partition.log
    base = batches[0][1].base_offset
    expected = base
    for _, header in batches:
        if header.last_offset_delta != header.size_bytes - 1:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{partition.name} is a mirror's copy (headrace.mirror=true): ordinary producers are refused",
            )
        if header.base_offset != expected:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.name}: batches are not contiguous at {expected}"
            )
        expected += header.size_bytes
    if base != log.staged_end_address and not log.is_pristine:
        _pass_gap(partition, base)
    log.rebase(base)
    count = 0
    for batch, header in batches:
        kept = batch if owned or len(batch) < COPY_BELOW_BYTES else memoryview(bytearray(batch))
        log.stage(kept, header, verbatim=True)
        count += header.record_count
    return base, count


def _pass_gap(partition: Partition, base: int) -> None:
    """Let a copy begin anew at `base`, if just that was accepted. Raises `Refused`, `LogStorageError`."""
    log = partition.log
    end = log.staged_end_address
    if AcceptedGap(partition.index, end, base) not in partition.config.accepted_gaps:
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.name} ends at {end}, the batch is for {base}: ask for its end and go on there",
        )
    start = log.start_address
    log.restart(base)
    logger.warning(
        "%s: addresses %d to %d dropped, begins anew at %d: the gap was accepted (%s)",
        partition.name,
        start,
        end,
        base,
        SETTING,
    )
