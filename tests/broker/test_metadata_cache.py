"""The cache of Metadata responses: bounded in bytes, whatever clients ask for, and empty after a change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from headrace.broker.handlers.init_producer_id import ProducerIds
from headrace.broker.service import (
    METADATA_CACHE_ENTRIES_MAX,
    METADATA_CACHE_MAX_BYTES,
    METADATA_CACHED_REQUEST_MAX_BYTES,
    BrokerService,
)
from headrace.broker.state import BrokerState


def service() -> tuple[BrokerService, SimpleNamespace]:
    loop = SimpleNamespace(post=None, at_wakeup_end=lambda _: None)
    state = SimpleNamespace(view=SimpleNamespace(version=1), loop=loop, codec=None)
    return BrokerService(cast("BrokerState", state), cast("ProducerIds", None)), state


def kept_bytes(cache: BrokerService) -> int:
    return sum(len(request) + len(response) for request, response in cache._metadata.items())


def request(number: int) -> bytes:
    return b"\0\3\0\7" + number.to_bytes(4, "big")


def test_large_responses_fill_the_cache_to_its_bound_alone() -> None:
    cache, state = service()
    for number in range(64):
        cache._cache_metadata(request(number), bytes(1 << 20))
    assert 0 < kept_bytes(cache) <= METADATA_CACHE_MAX_BYTES
    assert cache._metadata_bytes == kept_bytes(cache)
    state.view.version = 2
    assert cache._cached_metadata(memoryview(b"\0\3\0\7....\0\0\0\0")) is None
    assert cache._metadata_bytes == kept_bytes(cache) == 0
    cache._cache_metadata(request(1), bytes(1 << 20))
    assert kept_bytes(cache) > 1 << 20


def test_large_requests_are_not_cached_and_entries_are_bounded() -> None:
    cache, _ = service()
    cache._cache_metadata(bytes(METADATA_CACHED_REQUEST_MAX_BYTES + 1), b"response")
    assert not cache._metadata
    for number in range(2 * METADATA_CACHE_ENTRIES_MAX):
        cache._cache_metadata(request(number), b"response")
    assert len(cache._metadata) == METADATA_CACHE_ENTRIES_MAX
