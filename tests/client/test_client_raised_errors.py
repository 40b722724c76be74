"""An error that a client raises more than once: its traceback has the present call, and keeps no other."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial

import pytest

from fix_client import MakeProducer, StartCluster
from fix_fake_broker import refuse
from headrace.client import Consumer
from headrace.client.errors import ClientError, OffsetOutOfRangeError
from headrace.client.streams import MessageStream
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

WAIT_S = 60


def frames_of(call: Callable[[], object]) -> int:
    """Returns how many frames the traceback of the error has that this call raises."""
    try:
        call()
    except ClientError as error:
        return len(list(traceback.walk_tb(error.__traceback__)))
    raise AssertionError("no error")


def test_the_records_of_a_failed_batch(fake_cluster: StartCluster, fast_producer: MakeProducer) -> None:
    """A service that logs each one with its traceback wrote pages for each of the last ones."""
    cluster = fake_cluster()
    cluster.next(ApiKey.PRODUCE, *[refuse(ErrorCode.MESSAGE_TOO_LARGE)] * 100)
    producer = fast_producer(cluster, linger_ms=200)
    futures = [producer.send("t", b"v", partition=0) for _ in range(10)]
    assert len({frames_of(partial(future.result, WAIT_S)) for future in futures}) == 1


def test_a_producer_that_accepts_nothing_any_more(
    fake_cluster: StartCluster, fast_producer: MakeProducer
) -> None:
    """Each call's frames, with the value that it was to send, stayed in memory."""
    cluster = fake_cluster()
    cluster.next(ApiKey.INIT_PRODUCER_ID, *[refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)] * 100)
    producer = fast_producer(cluster)
    with pytest.raises(ClientError):
        producer.send("t", b"v", partition=0).result(WAIT_S)
    assert len({frames_of(lambda: producer.send("t", b"v", partition=0)) for _ in range(10)}) == 1


def test_a_stream_that_has_ended() -> None:
    stream = MessageStream(0, wants_more=lambda: None)
    stream.end(ClientError("the group's thread failed"))
    assert len({frames_of(lambda: stream.get(WAIT_S)) for _ in range(10)}) == 1


def test_a_position_that_is_nowhere(fake_cluster: StartCluster) -> None:
    with Consumer(fake_cluster().bootstrap, auto_offset_reset="error") as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(OffsetOutOfRangeError):
            consumer.position("t", 0)
        assert len({frames_of(lambda: consumer.position("t", 0)) for _ in range(10)}) == 1
