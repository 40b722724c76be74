"""A partition's log in memory, for fake brokers and models, with Kafka's sequence check."""

from collections import deque
from dataclasses import dataclass, field

from headrace.client import ConsumerRecord
from headrace.log.epochs import EpochEnd, LeaderEpochs
from headrace.wire.batch import BatchHeader, hop, read_header, readdress, verify
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition
from headrace.wire.records import Record, decode_records


@dataclass
class ProducerState:
    epoch: int
    last_sequence: int = -1
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))


class FakeLog:
    """One partition. With `by_address`, offsets are byte addresses as in headrace; else record numbers as in
    Kafka.
    """

    def __init__(self, by_address: bool) -> None:
        self.by_address = by_address
        self.batches: list[bytes] = []
        self._ends: list[int] = []  # of the batches: what a test spoils is not looked at, as in a broker
        self.end = 0
        self.start = 0
        self.leader_epoch = 0
        self.epochs = LeaderEpochs()
        self.producers: dict[int, ProducerState] = {}

    def append(self, batch: bytes) -> tuple[ErrorCode, int]:
        header = read_header(batch)
        verify(batch, 0, header)
        if header.producer_id >= 0:
            code, known = self._check_sequence(header)
            if code is not ErrorCode.NONE or known is not None:
                return code, -1 if known is None else known
        base = self.end
        self.epochs.note(self.leader_epoch, base)
        stored = bytearray(batch)
        if self.by_address:
            base = readdress(stored, 0, base, self.leader_epoch)
            self.end += len(stored)
        else:
            stored[:8] = base.to_bytes(8, "big")
            stored[12:16] = self.leader_epoch.to_bytes(4, "big")
            self.end += header.record_count
        self.batches.append(bytes(stored))
        self._ends.append(self.end)
        if header.producer_id >= 0:
            state = self.producers[header.producer_id]
            state.last_sequence = header.last_sequence
            state.recent.append((header.base_sequence, header.last_sequence, base))
        return ErrorCode.NONE, base

    def _check_sequence(self, header: BatchHeader) -> tuple[ErrorCode, int | None]:
        state = self.producers.get(header.producer_id)
        if state is None or header.producer_epoch > state.epoch:
            if state is not None and header.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
            self.producers[header.producer_id] = ProducerState(header.producer_epoch)
            return ErrorCode.NONE, None
        if header.producer_epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        for first, last, base in state.recent:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return ErrorCode.NONE, base
        if header.base_sequence != (state.last_sequence + 1) % 2**31:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
        return ErrorCode.NONE, None

    def elect(self, kept_batches: int, leader_epoch: int) -> None:
        """Another leader takes over, which has only the first batches; it writes in this epoch."""
        self.leader_epoch = leader_epoch
        del self.batches[kept_batches:], self._ends[kept_batches:]
        self.end = self._ends[-1]
        self.epochs.truncate(self.end)

    def parting(self, last_fetched_epoch: int, offset: int) -> EpochEnd | None:
        """Where a reader that was there in that epoch parts from this log; None if it does not."""
        if last_fetched_epoch < 0:
            return None
        found = self.epochs.end_of(last_fetched_epoch, self.end)
        if self.epochs.latest < last_fetched_epoch <= self.leader_epoch:
            found = EpochEnd(self.epochs.latest, self.end)
        return found if found.epoch < last_fetched_epoch or found.end_address < offset else None

    def read(self, offset: int, max_bytes: int) -> bytes:
        data = b""
        for batch, end in zip(self.batches, self._ends, strict=True):
            if end > offset:
                if data and len(data) + len(batch) > max_bytes:
                    break
                data += batch
        return data

    def address_of(self, part: FetchPartition) -> int:
        """Where the batch begins that `read` begins with; -1 where offsets are no addresses."""
        ends = zip(self.batches, self._ends, strict=True)
        starts = [end - len(batch) for batch, end in ends if end > part.fetch_offset]
        return starts[0] if self.by_address else -1

    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in decode_records(batch)]

    def headers(self) -> list[BatchHeader]:
        return [header for batch in self.batches for _, header in hop(batch)]


def number_of(record: Record | ConsumerRecord) -> int:
    """Returns the number that a test wrote as a record's value."""
    assert record.value is not None
    return int(record.value)
