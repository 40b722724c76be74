"""One Produce request in progress: what becomes of each of its partitions. The response follows when all
their bytes are written (acks=1) or durable (acks=all), or when the request's own timeout is over.

Source: https://kafka.apache.org/protocol#The_Messages_Produce, KIP-98. `produce.handler` stages the batches.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from headrace.broker import leader_hints
from headrace.broker.core import ClientConnection, Slot
from headrace.broker.errors import Refused
from headrace.broker.produce import validation
from headrace.broker.produce.opening import needs_opening
from headrace.broker.produce.opening_threads import Unopened
from headrace.broker.produce.refusals import SequencedBatch, StoredSequence, sequenced_batch
from headrace.broker.produce.staging import NOT_STAMPED, Staged
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

    def drop_records(self) -> None:
        """Forgets the batches once each is staged, passed on or refused. The response may come minutes later,
        when all replicas have them: until then their frame, with all partitions of the request, would stay.
        """
        if not self._left:
            return
        body: ProduceRequest = self._request.body
        topics = [
            topic._replace(partitions=[ProducePartition(part.partition, None) for part in topic.partitions])
            for topic in body.topics
        ]
        self._request = self._request._replace(body=body._replace(topics=topics))
        self.parts = [(topic, part) for topic in topics for part in topic.partitions]
        self.batches = []

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
        fill(self._slot, self._request, ProduceResponse(topics, node_endpoints=endpoints))


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


def _sequenced(batches: Batches | Refused) -> SequencedBatch | None:
    return None if isinstance(batches, Refused) else sequenced_batch(batches[0][1])


def fill(slot: Slot, request: Request, response: ProduceResponse) -> None:
    encoded = encode_response(response, version=request.version, correlation_id=request.correlation_id)
    slot.fill((encoded,))


def _topic_key(topic: ProduceTopic) -> str:
    """What the producer calls the topic: its name, or an id that may not be known here yet."""
    return topic.name or str(topic.topic_id)
