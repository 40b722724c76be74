"""Asking a broker whether its offsets are addresses, by hand: executors of Spark import no `kio`.

ApiVersions version 3 (KIP-511, KIP-584): https://kafka.apache.org/protocol#The_Messages_ApiVersions.
"""

from __future__ import annotations

from typing import Final

from headrace.wire.apis import (
    ADDRESS_FEATURE,
    ADDRESS_VERSION,
    SOFTWARE_NAME,
    SOFTWARE_VERSION,
    ApiKey,
    frame_request,
    read_response_head,
)
from headrace.wire.errors import MalformedMessageError
from headrace.wire.primitives import (
    BROKEN,
    INT16,
    NO_TAGS,
    ItemBound,
    read_count,
    read_name,
    read_tags,
    skip_tags,
    string,
)

VERSION: Final = 3
SUPPORTED_FEATURES_TAG: Final = 0
API_BYTES: Final = 6
"""Of an API's key, lowest and highest version."""
THROTTLE_BYTES: Final = 4


def encode_request(client_id: str) -> bytes:
    """Returns the framed request, with correlation id 0."""
    body = [string(SOFTWARE_NAME, True), string(SOFTWARE_VERSION, True), NO_TAGS]
    return frame_request(ApiKey.API_VERSIONS, VERSION, 0, client_id, True, body)


def has_addresses(frame: memoryview) -> bool:
    """Whether the response names the feature; not if the broker is older than version 3, and answers with an
    error. Raises `MalformedMessageError`.
    """
    try:
        _, at = read_response_head(frame, False)
        (error_code,) = INT16.unpack_from(frame, at)
        if error_code:
            return False
        bound = ItemBound()
        number, at = read_count(frame, at + 2, True)
        bound.take(number, len(frame) - at, API_BYTES + 1)
        for _ in range(number):
            at = skip_tags(frame, at + API_BYTES)
        fields, _ = read_tags(frame, at + THROTTLE_BYTES)
        features = fields.get(SUPPORTED_FEATURES_TAG)
        return features is not None and _names_addresses(features, bound)
    except BROKEN as error:
        raise MalformedMessageError(f"a broken response to ApiVersions: {error}") from None


def _names_addresses(features: memoryview, bound: ItemBound) -> bool:
    number, at = read_count(features, 0, True)
    bound.take(number, len(features) - at, API_BYTES)
    found = False
    for _ in range(number):
        name, at = read_name(features, at, True)
        (lowest,), (highest,) = INT16.unpack_from(features, at), INT16.unpack_from(features, at + 2)
        at = skip_tags(features, at + 4)
        found = found or (name == ADDRESS_FEATURE and lowest <= ADDRESS_VERSION <= highest)
    return found
