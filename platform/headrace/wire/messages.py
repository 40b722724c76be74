"""Whole messages: headers, and bodies by kio (control messages) or by `wire.produce` and `wire.fetch`.

Bodies of control messages are kio's dataclasses (`kio.schema.<api>.v<N>.request / .response`). kio knows the
header of each version; an ApiVersions response always has header 0 (KIP-511). Decoders take a frame without
its length prefix; encoders return it with the prefix.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kio.index import KioIndexError, load_request_schema
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i16
from kio.static.protocol import RequestPayload, ResponsePayload

from headrace.wire import fetch, produce
from headrace.wire.apis import (
    ApiKey,
    body_position,
    frame_request,
    read_request_head,
    read_response_head,
    response_head,
)
from headrace.wire.errors import MalformedMessageError, UnsupportedVersionError
from headrace.wire.own_fields import response_schema
from headrace.wire.primitives import ItemBound
from headrace.wire.schemas import BROKEN_MESSAGE, reader

HEADER_V0: Final = 0


class Request(NamedTuple):
    """A decoded request. `body`: `ProduceRequest`, `FetchRequest`, or kio's dataclass of this API version."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


def decode_request(frame: memoryview | bytes) -> Request:
    """Reads a request. Raises `UnsupportedVersionError` (with what the error response needs),
    `MalformedMessageError`."""
    view = memoryview(frame)
    head = read_request_head(view)
    api_key, version, correlation_id, client_id, _ = head
    body: Any
    if api_key == ApiKey.PRODUCE and produce.VERSION_MIN <= version <= produce.VERSION_MAX:
        at = body_position(view, head, version >= produce.FLEXIBLE_FROM)
        body = produce.decode_request(view, at, version)
    elif api_key == ApiKey.FETCH and fetch.VERSION_MIN <= version <= fetch.VERSION_MAX:
        at = body_position(view, head, version >= fetch.FLEXIBLE_FROM)
        body = fetch.decode_request(view, at, version)
    elif api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
        raise UnsupportedVersionError(api_key, version, correlation_id, client_id)
    else:
        try:
            schema = _request_schema(api_key, version)
        except KioIndexError:
            raise UnsupportedVersionError(api_key, version, correlation_id, client_id) from None
        body = _read(schema, view, body_position(view, head, schema.__flexible__), ItemBound())
    return Request(api_key, version, correlation_id, client_id, body)


def encode_request(body: RequestPayload, *, correlation_id: int, client_id: str | None) -> bytes:
    """Returns the framed request of one of kio's request payloads."""
    packed = _write(body)
    return frame_request(
        body.__api_key__, body.__version__, correlation_id, client_id, body.__flexible__, [packed]
    )


def encode_response(body: ResponsePayload, *, correlation_id: int) -> bytes:
    """Returns the framed response of one of kio's response payloads."""
    packed = _write(body)
    return response_head(correlation_id, _flexible_header(type(body)), len(packed)) + packed


def decode_response(frame: memoryview | bytes, *, api_key: int, version: int) -> tuple[int, Any]:
    """Returns correlation id and body of a control API's response.

    A broker answers an ApiVersions request of an unknown version in version 0 (KIP-511), so that body may be
    of an older version than requested. Raises `MalformedMessageError`, `UnsupportedVersionError`.
    """
    view = memoryview(frame)
    try:
        schema = response_schema(api_key, version)
    except KioIndexError:
        raise UnsupportedVersionError(api_key, version) from None
    correlation_id, at = read_response_head(view, _flexible_header(schema))
    if api_key == ApiKey.API_VERSIONS and version > 0 and view[at : at + 2] == _UNSUPPORTED_VERSION:
        schema = response_schema(api_key, 0)
    return correlation_id, _read(schema, view, at, ItemBound(len(view)))


_UNSUPPORTED_VERSION: Final = int(KioErrorCode.unsupported_version).to_bytes(2, "big")


def unsupported_api_versions_response(
    correlation_id: int, supported: Iterable[tuple[int, int, int]]
) -> bytes:
    """Returns the framed response to an ApiVersions request of an unknown version: version 0 with
    UNSUPPORTED_VERSION (KIP-511). `supported`: `(api_key, min_version, max_version)` of each API.
    """
    body = ApiVersionsResponse(
        error_code=KioErrorCode.unsupported_version,
        api_keys=tuple(
            ApiVersion(api_key=i16(key), min_version=i16(low), max_version=i16(high))
            for key, low, high in supported
        ),
    )
    return encode_response(body, correlation_id=correlation_id)


@lru_cache(maxsize=512)
def _request_schema(api_key: int, version: int) -> type[RequestPayload]:
    return load_request_schema(api_key, version)


def _flexible_header(schema: type[ResponsePayload]) -> bool:
    return schema.__header_schema__.__version__ > HEADER_V0


def _read(schema: type[Any], view: memoryview, at: int, items: ItemBound) -> Any:
    try:
        return reader(schema)(view, at, items)[0]
    except BROKEN_MESSAGE as error:
        raise MalformedMessageError(f"{schema.__name__} v{schema.__version__}: {error}") from None


def _write(body: RequestPayload | ResponsePayload) -> bytes:
    out = io.BytesIO()
    entity_writer(type(body))(out, body)
    return out.getvalue()
