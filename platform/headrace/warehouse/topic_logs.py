"""A topic's logs as the brokers have them now, and single batches in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import OTHER_LOG, LogWentBackError
from headrace.warehouse.source.connection import Address
from headrace.warehouse.source.options import SourceOptions
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reading import read_batches
from headrace.wire.batch import BatchHeader

UNREADABLE: Final = -1
"""Instead of a CRC: the batch there is damaged, or there is none."""
ENDS_ELSEWHERE: Final = -2
"""Instead of a CRC: the batch there does not end at the address that was asked for."""


@dataclass(frozen=True)
class Log:
    """A partition's log: its bounds, and the leader."""

    earliest: int
    latest: int
    leader: Address


@dataclass(frozen=True)
class TopicLogs:
    """The logs of a topic. `topic_id`: Kafka's id of it; "" if the brokers give topics none."""

    warehouse: WarehouseOptions
    topic: str
    topic_id: str
    logs: Mapping[int, Log]
    unread: frozenset[int] = frozenset()
    """Partitions that are there, and cannot be read now."""

    def crc_before(self, partition: int, end: int) -> int:
        """Returns the CRC of the batch that ends at this address, `UNREADABLE` or `ENDS_ELSEWHERE`. Raises
        `SourceError`.
        """
        # The offsets of records are the last ones of their batch's addresses.
        header, problem = self.first_batch(partition, end - 1, self.logs[partition].latest) or (None, "")
        if header is None or problem or header.address >= end:
            return UNREADABLE
        return header.crc if header.next_offset == end else ENDS_ELSEWHERE

    def first_batch(self, partition: int, start: int, end: int) -> tuple[BatchHeader, str] | None:
        """Returns the header of the first batch with records in [start, end), and why it cannot be read, ""
        for a sound one; None if there is none. Raises `SourceError`.
        """
        options = SourceOptions(
            bootstrap=self.warehouse.servers, fetch_size_bytes=1, on_corrupt="keep", fail_on_data_loss=False
        )
        leader = self.logs[partition].leader
        for batch in read_batches(Range(self.topic, partition, start, end), options, leader):
            return batch.header, batch.problem
        return None

    def begins_batch(self, partition: int, address: int) -> bool:
        """Whether a load that ended at this address can go on there. Raises `SourceError`."""
        log = self.logs[partition]
        # Where the log itself begins now, it may begin within a batch.
        if not log.earliest < address < log.latest:
            return address <= log.latest
        header, problem = self.first_batch(partition, address, log.latest) or (None, "")
        # The offsets of records are the last ones of their batch's addresses.
        return header is None or bool(problem) or header.address >= address or header.base_offset == address

    def check_begins_batch(self, partition: int, address: int) -> None:
        """Raises `LogWentBackError` if the address, where the last load ended, lies within a batch."""
        if not self.begins_batch(partition, address):
            raise LogWentBackError(
                f"{self.topic}: partition {partition} is loaded up to address {address}, where no batch "
                f"begins: {OTHER_LOG}"
            )
