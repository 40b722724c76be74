"""LogAppendTime: the answer to a producer tells the time that its batch got."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fix_partitions import TOPIC, SomePartitions
from headrace.broker.core import ClientConnection
from headrace.broker.loop import EventLoop
from headrace.broker.produce import handler
from headrace.broker.produce.job import ACKS_ALL
from headrace.wire import produce
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, decode_records, encode_batch

VERSION = 12


def test_it_is_the_time_of_the_append_however_long_the_flush_takes(tmp_path: Path, loop: EventLoop) -> None:
    site = SomePartitions(tmp_path, loop, 1, {"log.message.timestamp.type": "LogAppendTime"})
    (partition,), times = site.all, [5_000]
    site.state.clock_ms = lambda: times[-1]
    connection = ClientConnection(
        cast(Any, None),
        peer="test",
        frame_limit_bytes=1 << 20,
        on_output=lambda _: None,
        on_abort=lambda problem: pytest.fail(problem),
    )
    batch = encode_batch([Record(0, 1, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0)

    def produced() -> produce.ProducePartitionResult:
        asked = produce.ProduceTopic(TOPIC, NO_UUID, [produce.ProducePartition(0, batch)])
        request = produce.ProduceRequest(None, ACKS_ALL, 30_000, [asked])
        encoded = produce.encode_request(request, version=VERSION, correlation_id=9, client_id="test")
        frame = memoryview(bytearray(encoded[4:]))
        partition.flushing = True  # the fsync of those before lasts
        handler.handle(site.state, connection, decode_request(frame), may_keep=False)
        site.state.partitions.commit()
        times.append(times[-1] + 1_000)
        partition.flushing = False
        site.flush(0)
        parts = connection.slots.popleft().parts
        assert parts is not None
        _, response = produce.decode_response(memoryview(cast(bytes, parts[0]))[4:], version=VERSION)
        (result,) = response.topics[0].partitions
        assert result.error_code == ErrorCode.NONE
        return result

    assert produced().log_append_time_ms == 5_000
    (record,) = decode_records(b"".join(each.read() for each in partition.log.slices(0, 1 << 20)))
    assert record.timestamp_ms == 5_000
    assert produced().log_append_time_ms == -1, "nobody knows when the first copy of a duplicate was stored"
    site.close()
