"""The fast path of Produce: one plain batch for one partition, in a request whose head was seen before.

A client's Produce requests differ in their correlation id and their batch, hardly ever in anything else. The
first one goes through `produce.handler` and leaves a template: the bytes of its head, the partition they
identify, and its response with places for the correlation id and the base offset. A request that is not plain
or not valid goes through `produce.handler`, too, which also writes the error message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from headrace.broker import leader_hints
from headrace.broker.core import ClientConnection, Part, TemplateCache
from headrace.broker.partition import Partition
from headrace.broker.produce.job import ACKS_ALL, ACKS_LEADER, abort_after_failure
from headrace.broker.state import BrokerState
from headrace.log.errors import LogStorageError
from headrace.log.producers import follows
from headrace.log.staging import COPY_BELOW_BYTES
from headrace.wire.batch import ATTRIBUTES_AT, HEADER, HEADER_SIZE_BYTES, LENGTH_END_BYTES, MAGIC, BatchHeader
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.primitives import INT32, bytes_length, read_uvarint
from headrace.wire.produce import (
    FLEXIBLE_FROM,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResult,
    encode_response,
)

CORRELATION_END: Final = 8  # api key, version, correlation id
TEMPLATES_MAX: Final = 256  # partitions that one connection may alternate between
HEAD_ENDS_MAX: Final = 4  # distinct head lengths tried per request: topic names differ in length
HEAD_MAX_BYTES: Final = (
    1024  # of a template: longer heads, which hold long client ids or tagged fields, get none
)
TAIL_BYTES: Final = 3  # empty tagged fields of partition, topic and request in flexible versions

CODEC_LARGEST: Final = max(Codec)

_BASE_MARK: Final = 0x1122334455667788  # placeholder for the base offset


class Template:
    """What a request's head means, and how to respond to it."""

    __slots__ = (
        "_names_leader",
        "_state",
        "body",
        "durable",
        "flexible",
        "layout",
        "partition",
        "request",
        "timeout_ms",
        "version",
    )

    def __init__(
        self, state: BrokerState, partition: Partition, request: Request, *, names_leader: bool
    ) -> None:
        body: ProduceRequest = request.body
        self._state = state
        self._names_leader = names_leader
        self.partition = partition
        self.version = request.version
        self.flexible = request.version >= FLEXIBLE_FROM
        self.durable = body.acks == ACKS_ALL
        self.timeout_ms = body.timeout_ms
        topic = body.topics[0]
        # The request without its batch: what a refusal's response is made from.
        self.request = (request.version, topic.name, topic.topic_id, topic.partitions[0].partition)
        encoded = self.encode(0, ErrorCode.NONE, None, _BASE_MARK)
        mark = struct.pack(">q", _BASE_MARK)
        at = encoded.index(mark)
        end = at + len(mark)
        # A successful response, with places for the correlation id and the base offset.
        self.layout = struct.Struct(f">4si{at - 8}sq{len(encoded) - end}s")
        self.body = (encoded[:4], encoded[8:at], encoded[end:])

    def encode(self, correlation_id: int, code: ErrorCode, message: str | None, base_offset: int) -> bytes:
        """Encodes the response field by field."""
        version, name, topic_id, index = self.request
        partition, state = self.partition, self._state
        leader = leader_hints.hint(state, partition.topic, index, code) if self._names_leader else None
        result = ProducePartitionResult(
            index,
            code,
            base_offset,
            -1,
            partition.log.start_address,
            message,
            current_leader=leader,
        )
        endpoints = leader_hints.endpoints(state.view, (leader,))
        return encode_response(
            ProduceResponse([ProduceTopicResult(name, topic_id, [result])], node_endpoints=endpoints),
            version=version,
            correlation_id=correlation_id,
        )


class PlainAppend:
    """A plain request in progress: a place among its connection's responses, filled when the partition has
    written (or flushed) the batch.
    """

    __slots__ = (
        "_base_offset",
        "_connection",
        "_correlation_id",
        "_template",
        "durable",
        "end_address",
        "parts",
    )

    def __init__(
        self,
        connection: ClientConnection,
        template: Template,
        correlation_id: int,
        base_offset: int,
        end_address: int,
    ) -> None:
        self._connection = connection
        self._template = template
        self._correlation_id = correlation_id
        self._base_offset = base_offset
        self.end_address = end_address
        self.durable = template.durable
        self.parts: Sequence[Part] | None = None

    @property
    def timeout_ms(self) -> int:
        return self._template.timeout_ms

    def appended(self, code: ErrorCode, message: str | None) -> None:
        template = self._template
        try:
            if code is ErrorCode.NONE:
                length, before, after = template.body
                packed = template.layout.pack(length, self._correlation_id, before, self._base_offset, after)
                self.parts = (packed,)
            else:
                self.parts = (template.encode(self._correlation_id, code, message, -1),)
            self._connection.on_output(self._connection)
        except Exception:
            abort_after_failure(self._connection)


def learn(
    state: BrokerState,
    connection: ClientConnection,
    frame: memoryview,
    request: Request,
    *,
    names_leader: bool = True,
) -> None:
    """Keeps a template of a request that `produce.handler` served, if such requests can take the fast path.
    `names_leader`: whether refusals say who leads (KIP-951).
    """
    body: ProduceRequest = request.body
    # Of what the head alone says nothing is looked at again: one that is refused must not be known.
    if body.transactional_id is not None or body.acks not in (ACKS_LEADER, ACKS_ALL):
        return
    if len(body.topics) != 1 or len(body.topics[0].partitions) != 1:
        return
    topic = body.topics[0]
    part = topic.partitions[0]
    name = topic.name or state.view.names_by_id.get(topic.topic_id, "")
    partition = state.partitions.get(name, part.partition)
    if partition is None or not partition.is_plain or part.records is None:
        return
    flexible = request.version >= FLEXIBLE_FROM
    tail = TAIL_BYTES if flexible else 0
    head_end = len(frame) - tail - len(part.records) - len(bytes_length(len(part.records), flexible))
    if head_end > HEAD_MAX_BYTES:
        return
    templates, head = connection.templates, bytes(frame[CORRELATION_END:head_end])
    is_full = len(templates.by_head) >= TEMPLATES_MAX and head not in templates.by_head
    if is_full or bytes(frame[len(frame) - tail :]) != bytes(tail):
        return
    if head_end not in templates.head_ends:
        if len(templates.head_ends) >= HEAD_ENDS_MAX:
            return
        templates.head_ends = (head_end, *templates.head_ends)
    # It replaces the template of the time before the partition was led elsewhere.
    templates.by_head[head] = Template(state, partition, request, names_leader=names_leader)


def serve(
    state: BrokerState,
    connection: ClientConnection,
    frame: memoryview,
    version: int,
    correlation_id: int,
    *,
    may_keep: bool,
) -> bool:
    """Serves a plain and valid request; else returns False: nothing is staged and no response is begun."""
    matched = _match(connection.templates, frame, version)
    if matched is None or state.append_refusal is not None:
        return False
    template, at, end = matched
    partition = template.partition
    header = _check(state, partition, frame, at, end)
    if header is None:
        return False
    batch = frame[at:end]
    if not may_keep and end - at >= COPY_BELOW_BYTES:
        batch = memoryview(bytearray(batch))
    log = partition.log
    try:
        base_offset = log.stage(batch, header)
    except LogStorageError:
        state.partitions.complete_writes(partition)
        return False
    append = PlainAppend(connection, template, correlation_id, base_offset, log.staged_end_address)
    connection.slots.append(append)
    state.partitions.staged(partition, append, header.record_count)
    return True


def _match(templates: TemplateCache, frame: memoryview, version: int) -> tuple[Template, int, int] | None:
    """Returns the template of the request's head, and where in the frame its records begin and end."""
    by_head = templates.by_head
    for head_end in templates.head_ends:
        template: Template | None = by_head.get(bytes(frame[CORRELATION_END:head_end]))
        if template is not None:
            break
    else:
        return None
    # `is_plain` becomes False, too, when the topic is deleted, its partition fails or has another leader, or
    # too few of its replicas are in sync.
    if template.version != version or not template.partition.is_plain:
        return None
    if template.flexible:
        try:
            length_plus_1, at = read_uvarint(frame, head_end)
        except (IndexError, ValueError):
            return None
        end = at + length_plus_1 - 1
        if end != len(frame) - TAIL_BYTES or frame[end] or frame[end + 1] or frame[end + 2]:
            return None
    else:
        at = head_end + 4
        end = len(frame)
        if end - at < 0 or INT32.unpack_from(frame, head_end)[0] != end - at:
            return None
    return template, at, end


def _check(
    state: BrokerState, partition: Partition, frame: memoryview, at: int, end: int
) -> BatchHeader | None:
    """Returns the header of the batch in `frame[at:end]`; None if anything about it is to be refused,
    rewritten or deduplicated.
    """
    size_bytes = end - at
    if not HEADER_SIZE_BYTES <= size_bytes <= partition.config.max_message_bytes:
        return None
    header = BatchHeader._make(HEADER.unpack_from(frame, at))
    count = header.record_count
    if (
        header.batch_length + LENGTH_END_BYTES != size_bytes
        or header.magic != MAGIC
        or not 0 <= header.attributes <= CODEC_LARGEST
        or header.last_offset_delta != count - 1
        or not 1 <= count < size_bytes
        or crc32c(frame[at + ATTRIBUTES_AT : end]) != header.crc
    ):
        return None
    producer_id = header.producer_id
    if producer_id >= 0 and (
        header.producer_epoch < 0
        or header.base_sequence < 0
        or state.refusals.concern(producer_id)  # `produce.handler` checks the order
        or not follows(partition.log.producers.get(producer_id), header.producer_epoch, header.base_sequence)
    ):
        return None
    config = partition.config
    if config.checks_records and not state.checks.is_valid(frame, at, end, header, config, state.clock_ms()):
        return None
    return header
