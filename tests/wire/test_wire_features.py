"""Whether a broker's offsets are addresses: asked and read by hand, as kio writes and reads it."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse, SupportedFeatureKey
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.primitive import i16, i32Timedelta

from headrace.wire.apis import ADDRESS_FEATURE, SOFTWARE_NAME, SOFTWARE_VERSION, ApiKey
from headrace.wire.errors import MalformedMessageError
from headrace.wire.features import encode_request, has_addresses
from headrace.wire.messages import decode_request, encode_response, unsupported_api_versions_response

FOUND = {ADDRESS_FEATURE: (1, 1)}


def response(features: dict[str, tuple[int, int]], *, apis: int = 3, code: int = 0) -> memoryview:
    """Returns the frame of a response, after its length."""
    body = ApiVersionsResponse(
        error_code=KioErrorCode(code),
        api_keys=tuple(
            ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(9)) for key in range(apis)
        ),
        throttle_time=i32Timedelta.parse(datetime.timedelta()),
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=i16(low), max_version=i16(high))
            for name, (low, high) in features.items()
        ),
    )
    return memoryview(encode_response(body, correlation_id=0))[4:]


def test_the_request_is_the_one_that_kio_reads() -> None:
    framed = encode_request("me")
    request = decode_request(memoryview(framed)[4:])
    assert (request.api_key, request.version, request.client_id) == (ApiKey.API_VERSIONS, 3, "me")
    assert request.body.client_software_name == SOFTWARE_NAME
    assert request.body.client_software_version == SOFTWARE_VERSION


def test_the_feature_is_found_among_others() -> None:
    assert has_addresses(response(FOUND))
    assert has_addresses(response({"metadata.version": (1, 29), **FOUND, "group.version": (0, 1)}, apis=90))
    assert has_addresses(response({ADDRESS_FEATURE: (1, 2)}))


def test_other_brokers_have_none() -> None:
    assert not has_addresses(response({}))
    assert not has_addresses(response({"metadata.version": (1, 29), "kraft.version": (0, 1)}))
    assert not has_addresses(response({ADDRESS_FEATURE: (2, 3)}))
    assert not has_addresses(memoryview(unsupported_api_versions_response(0, [(18, 0, 2)]))[4:])


@given(st.data())
def test_broken_responses_are_refused(data: st.DataObject) -> None:
    whole: Any = bytearray(response({"metadata.version": (1, 29), **FOUND}))
    cut = data.draw(st.integers(0, len(whole)))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessageError):
        has_addresses(memoryview(whole)[:cut])
