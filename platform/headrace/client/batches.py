"""A producer's batch: open, closed, numbered, in flight, done. Data and its few transitions; no I/O."""

from __future__ import annotations

from math import inf
from typing import Final

from headrace.client.errors import ClientError
from headrace.client.observer import BatchIdentity
from headrace.client.outcome import DeliveryOutcome
from headrace.wire.batch import renumber
from headrace.wire.builder import BatchBuilder
from headrace.wire.compression import Codec
from headrace.wire.content import content_of

NO_SEQUENCE: Final = -1
_EMPTY: Final = BatchBuilder(0)  # replaces a builder whose batch is encoded, to free its memory


class ProducerBatch(DeliveryOutcome):
    """Records of one partition, sent together. The accumulator's lock guards it until it is closed."""

    __slots__ = (
        "attempts",
        "base_offset",
        "bucket",
        "builder",
        "created_s",
        "data",
        "error",
        "identity",
        "in_flight",
        "is_numbered",
        "log_append_time_ms",
        "maybe_appended",
        "partition",
        "record_limit",
        "retry_at_s",
        "sender_ident",
        "sender_pid",
        "sent_s",
        "size_bytes",
        "surely_appended",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        limit_bytes: int,
        created_s: float,
        bucket: int | None,
        record_limit: int | None,
        sender_ident: int = 0,
        sender_pid: int = 0,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.partition = partition
        self.builder = BatchBuilder(limit_bytes)
        self.created_s = created_s
        self.bucket = bucket  # the multiple of `batch_boundary_ms` that its timestamps are in
        self.record_limit = record_limit
        self.sender_ident = sender_ident  # the thread that will finish it, and so never waits for it
        self.sender_pid = sender_pid  # the process of that thread
        self.size_bytes = 0  # its share of the producer's memory
        self.identity = BatchIdentity(topic, partition, -1, -1, NO_SEQUENCE, 0, -1, -1)
        self.is_numbered = False
        self.data: bytearray = bytearray()  # the encoded batch, once it has sequence numbers
        self.attempts = 0
        self.retry_at_s = 0.0
        self.sent_s = -inf  # the last attempt
        self.in_flight = False
        self.maybe_appended = False  # the fate of an attempt is unknown: it must keep its sequence numbers
        # A later batch of the same epoch was acknowledged, so this one is in the log: it counts as delivered,
        # even if it expires or the broker no longer finds its sequence numbers.
        self.surely_appended = False
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: ClientError | None = None

    def number(self, producer_id: int, producer_epoch: int, base_sequence: int, codec: Codec) -> None:
        """Assigns sequence numbers and encodes the batch. Call it once; `renumber` after that."""
        assert not self.is_numbered
        self.is_numbered = True
        self.identity = BatchIdentity(
            topic=self.topic,
            partition=self.partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.builder.record_count,
            base_timestamp_ms=self.builder.base_timestamp_ms,
            max_timestamp_ms=self.builder.max_timestamp_ms,
        )
        self.data = bytearray(
            self.builder.build(
                codec=codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            )
        )
        self.identity = self.identity._replace(content=content_of(self.data))
        self.builder = _EMPTY

    def renumber(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Assigns other sequence numbers. Not allowed in flight, or if the batch may have been appended."""
        assert not self.in_flight and not self.maybe_appended
        renumber(self.data, 0, producer_id, producer_epoch, base_sequence)
        self.identity = self.identity._replace(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            content=content_of(self.data),
        )
