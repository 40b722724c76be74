"""Produce and Fetch, packed by hand, compared with kio's reader and writer in every version."""

from __future__ import annotations

import contextlib
import datetime
import io
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace.wire import fetch, produce
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, MalformedMessageError, UnsupportedVersionError
from headrace.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResult,
    ForgottenTopic,
)
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID, LeaderAndEpoch, NodeEndpoint
from headrace.wire.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResult,
    RecordError,
)

TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")
PRODUCE_VERSIONS = range(produce.VERSION_MIN, produce.VERSION_MAX + 1)
FETCH_VERSIONS = range(fetch.VERSION_MIN, fetch.VERSION_MAX + 1)


def kio_read(schema: type[Any], view: memoryview, at: int) -> Any:
    body, size_bytes = entity_reader(schema)(view, at)
    assert at + size_bytes == len(view), "kio sees bytes after the message"
    return body


def kio_write(body: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(body))(out, body)
    return out.getvalue()


def payload(framed: bytes) -> memoryview:
    (length,) = struct.unpack_from(">i", framed)
    assert length == len(framed) - 4
    return memoryview(framed)[4:]


def named(version: int, ids_from: int) -> tuple[str, UUID]:
    return ("", TOPIC_ID) if version >= ids_from else ("täglich", NO_UUID)


def produce_request(version: int) -> ProduceRequest:
    name, topic_id = named(version, produce.TOPIC_IDS_FROM)
    parts = [ProducePartition(3, b"batch" * 100), ProducePartition(70_000, None), ProducePartition(5, b"")]
    topics = [ProduceTopic(name, topic_id, parts), ProduceTopic(name, topic_id, [])]
    return ProduceRequest(None if version % 2 else "tx", -1, 30_000, topics)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_requests(version: int) -> None:
    request = produce_request(version)
    framed = produce.encode_request(request, version=version, correlation_id=99, client_id="c")
    head = decode_request(payload(framed))
    assert head[:4] == (ApiKey.PRODUCE, version, 99, "c")
    assert head.body == request
    schema = load_request_schema(0, version)
    header_size = 8 + 3 + (1 if version >= produce.FLEXIBLE_FROM else 0)
    theirs = kio_read(schema, payload(framed), header_size)
    assert kio_write(theirs) == bytes(payload(framed)[header_size:])
    assert theirs.acks == -1
    assert theirs.topic_data[0].partition_data[0].records == b"batch" * 100


def test_large_records_are_pieces_of_their_own() -> None:
    small, large = b"small" * 9, bytes(produce.GATHER_FROM_BYTES)
    for partitions in ((small,), (large,), (small, large), (large, large, small), (large, small, large)):
        parts = [ProducePartition(index, records) for index, records in enumerate(partitions)]
        request = ProduceRequest(None, -1, 1_000, [produce.ProduceTopic("t", NO_UUID, parts)])
        for version in (3, 9):
            pieces = produce.encode_request_pieces(request, version=version, correlation_id=1, client_id="c")
            assert sum(piece is large for piece in pieces) == partitions.count(large)
            frame = b"".join(pieces)
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            assert decode_request(frame[4:]).body == request


def test_produce_batches_are_views_of_the_frame() -> None:
    framed = produce.encode_request(produce_request(9), version=9, correlation_id=1, client_id=None)
    records = decode_request(payload(framed)).body.topics[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is framed


def produce_response(version: int) -> ProduceResponse:
    name, topic_id = named(version, produce.TOPIC_IDS_FROM)
    good = ProducePartitionResult(0, 0, 123, 456, 7 if version >= 5 else -1)
    bad = ProducePartitionResult(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if version >= 8:
        bad = bad._replace(error_message="moved", record_errors=(RecordError(2, "why"), RecordError(3, None)))
    endpoints: tuple[NodeEndpoint, ...] = ()
    if version >= produce.LEADER_HINTS_FROM:
        bad = bad._replace(current_leader=LeaderAndEpoch(4, 5))
        endpoints = (NodeEndpoint(4, "127.101.0.4", 9092, None), NodeEndpoint(5, "h", 1, "rack"))
    return ProduceResponse([ProduceTopicResult(name, topic_id, [good, bad])], 11, endpoints)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_responses(version: int) -> None:
    response = produce_response(version)
    framed = produce.encode_response(response, version=version, correlation_id=98)
    assert produce.decode_response(payload(framed), version=version) == (98, response)
    header_size = 5 if version >= produce.FLEXIBLE_FROM else 4
    theirs = kio_read(load_response_schema(0, version), payload(framed), header_size)
    assert kio_write(theirs) == bytes(payload(framed)[header_size:])
    assert theirs.throttle_time == datetime.timedelta(milliseconds=11)
    assert theirs.responses[0].partition_responses[1].error_code is KioErrorCode.not_leader_or_follower


def test_a_produce_request_is_refused_as_a_whole() -> None:
    response = produce.refuse(produce_request(9), ErrorCode.POLICY_VIOLATION, "no")
    assert [[(p.partition, p.error_code) for p in t.partitions] for t in response.topics] == [
        [(3, 44), (70_000, 44), (5, 44)],
        [],
    ]


def fetch_request(version: int) -> FetchRequest:
    name, topic_id = named(version, fetch.TOPIC_IDS_FROM)
    partition = FetchPartition(2, 2**40, 1_048_576)
    if version >= 5:
        partition = partition._replace(log_start_offset=9)
    if version >= 9:
        partition = partition._replace(current_leader_epoch=6)
    if version >= 12:
        partition = partition._replace(last_fetched_epoch=4)
    request = FetchRequest(
        500, 1, 50_000_000, [FetchTopic(name, topic_id, [partition, partition])], replica_id=3
    )
    if version >= 7:
        forgotten = (ForgottenTopic(name, topic_id, [1, 2, 3]), ForgottenTopic(name, topic_id, []))
        request = request._replace(session_id=77, session_epoch=2, forgotten=forgotten)
    return request._replace(rack_id="r1") if version >= 11 else request


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("replica_id", [-1, 3])
def test_fetch_requests(version: int, replica_id: int) -> None:
    request = fetch_request(version)._replace(replica_id=replica_id)
    framed = fetch.encode_request(request, version=version, correlation_id=99, client_id="c")
    head = decode_request(payload(framed))
    assert head[:4] == (ApiKey.FETCH, version, 99, "c")
    assert head.body == request
    header_size = 8 + 3 + (1 if version >= fetch.FLEXIBLE_FROM else 0)
    theirs = kio_read(load_request_schema(1, version), payload(framed), header_size)
    assert kio_write(theirs) == bytes(payload(framed)[header_size:])
    assert theirs.topics[0].partitions[1].fetch_offset == 2**40


def fetch_response(version: int) -> FetchResponse:
    name, topic_id = named(version, fetch.TOPIC_IDS_FROM)
    full = FetchPartitionResult(0, 0, 2**41, b"batches" * 50, 2**41, aborted=())
    bad = FetchPartitionResult(1, ErrorCode.OFFSET_OUT_OF_RANGE, -1, None, aborted=((1, 2), (3, 4)))
    empty = FetchPartitionResult(2, 0, 5, b"", 5)
    if version >= 5:
        full = full._replace(log_start_offset=3)
    if version >= 11:
        full = full._replace(preferred_read_replica=8)
    if version >= fetch.FLEXIBLE_FROM:
        bad = bad._replace(current_leader=LeaderAndEpoch(1, 2), diverging_epoch=(3, 4))
    response = FetchResponse([FetchTopicResult(name, topic_id, [full, bad, empty])], throttle_time_ms=4)
    if version >= 7:
        response = response._replace(error_code=70, session_id=6)
    if version >= fetch.ENDPOINTS_FROM:
        response = response._replace(node_endpoints=(NodeEndpoint(1, "h", 2, None),))
    return response


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_responses(version: int) -> None:
    response = fetch_response(version)
    framed = joined(response, version, 98)
    assert fetch.decode_response(payload(framed), version=version) == (98, response)
    header_size = 5 if version >= fetch.FLEXIBLE_FROM else 4
    theirs = kio_read(load_response_schema(1, version), payload(framed), header_size)
    assert kio_write(theirs) == bytes(payload(framed)[header_size:])
    assert theirs.responses[0].partitions[0].records == b"batches" * 50


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("replica_id", [-1, 3])
def test_a_fetch_may_ask_where_its_records_begin(version: int, replica_id: int) -> None:
    """A field of our own, tagged from the first flexible version on: others skip it."""
    is_told = version >= fetch.FLEXIBLE_FROM
    request = fetch_request(version)._replace(replica_id=replica_id)
    asking = request._replace(wants_addresses=True)
    framed = fetch.encode_request(asking, version=version, correlation_id=99, client_id="c")
    assert decode_request(payload(framed)).body == (asking if is_told else request)
    response = fetch_response(version)
    full, *others = response.topics[0].partitions
    told = full._replace(address=2**40)
    answer = response._replace(topics=[response.topics[0]._replace(partitions=[told, *others])])
    framed = joined(answer, version, 98)
    _, read = fetch.decode_response(payload(framed), version=version)
    assert read.topics[0].partitions[0].address == (2**40 if is_told else -1)
    assert read.topics[0].partitions[1:] == others


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_responses_can_leave_out_records(version: int) -> None:
    response = fetch_response(version)
    parts = response.topics[0].partitions
    without_records = response._replace(
        topics=[response.topics[0]._replace(partitions=[parts[0]._replace(records=350), *parts[1:]])]
    )
    pieces = fetch.encode_response(without_records, version=version, correlation_id=98)
    assert [piece for piece in pieces if isinstance(piece, int)] == [350]
    filled = b"".join(b"batches" * 50 if isinstance(piece, int) else piece for piece in pieces)
    assert filled == joined(response, version, 98)


def test_kio_made_fetch_requests_with_unknown_tags_are_read() -> None:
    module = load_payload_module(1, 12, EntityType.request)
    body = module.FetchRequest(
        cluster_id="some-cluster",
        replica_id=-1,
        max_wait=datetime.timedelta(milliseconds=5),
        min_bytes=1,
        topics=(
            module.FetchTopic(
                topic="t",
                partitions=(module.FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=2),),
            ),
        ),
        forgotten_topics_data=(),
    )
    request = fetch.decode_request(memoryview(kio_write(body)), 0, 12)
    assert request.topics == [FetchTopic("t", NO_UUID, [FetchPartition(0, 1, 2)])]


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (0, 14), (1, 3), (1, 18), (0, -1), (1, 32767)])
def test_the_error_of_other_versions_has_what_a_response_needs(api_key: int, version: int) -> None:
    frame = struct.pack(">hhih", api_key, version, 5, -1)
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request(frame)
    assert (caught.value.api_key, caught.value.version, caught.value.correlation_id) == (api_key, version, 5)


def joined(response: FetchResponse, version: int, correlation_id: int) -> bytes:
    """The encoded response; its records are bytes."""
    pieces = fetch.encode_response(response, version=version, correlation_id=correlation_id)
    return b"".join(piece for piece in pieces if not isinstance(piece, int))


def every_message() -> Iterator[tuple[Callable[[memoryview], object], bytes]]:
    for version in PRODUCE_VERSIONS:
        body = produce.encode_request(
            produce_request(version), version=version, correlation_id=1, client_id="c"
        )
        yield decode_request, body
        body = produce.encode_response(produce_response(version), version=version, correlation_id=1)
        yield partial(produce.decode_response, version=version), body
    for version in FETCH_VERSIONS:
        body = fetch.encode_request(fetch_request(version), version=version, correlation_id=1, client_id="c")
        yield decode_request, body
        body = joined(fetch_response(version), version, 1)
        yield partial(fetch.decode_response, version=version), body


MESSAGES = list(every_message())


def test_every_truncation_is_a_wire_error() -> None:
    for decode, framed in MESSAGES:
        whole = payload(framed)
        for cut in range(len(whole)):
            with pytest.raises((MalformedMessageError, UnsupportedVersionError)):
                decode(whole[:cut])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(MESSAGES), st.lists(st.tuples(st.integers(0, 10**4), st.integers(1, 255)), max_size=4))
def test_flipped_bytes_are_read_or_refused(
    message: tuple[Callable[[memoryview], object], bytes], flips: list[tuple[int, int]]
) -> None:
    decode, framed = message
    damaged = bytearray(payload(framed))
    for at, mask in flips:
        damaged[at % len(damaged)] ^= mask
    with contextlib.suppress(MalformedMessageError, UnsupportedVersionError):
        decode(memoryview(damaged))
