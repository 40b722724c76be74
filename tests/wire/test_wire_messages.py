"""Control messages: round trips of every API and version that kio knows; broken ones are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import struct
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsV0
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32Timedelta

from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, MalformedMessageError, ProtocolError, UnsupportedVersionError
from headrace.wire.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    unsupported_api_versions_response,
)
from headrace.wire.primitives import ItemBound
from headrace.wire.schemas import BROKEN_MESSAGE, _time, _without_none, reader

METADATA = MetadataRequest(
    topics=(MetadataRequestTopic(topic_id=None, name=TopicName("t")),),
    allow_auto_topic_creation=True,
    include_topic_authorized_operations=False,
)
NO_THROTTLE = i32Timedelta.parse(datetime.timedelta())


def test_a_request_round_trip() -> None:
    framed = encode_request(METADATA, correlation_id=7, client_id="me")
    assert struct.unpack_from(">ihhi", framed) == (len(framed) - 4, 3, 12, 7)
    assert decode_request(framed[4:]) == (ApiKey.METADATA, 12, 7, "me", METADATA)


def test_a_response_round_trip() -> None:
    body = MetadataResponse(throttle_time=NO_THROTTLE, brokers=(), topics=())
    framed = encode_response(body, correlation_id=7)
    assert decode_response(framed[4:], api_key=3, version=12) == (7, body)


def test_api_versions_responses_have_header_0() -> None:
    body = ApiVersionsResponse(
        error_code=KioErrorCode.none,
        api_keys=(ApiVersion(api_key=i16(3), min_version=i16(0), max_version=i16(12)),),
        throttle_time=NO_THROTTLE,
    )
    framed = encode_response(body, correlation_id=5)
    assert framed.hex(" ") == "00 00 00 13 00 00 00 05 00 00 02 00 03 00 00 00 0c 00 00 00 00 00 00"
    assert decode_response(framed[4:], api_key=18, version=3) == (5, body)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    frame = struct.pack(">hhih", 18, 77, 5, -1)
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request(frame)
    framed = unsupported_api_versions_response(caught.value.correlation_id, [(18, 0, 3)])
    correlation_id, body = decode_response(framed[4:], api_key=18, version=4)
    assert correlation_id == 5
    assert isinstance(body, ApiVersionsV0)
    assert body.error_code is KioErrorCode.unsupported_version
    assert [(k.api_key, k.min_version, k.max_version) for k in body.api_keys] == [(18, 0, 3)]


@pytest.mark.parametrize(("api_key", "version"), [(3, 99), (3, -1), (4, 0), (999, 0), (-5, 0)])
def test_unknown_apis_and_versions(api_key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=str(api_key)):
        decode_request(struct.pack(">hhihb", api_key, version, 5, -1, 0))


@pytest.mark.parametrize("cut", range(len(encode_request(METADATA, correlation_id=7, client_id="me")) - 4))
def test_truncated_requests(cut: int) -> None:
    with pytest.raises(MalformedMessageError):
        decode_request(encode_request(METADATA, correlation_id=7, client_id="me")[4:][:cut])


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(list(ApiKey)), st.integers(0, 12), st.binary(max_size=120))
def test_garbage_bodies(api_key: ApiKey, version: int, body: bytes) -> None:
    frame = struct.pack(">hhih", api_key, version, 5, -1) + body
    with contextlib.suppress(MalformedMessageError, UnsupportedVersionError):
        decode_request(frame)
    with contextlib.suppress(MalformedMessageError, UnsupportedVersionError):
        decode_response(frame, api_key=api_key, version=version)


@given(st.binary(max_size=30))
def test_garbage_frames(frame: bytes) -> None:
    with contextlib.suppress(MalformedMessageError, UnsupportedVersionError):
        decode_request(frame)


def test_software_names_round_trip() -> None:
    body = ApiVersionsRequest(client_software_name="headrace", client_software_version="1")
    assert decode_request(encode_request(body, correlation_id=1, client_id=None)[4:]).body == body


def test_error_codes_are_the_protocols_own() -> None:
    assert {int(code): code.retriable for code in ErrorCode} == {
        int(code): code.retriable for code in KioErrorCode
    }
    assert ErrorCode(12_345) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert str(ProtocolError(6, "moved")) == "NOT_LEADER_OR_FOLLOWER (6): moved"


def every_schema() -> Iterator[type[Any]]:
    for name in api_key_map.values():
        for version, kinds in schema_name_map[name].items():
            for kind in kinds:
                yield load_entity_schema(name, version, kind)


# Read at the first use: every test process imports all tests.
SCHEMAS = st.deferred(lambda: st.sampled_from(list(every_schema())))


def packed(body: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(body))(out, body)
    return out.getvalue()


def value_of(field: dataclasses.Field[Any], data: st.DataObject) -> Any:
    """Any value of the field's type, drawn by Hypothesis."""
    kind, nullable = _without_none(field.type)
    if nullable and "tag" not in field.metadata and data.draw(st.booleans()):
        return None
    if getattr(kind, "__origin__", None) is tuple:
        item, _ = _without_none(get_args(kind)[0])
        return tuple(single(field, item, data) for _ in range(data.draw(st.integers(0, 2))))
    return single(field, kind, data)


def single(field: dataclasses.Field[Any], kind: Any, data: st.DataObject) -> Any:
    if dataclasses.is_dataclass(kind):
        return instance(kind, data)
    return data.draw(SIMPLE[field.metadata["kafka_type"]])


def instance(schema: Any, data: st.DataObject) -> Any:
    return schema(**{field.name: value_of(field, data) for field in dataclasses.fields(schema)})


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": integers(8),
    "int16": integers(16),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": integers(32),
    "int64": integers(64),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "records": st.binary(max_size=5),
    "uuid": st.uuids(),
    "error_code": st.sampled_from(list(KioErrorCode)),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(-(2**45), 2**45).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2**41).map(_time),  # kio loses microseconds beyond the year 2255
}


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.data())
def test_every_schema_is_read_as_kio_reads_it(schema: type[Any], data: st.DataObject) -> None:
    body = instance(schema, data)
    written = packed(body)
    assert reader(schema)(memoryview(written), 0, ItemBound()) == (body, len(written))
    assert entity_reader(schema)(written, 0) == (body, len(written))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.data())
def test_a_damaged_message_is_read_or_refused(schema: type[Any], data: st.DataObject) -> None:
    damaged = bytearray(packed(instance(schema, data)) or b"x")
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(MalformedMessageError, *BROKEN_MESSAGE):
        reader(schema)(memoryview(damaged), 0, ItemBound())


def test_an_array_longer_than_its_frame_is_refused() -> None:
    """kio's own reader aborts the process on this one."""
    frame = struct.pack(">hhihB", 3, 12, 5, -1, 0) + b"\xff\xff\xff\xff\x0f" + bytes(8)
    with pytest.raises(MalformedMessageError, match="array of 4294967294 items"):
        decode_request(frame)


def test_unknown_tagged_fields_are_skipped() -> None:
    body = ApiVersionsRequest(client_software_name="a", client_software_version="b")
    framed = encode_request(body, correlation_id=1, client_id=None)[4:-1] + b"\x01\x63\x01x"
    assert decode_request(framed).body == body


def test_an_unknown_error_code_reads_as_unknown_server_error() -> None:
    schema = load_entity_schema("heartbeat", 0, EntityType.response)
    assert (
        reader(schema)(memoryview(b"\x7f\xff"), 0, ItemBound())[0].error_code
        is KioErrorCode.unknown_server_error
    )
