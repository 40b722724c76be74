"""Every API in one table; from a request's frame to its handler, from the handler's response to the slot.

Owns dispatch. Produce and Fetch fill their slots themselves; all others return a tree (or a promise of one),
from which the response of the requested version is built.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headrace.broker.bodies import Tree, build
from headrace.broker.core import ClientConnection, Slot
from headrace.broker.handlers import (
    api_versions,
    cluster,
    configs,
    fetch,
    fetch_again,
    list_offsets,
    metadata,
    topics,
)
from headrace.broker.handlers.init_producer_id import ProducerIds
from headrace.broker.produce import job, plain
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.wire import fetch as fetch_wire
from headrace.wire import produce as produce_wire
from headrace.wire.apis import ApiKey
from headrace.wire.errors import UnsupportedVersionError
from headrace.wire.messages import Request, decode_request, encode_response, unsupported_api_versions_response
from headrace.wire.primitives import INT32

logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">hhi")

METADATA_CACHE_ENTRIES_MAX: Final = 256

Handler = Callable[[BrokerState, Request], "Tree | Promise[Any]"]


class Api(NamedTuple):
    """A control API: the versions spoken and the handler."""

    low: int
    high: int
    handle: Handler


class BrokerService:
    """Serves the requests of all connections. `pass_on` takes Produce partitions that other brokers lead;
    without it they are refused.
    """

    def __init__(
        self, state: BrokerState, producer_ids: ProducerIds, *, pass_on: job.PassOn | None = None
    ) -> None:
        self._state = state
        self._pass_on = pass_on
        self._apis: dict[int, Api] = {
            ApiKey.LIST_OFFSETS: Api(1, 10, list_offsets.handle),
            ApiKey.METADATA: Api(0, 13, metadata.handle),
            ApiKey.FIND_COORDINATOR: Api(0, 6, cluster.find_coordinator),
            ApiKey.API_VERSIONS: Api(0, 4, lambda _, request: api_versions.respond(request, self.spoken())),
            ApiKey.CREATE_TOPICS: Api(2, 7, topics.create),
            ApiKey.DELETE_TOPICS: Api(1, 6, topics.delete),
            ApiKey.INIT_PRODUCER_ID: Api(0, 5, lambda _state, request: producer_ids.handle(request)),
            ApiKey.DESCRIBE_CONFIGS: Api(1, 4, configs.describe),
            ApiKey.ALTER_CONFIGS: Api(0, 2, configs.alter),
            ApiKey.CREATE_PARTITIONS: Api(0, 3, topics.create_partitions),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(0, 1, configs.alter_incrementally),
            ApiKey.DESCRIBE_CLUSTER: Api(0, 2, cluster.describe),
        }
        self._metadata: dict[bytes, bytearray] = {}
        self._metadata_view = -1

    def add(self, key: int, api: Api) -> None:
        """Serves one more API."""
        self._apis[key] = api

    def spoken(self) -> list[tuple[int, int, int]]:
        """Returns `(key, lowest, highest version)` of every API, as ApiVersions shows them."""
        hot = [
            (int(ApiKey.PRODUCE), produce_wire.ADVERTISED_MIN, produce_wire.VERSION_MAX),
            (int(ApiKey.FETCH), fetch_wire.VERSION_MIN, fetch_wire.VERSION_MAX),
        ]
        return sorted(hot + [(int(key), api.low, api.high) for key, api in self._apis.items()])

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        """Serves one request. Raises `WireError` for what must end the connection."""
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        if api_key == ApiKey.PRODUCE:
            state = self._state
            if not plain.serve(state, connection, frame, version, correlation_id, may_keep=may_keep):
                request = decode_request(frame)
                job.handle(state, connection, request, may_keep=may_keep, pass_on=self._pass_on)
                plain.learn(state, connection, frame, request)
        elif api_key == ApiKey.FETCH:
            self._fetch(connection, frame, version, correlation_id)
        else:
            self._control(connection, frame, api_key, version, correlation_id)

    def _fetch(
        self, connection: ClientConnection, frame: memoryview, version: int, correlation_id: int
    ) -> None:
        state = self._state
        if not fetch_again.serve(state, connection, frame, version, correlation_id):
            request = decode_request(frame)
            fetch.handle(state, connection, request)
            fetch_again.learn(state, connection, frame, request)

    def _control(
        self, connection: ClientConnection, frame: memoryview, api_key: int, version: int, correlation_id: int
    ) -> None:
        api = self._apis.get(api_key)
        if api is None or not api.low <= version <= api.high:
            if api_key == ApiKey.API_VERSIONS:
                response = unsupported_api_versions_response(correlation_id, self.spoken())
                connection.open_slot().fill((response,))
                return
            raise UnsupportedVersionError(api_key, version, correlation_id)
        cached = self._cached_metadata(frame) if api_key == ApiKey.METADATA else None
        slot = connection.open_slot()
        if cached is not None:
            INT32.pack_into(cached, 4, correlation_id)
            slot.fill((bytes(cached),))
            return
        request = decode_request(frame)
        self._state.peer = connection.peer
        found = api.handle(self._state, request)
        if isinstance(found, Promise):
            found.then(lambda tree: self._respond(slot, request, tree, None))
        else:
            self._respond(slot, request, found, bytes(frame) if api_key == ApiKey.METADATA else None)

    def _respond(self, slot: Slot, request: Request, tree: Tree | Exception, cache_for: bytes | None) -> None:
        if isinstance(tree, Exception):
            logger.error("API %d failed", request.api_key, exc_info=tree)
            slot.connection.abort(f"API {request.api_key} failed")
            return
        response = encode_response(
            build(request.api_key, request.version, tree), correlation_id=request.correlation_id
        )
        if cache_for is not None and len(self._metadata) < METADATA_CACHE_ENTRIES_MAX:
            self._metadata[_without_correlation(cache_for)] = bytearray(response)
        slot.fill((response,))

    def _cached_metadata(self, frame: memoryview) -> bytearray | None:
        """Returns the response to the same request about the same view, if there was one."""
        if self._metadata_view != self._state.view.version:
            self._metadata_view = self._state.view.version
            self._metadata.clear()
        return self._metadata.get(_without_correlation(frame))


def _without_correlation(frame: memoryview | bytes) -> bytes:
    return bytes(frame[:4]) + bytes(frame[8:])
