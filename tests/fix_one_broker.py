"""The one broker of a session: a connection and a topic, batches to send, what to wait for.

Fixtures: `client`, a connection to the broker of `one_broker`; `topic`, a new topic of it.
"""

import datetime
import time
import uuid
from collections.abc import Iterator

import pytest
from kio.static.primitive import i32Timedelta

from fix_broker import BrokerCluster, RawClient
from headrace.wire.records import Record, encode_batch

FIVE_S = i32Timedelta.parse(datetime.timedelta(seconds=5))


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(client: RawClient) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(name)
    return name


def batch(value: bytes = b"v", count: int = 1, at_ms: int = 1_000, **fields: int) -> bytes:
    return encode_batch([Record(i, at_ms + i, None, value) for i in range(count)], **fields)  # type: ignore[arg-type]


def wait_visible(client: RawClient, topic: str, end: int) -> None:
    deadline = time.monotonic() + 60
    while client.list_offset(topic, 0, -1)[0] < end:
        assert time.monotonic() < deadline


def wait_until(reached: object, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.02)
