"""The fast path of Fetch: a request that differs from the connection's last one in its offset alone.

A consumer that reads one partition sends the same Fetch again and again, at the next offset. The first one
goes through `handlers.fetch` and leaves a template: the bytes of the request around the offset, what they
mean, and the response with places for its numbers. A request that must wait, or whose answer is an error,
goes through `handlers.fetch`, too.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.broker.core import ClientConnection, Part
from headrace.broker.handlers import replica_reads
from headrace.broker.state import BrokerState
from headrace.log.errors import LogError
from headrace.wire.apis import response_head
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import (
    CONSUMER_REPLICA_ID,
    FLEXIBLE_FROM,
    FULL_EPOCHS,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
    encode_response,
    offset_position,
)
from headrace.wire.messages import Request
from headrace.wire.primitives import INT64, NO_UUID, bytes_length

CORRELATION_END: Final = 8  # of a request: API key, version, correlation id
TEMPLATE_FRAME_MAX_BYTES: Final = 1024  # a request for one partition; longer ones are not kept

_MARK: Final = 0x1122334455667788  # placeholder for the addresses of a response
_MARK_BYTES: Final = INT64.pack(_MARK)


class FetchTemplate:
    """What such a request means, and how to respond to it."""

    __slots__ = (
        "_address_end",
        "_addresses",
        "_after",
        "_before",
        "_between",
        "_flexible",
        "_request_end",
        "_request_start",
        "_size_bytes",
        "fetched_epoch",
        "leader_epoch",
        "limit_bytes",
        "min_bytes",
        "offset_at",
        "partition",
        "topic",
        "topic_id",
    )

    def __init__(self, frame: bytes, offset_at: int, request: Request, topic: str, limit_bytes: int) -> None:
        body: FetchRequest = request.body
        asked = body.topics[0]
        part = asked.partitions[0]
        self.topic = topic
        self.topic_id = asked.topic_id  # NO_UUID in a request by name
        self.partition = part.partition
        self.leader_epoch = part.current_leader_epoch
        self.fetched_epoch = part.last_fetched_epoch
        self.min_bytes = max(1, body.min_bytes)
        self.limit_bytes = min(part.max_bytes, body.max_bytes, limit_bytes)
        self.offset_at = offset_at
        self._size_bytes = len(frame)
        self._request_start = frame[CORRELATION_END:offset_at]
        self._request_end = frame[offset_at + INT64.size :]
        self._flexible = request.version >= FLEXIBLE_FROM
        result = FetchPartitionResult(
            *(part.partition, ErrorCode.NONE, _MARK, 1, _MARK, _MARK),
            address=_MARK if body.wants_addresses else -1,
        )
        response = FetchResponse([FetchTopicResult(asked.name, asked.topic_id, [result])])
        pieces = encode_response(response, version=request.version, correlation_id=0)
        _, fields, _, after = pieces
        assert isinstance(fields, bytes) and isinstance(after, bytes)
        count = fields.count(_MARK_BYTES)  # without a log start offset in older versions
        at = fields.index(_MARK_BYTES)
        self._addresses = struct.Struct(f">{count}q")
        self._before = fields[:at]
        self._between = fields[at + self._addresses.size : len(fields) - len(self._records_length(1))]
        self._after, self._address_end = after, b""
        if body.wants_addresses and self._flexible:
            self._after, self._address_end = after.split(_MARK_BYTES)

    def matches(self, frame: memoryview) -> bool:
        """Whether the request is the same, except for correlation id and offset. The caller has compared
        API key and version.
        """
        at = self.offset_at
        return (
            len(frame) == self._size_bytes
            and frame[at + INT64.size :] == self._request_end
            and frame[CORRELATION_END:at] == self._request_start
        )

    def respond(
        self, correlation_id: int, visible_address: int, start_address: int, address: int, records_bytes: int
    ) -> tuple[bytes, bytes]:
        """Returns the parts of the response before and after its records, which begin at `address`."""
        numbers = (visible_address, visible_address, start_address)[: self._addresses.size // INT64.size]
        after = self._after
        if self._address_end:
            after += INT64.pack(address) + self._address_end
        fields = (
            self._before
            + self._addresses.pack(*numbers)
            + self._between
            + self._records_length(records_bytes)
        )
        size_bytes = len(fields) + records_bytes + len(after)
        return response_head(correlation_id, self._flexible, size_bytes) + fields, after

    def _records_length(self, size_bytes: int) -> bytes:
        return bytes_length(size_bytes, self._flexible)


def learn(state: BrokerState, connection: ClientConnection, frame: memoryview, request: Request) -> None:
    """Keeps a template of a request for one partition. It replaces the template of the request before."""
    known = connection.fetch_template
    if known is not None and known[0] == request.version and known[1].matches(frame):
        return  # it has waited, or its answer was an error: the next one need not
    body: FetchRequest = request.body
    connection.fetch_template = None
    if body.session_epoch not in FULL_EPOCHS or body.replica_id != CONSUMER_REPLICA_ID:
        return
    if body.rack_id and replica_reads.selects(state):
        return  # each answer may be another replica
    if len(body.topics) != 1 or len(body.topics[0].partitions) != 1:
        return
    if len(frame) > TEMPLATE_FRAME_MAX_BYTES:
        return
    topic = body.topics[0]
    name = topic.name or state.view.names_by_id.get(topic.topic_id)
    if name is None:
        return
    connection.fetch_template = (
        request.version,
        FetchTemplate(
            bytes(frame),
            offset_position(frame, request.version),
            request,
            name,
            state.config["fetch.max.bytes"],
        ),
    )


def serve(
    state: BrokerState, connection: ClientConnection, frame: memoryview, version: int, correlation_id: int
) -> bool:
    """Responds to a request that matches the template and can be answered at once; else returns False, and
    has done nothing.
    """
    known = connection.fetch_template
    if known is None or known[0] != version:
        return False
    template: FetchTemplate = known[1]
    if not template.matches(frame):
        return False
    partition = state.partitions.get(template.topic, template.partition)
    if partition is None or template.leader_epoch not in (-1, partition.leader_epoch):
        return False
    if template.topic_id not in (NO_UUID, partition.topic_id):
        return False  # the topic was deleted, and made again under its name
    log = partition.log
    if log.offline is not None or template.fetched_epoch not in (-1, log.epochs.latest):
        return False
    visible = partition.visible_address
    try:
        position = log.position(INT64.unpack_from(frame, template.offset_at)[0])
        if visible - position < template.min_bytes:
            return False
        slices = log.slices(position, template.limit_bytes, visible)
    except LogError:
        return False
    if not slices:
        return False
    head, tail = template.respond(
        *(correlation_id, visible, log.start_address, position),
        sum([piece.length_bytes for piece in slices]),
    )
    parts: list[Part] = [head, *slices, tail]
    connection.open_slot().fill(parts)
    return True
