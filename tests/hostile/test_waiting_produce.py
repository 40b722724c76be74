"""What a Produce request keeps in memory while it waits to be acknowledged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import pytest

from fix_partitions import TOPIC, SomePartitions
from headrace.broker.core import ClientConnection
from headrace.broker.loop import EventLoop
from headrace.broker.produce import handler
from headrace.broker.produce.job import ACKS_ALL
from headrace.wire import produce
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

VERSION: Final = 9


def test_a_produce_request_that_waits_for_replicas_keeps_no_record(tmp_path: Path, loop: EventLoop) -> None:
    """Each connection may have 256 that wait for up to five minutes: with a topic's flush.ms anybody can make
    them wait."""
    site = SomePartitions(tmp_path, loop, 2)
    connection = ClientConnection(
        cast(Any, None),
        peer="test",
        frame_limit_bytes=1 << 20,
        on_output=lambda _: None,
        on_abort=lambda problem: pytest.fail(problem),
    )
    batch = encode_batch([Record(0, 1, None, bytes(100_000))])
    parts = [produce.ProducePartition(index, batch) for index in range(2)]
    request = produce.ProduceRequest(None, ACKS_ALL, 300_000, [produce.ProduceTopic(TOPIC, NO_UUID, parts)])
    frame = bytearray(produce.encode_request(request, version=VERSION, correlation_id=9, client_id="c")[4:])
    for partition in site.all:
        partition.flushing = True  # the fsync of those before lasts
    handler.handle(site.state, connection, decode_request(memoryview(frame)), may_keep=True)
    site.state.partitions.commit()
    assert connection.slots[0].parts is None, "it waits for the fsync"
    frame.clear()  # Python refuses that while anything refers to it
    for index, partition in enumerate(site.all):
        partition.flushing = False
        site.flush(index)
    (raw,) = cast(Any, connection.slots[0].parts)
    _, response = produce.decode_response(memoryview(raw)[4:], version=VERSION)
    (topic,) = response.topics
    assert [(part.partition, part.error_code) for part in topic.partitions] == [(0, 0), (1, 0)]
    site.close()
