"""Single Fetches at one address, whatever the bytes there are: how the auditor looks at a damaged place.

Owns its connections. `client.Consumer` returns only batches that it could check.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from headrace.audit.batches.damage import BATCH_SIZE_MAX_BYTES, is_good_at, is_whole
from headrace.client.calls import LATEST, Call, fetch_call, leader_epochs_call, list_offsets_call
from headrace.client.errors import BrokerError, NetworkError
from headrace.client.network import Network
from headrace.wire.batch import HEADER, HEADER_SIZE_BYTES, BatchHeader
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.primitives import NO_UUID

REACH_MAX_S: Final = 0.3  # to connect to a leader
REQUEST_TIMEOUT_MS: Final = 3_000  # counting of all other partitions waits meanwhile
READ_MAX_BYTES: Final = 8 * 1024 * 1024
READ_AGAIN_MAX_BYTES: Final = 64 * 1024 * 1024  # past damage, which ends a shorter read of some brokers
PROBES_MAX: Final = 80  # Fetches that look for the end of a stretch without batches


class RawBytes(NamedTuple):
    """What a broker answered to one Fetch: an error, or bytes as they are stored, which begin at `address`.

    -1: without any bytes, or from an older broker, which does not say it.
    """

    error: ErrorCode
    buffer: memoryview
    high_watermark: int
    address: int = -1

    @property
    def header(self) -> BatchHeader | None:
        """The first batch's header, whatever it says; None without one."""
        if len(self.buffer) < HEADER_SIZE_BYTES:
            return None
        return BatchHeader._make(HEADER.unpack_from(self.buffer, 0))

    @property
    def place(self) -> int:
        """The address of the first batch: by its place in the log, if that is known, else by its offsets."""
        if self.address >= 0 or self.header is None:
            return self.address
        return self.header.address


class RawReader:
    """Reads single pieces of logs. One thread uses it."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._network = Network(bootstrap, client_id=client_id, request_timeout_ms=REQUEST_TIMEOUT_MS)

    def close(self) -> None:
        self._network.close()

    def read(self, topic: str, partition: int, address: int, max_bytes: int = READ_MAX_BYTES) -> RawBytes:
        """Returns the bytes from the batch that holds `address` on, one whole batch at least if the broker
        can tell where it ends. Raises `ClientError` if no broker answers.
        """
        part = FetchPartition(partition, address, min(max_bytes, BATCH_SIZE_MAX_BYTES))
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=part.max_bytes,
            topics=[FetchTopic(topic, NO_UUID, [part])],
            wants_addresses=True,
        )
        body = self._send(topic, partition, fetch_call(request))
        if body.error_code:
            raise BrokerError(body.error_code, f"{topic}-{partition}")
        result = body.topics[0].partitions[0]
        if result.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._network.request_update()
            raise BrokerError(result.error_code, f"{topic}-{partition}")
        records = result.records if isinstance(result.records, memoryview) else memoryview(b"")
        return RawBytes(ErrorCode(result.error_code), records, result.high_watermark, result.address)

    def end(self, topic: str, partition: int) -> int | None:
        """Returns the log's end; None if the broker does not tell it. Raises `ClientError`."""
        body = self._send(topic, partition, list_offsets_call({topic: {partition: LATEST}}))
        found = body.topics[0].partitions[0]
        return int(found.offset) if found.error_code == ErrorCode.NONE else None

    def epoch_end(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        """Returns the largest leader epoch up to `epoch` in the log, and where it ends; (-1, -1) without any.

        Raises `ClientError`.
        """
        body = self._send(topic, partition, leader_epochs_call({topic: {partition: epoch}}))
        found = body.topics[0].partitions[0]
        if found.error_code:
            self._network.request_update()
            raise BrokerError(found.error_code, f"{topic}-{partition}")
        return int(found.leader_epoch), int(found.end_offset)

    def is_readable(self, topic: str, partition: int, address: int) -> bool:
        """Whether the broker can read from there on. Raises `ClientError`."""
        return self.read(topic, partition, address, 1).error is ErrorCode.NONE

    def first_good_after(self, topic: str, partition: int, address: int, end: int) -> int | None:
        """Returns the least address found in (address, end] from which the broker can read on; None if the
        broker does not even serve the log's end.

        The broker finds batches from the starts that it knows. So if an offset leads to a batch, every later
        one does, except behind further damage: bisection finds the first start that the broker knows.
        """
        low, high = address, end
        if not self.is_readable(topic, partition, end):
            return None
        for _ in range(PROBES_MAX):
            middle = (low + high) // 2
            if high - low <= HEADER_SIZE_BYTES or middle <= low:
                break
            found = self._batch_at(topic, partition, middle)
            if found is not None and address < found < high:
                high = found
            else:
                low = middle
        return high

    def next_batch_after(self, topic: str, partition: int, address: int) -> int | None:
        """Returns where reading can go on behind the bad batch that holds `address`, if that is known.

        Raises `ClientError` if no broker answers.
        """
        read = self.read(topic, partition, address, 1)
        header, place = read.header, read.place
        if read.error is ErrorCode.NONE and header is not None:
            if read.address > address:
                return read.address  # behind a gap
            if header.is_stored_at(place) and place <= address < header.next_offset:
                return header.next_offset
            holds_it = 0 <= read.address <= address < place + header.size_bytes
            if holds_it and is_whole(read.buffer, 0, header):
                return place + header.size_bytes  # its offsets alone are wrong
        end = self.end(topic, partition)
        if end is None or end <= address:
            return None
        return self.first_good_after(topic, partition, address, end)

    def _batch_at(self, topic: str, partition: int, offset: int) -> int | None:
        """Returns the address of the good batch in which `offset` lies; None if the broker gives none."""
        read = self.read(topic, partition, offset, 1)
        if read.error is not ErrorCode.NONE or read.header is None:
            return None
        return read.place if read.place <= offset and is_good_at(read.buffer, 0, read.place) else None

    def _send(self, topic: str, partition: int, call: Call) -> Any:
        """Sends to the partition's leader and returns the response's body. Raises `ClientError`."""
        network = self._network
        network.add_topics([topic])
        until_s = time.monotonic() + REACH_MAX_S
        while (leader := network.cluster.leader(topic, partition)) is None or not network.ready(leader):
            if time.monotonic() >= until_s:
                raise NetworkError(f"the leader of {topic}-{partition} was not reached: {network.last_error}")
            if leader is None:
                network.request_update()
            network.poll(0.02)
        deadline_s = time.monotonic() + REQUEST_TIMEOUT_MS / 1_000
        return network.send_and_wait(call, node_id=leader, deadline_s=deadline_s)
