"""What a request costs grows no faster than its size: twice the items cost about twice the CPU."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import uuid4

import pytest

from headrace.broker.bodies import build
from headrace.broker.cluster import ClusterView
from headrace.broker.core import ClientConnection
from headrace.broker.handlers import cluster, leadership, metadata
from headrace.broker.handlers.metadata import Cluster
from headrace.broker.partitions import Partitions
from headrace.broker.produce import handler
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.state import BrokerState
from headrace.coordination.topics import PartitionState, TopicState
from headrace.wire.messages import Request, decode_request, encode_response

RATIO_MAX: Final = 2.6  # a quadratic one costs four times as much
ITEMS: Final = 1_200
BEST_OF: Final = 7
ATTEMPTS_MAX: Final = 5  # other programs disturb even the CPU time of short runs


def state() -> BrokerState:
    nothing = cast(Any, None)
    ready = PartitionState(1, 0, (1,), (1,))
    topics = {"t": TopicState("t", uuid4(), dict.fromkeys(range(100), ready))}
    return BrokerState(
        broker_id=1,
        datacenter="test",
        cluster_id="test",
        config=BrokerConfig(),
        loop=cast(Any, SimpleNamespace(post=None, at_wakeup_end=lambda _: None)),
        partitions=Partitions(nothing, lambda *_: nothing, lambda: 0),
        control=nothing,
        codec=nothing,
        topics=nothing,
        on_demand=nothing,
        lookups=nothing,
        cold_reads=nothing,
        view=ClusterView().with_topics(topics),
    )


STATE: Final = state()


def head(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, -1)


def produce(frame: bytes) -> None:
    connection = ClientConnection(
        cast(Any, None),
        peer="127.0.0.1:1",
        frame_limit_bytes=1 << 20,
        on_output=lambda each: each.release_responses(),
        on_abort=lambda _: None,
    )
    handler.handle(STATE, connection, decode_request(memoryview(frame)), may_keep=False)
    assert connection.outgoing, "it is answered"


def produce_topics(count: int) -> Callable[[], None]:
    one = struct.pack(">h", 1) + b"q" + struct.pack(">iii", 1, 0, -1)
    frame = head(0, 3) + struct.pack(">hhi", -1, 1, 1_000) + struct.pack(">i", count) + one * count
    return lambda: produce(frame)


def produce_partitions(count: int) -> Callable[[], None]:
    parts = b"".join(struct.pack(">ii", number, -1) for number in range(count))
    frame = head(0, 3) + struct.pack(">hhi", -1, 1, 1_000)
    frame += struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", count) + parts
    return lambda: produce(frame)


def respond(request: Request, tree: dict[str, Any]) -> None:
    encode_response(build(request.api_key, request.version, tree), correlation_id=1)


def metadata_names(count: int) -> Callable[[], None]:
    names = b"".join(struct.pack(">h", 6) + b"x%05d" % number for number in range(count))
    frame = head(3, 4) + struct.pack(">i", count) + names + b"\0"

    def run() -> None:
        request = decode_request(frame)
        respond(
            request,
            metadata.respond(Cluster(STATE.view, "test", frozenset()), request, request.body.topics),
        )

    return run


def coordinators(count: int) -> Callable[[], None]:
    keys = b"".join(b"\7x%05d" % number for number in range(count))
    length = bytes([(count + 1) & 0x7F | 0x80, (count + 1) >> 7])
    frame = head(10, 4) + b"\0" + b"\0" + length + keys + b"\0"

    def run() -> None:
        request = decode_request(frame)
        respond(request, cluster.find_coordinator(STATE, request))

    return run


def reassignments(count: int) -> Callable[[], None]:
    """Of a topic whose partitions all move; the last ones that are named are its own."""
    moving = PartitionState(1, 0, (1, 2), (1,), adding=(2,))
    topics = {"t": TopicState("t", uuid4(), dict.fromkeys(range(count), moving))}
    asking = SimpleNamespace(name="t", partition_indexes=list(range(5 * count, -1, -1)))
    request = Request(46, 0, 1, None, SimpleNamespace(topics=[asking]))
    moved = cast(Any, SimpleNamespace(view=ClusterView().with_topics(topics)))

    def run() -> None:
        (found,) = leadership.list_reassignments(moved, request)["topics"]
        assert len(found["partitions"]) == count

    return run


def cost_s(run: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(BEST_OF):
        before = time.thread_time()
        run()
        best = min(best, time.thread_time() - before)
    return best


@pytest.mark.parametrize(
    "case", [produce_topics, produce_partitions, metadata_names, coordinators, reassignments]
)
def test_twice_the_items_cost_about_twice_as_much(case: Callable[[int], Callable[[], None]]) -> None:
    small, large = case(ITEMS), case(2 * ITEMS)
    ratios = []
    for _ in range(ATTEMPTS_MAX):
        ratios.append(cost_s(large) / cost_s(small))
        if ratios[-1] <= RATIO_MAX:
            return
    pytest.fail(f"twice the items cost {min(ratios):.1f} times as much at best")
