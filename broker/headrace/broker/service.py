"""Every API in one table; from a request's frame to its handler, from the handler's response to the slot.

Owns dispatch. Produce and Fetch fill their slots themselves; all others return a tree, or a promise of one,
from which the response of the requested version is built. For a large tree they return a function that makes
it from immutable values: it runs on a thread. `control` decides when a control request is handled.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headrace.broker.bodies import Tree, build
from headrace.broker.control import (
    WRITE_HERE_MAX_ITEMS,
    ControlTurns,
    Frame,
    items_of,
)
from headrace.broker.core import ClientConnection, Slot
from headrace.broker.handlers import (
    acls,
    api_versions,
    cluster,
    configs,
    delete_records,
    describe_configs,
    fetch_again,
    follower_session,
    leader_epochs,
    list_offsets,
    log_dirs,
    metadata,
    new_group_protocol,
    sasl_handshake,
    topic_partitions,
    topics,
)
from headrace.broker.handlers.init_producer_id import ProducerIds
from headrace.broker.produce import handler, plain
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.wire import fetch as fetch_wire
from headrace.wire import produce as produce_wire
from headrace.wire.apis import ApiKey
from headrace.wire.errors import FrameTooLargeError, UnsupportedVersionError
from headrace.wire.messages import Request, decode_request, encode_response, unsupported_api_versions_response
from headrace.wire.primitives import INT32

logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">hhi")

# Only Produce may be as large as socket.request.max.bytes. The largest other requests that clients send are
# assignments of large groups (SyncGroup).
OTHER_REQUEST_MAX_BYTES: Final = 4 * 1024 * 1024
METADATA_CACHE_ENTRIES_MAX: Final = 256
METADATA_CACHE_MAX_BYTES: Final = 16 * 1024 * 1024  # requests and responses
METADATA_CACHED_REQUEST_MAX_BYTES: Final = 64 * 1024  # clients that repeat a request name a few topics
Made = Tree | Callable[[], Tree] | Exception
Handler = Callable[[BrokerState, Request], "Tree | Callable[[], Tree] | Promise[Any]"]


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
        self, state: BrokerState, producer_ids: ProducerIds, *, pass_on: handler.PassOn | None = None
    ) -> None:
        self._state = state
        self._pass_on = pass_on
        self._apis: dict[int, Api] = {
            ApiKey.LIST_OFFSETS: Api(1, 10, list_offsets.handle),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(2, 4, leader_epochs.handle),
            ApiKey.METADATA: Api(0, 13, metadata.handle),
            ApiKey.FIND_COORDINATOR: Api(0, 6, cluster.find_coordinator),
            ApiKey.SASL_HANDSHAKE: Api(0, 1, sasl_handshake.refuse),
            ApiKey.API_VERSIONS: Api(0, 4, lambda _, request: api_versions.respond(request, self.spoken())),
            ApiKey.CREATE_TOPICS: Api(2, 7, topics.create),
            ApiKey.DELETE_TOPICS: Api(1, 6, topics.delete),
            ApiKey.DELETE_RECORDS: Api(0, 2, delete_records.handle),
            ApiKey.INIT_PRODUCER_ID: Api(0, 5, lambda _state, request: producer_ids.handle(request)),
            ApiKey.DESCRIBE_ACLS: Api(1, 3, acls.refuse_describe),
            ApiKey.CREATE_ACLS: Api(1, 3, acls.refuse_create),
            ApiKey.DELETE_ACLS: Api(1, 3, acls.refuse_delete),
            ApiKey.DESCRIBE_CONFIGS: Api(1, 4, describe_configs.handle),
            ApiKey.ALTER_CONFIGS: Api(0, 2, configs.alter),
            ApiKey.DESCRIBE_LOG_DIRS: Api(1, 4, log_dirs.handle),
            ApiKey.CREATE_PARTITIONS: Api(0, 3, topics.create_partitions),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(0, 1, configs.alter_incrementally),
            ApiKey.DESCRIBE_CLUSTER: Api(0, 2, cluster.describe),
            ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(0, 1, new_group_protocol.refuse),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(0, 0, topic_partitions.handle),
        }
        self._metadata: dict[bytes, bytearray] = {}
        self._metadata_bytes = 0
        self._metadata_view = -1
        self._turns = ControlTurns(state.loop, state.codec, self._serve)

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

    def check_size(self, api_key: int, size_bytes: int) -> None:
        """Raises `FrameTooLargeError` for any large request except Produce."""
        if api_key != ApiKey.PRODUCE and size_bytes > OTHER_REQUEST_MAX_BYTES:
            raise FrameTooLargeError(
                f"a request of {size_bytes} bytes for API {api_key}, refused before it was received: only "
                f"Produce (API 0) may have more than {OTHER_REQUEST_MAX_BYTES} bytes"
            )

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        """Serves one request. Raises `WireError` for what must end the connection."""
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        if api_key == ApiKey.PRODUCE:
            state = self._state
            if not plain.serve(state, connection, frame, version, correlation_id, may_keep=may_keep):
                connection.turn_left -= 1
                request = decode_request(frame)
                handler.handle(state, connection, request, may_keep=may_keep, pass_on=self._pass_on)
                # The clients of a front may have no way to other brokers.
                plain.learn(state, connection, frame, request, names_leader=self._pass_on is None)
        elif api_key == ApiKey.FETCH:
            self._fetch(connection, frame, version, correlation_id)
        else:
            connection.turn_left -= 1
            self._control(connection, frame, api_key, version, correlation_id)

    def _fetch(
        self, connection: ClientConnection, frame: memoryview, version: int, correlation_id: int
    ) -> None:
        state = self._state
        if not fetch_again.serve(state, connection, frame, version, correlation_id):
            connection.turn_left -= 1
            request = decode_request(frame)
            follower_session.handle(state, connection, request)
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
        self._turns.take(connection.open_slot(), frame)

    def _serve(self, slot: Slot, frame: Frame, request: Request | None) -> None:
        """Handles a control request, and responds now or later."""
        api_key, _, correlation_id = _HEAD.unpack_from(frame)
        is_cacheable = api_key == ApiKey.METADATA and len(frame) <= METADATA_CACHED_REQUEST_MAX_BYTES
        cached = self._cached_metadata(frame) if is_cacheable else None
        if cached is not None:
            INT32.pack_into(cached, 4, correlation_id)
            slot.fill((bytes(cached),))
            return
        if request is None:
            request = decode_request(frame)
        state = self._state
        state.peer = state.control.client = slot.connection.peer
        found = self._apis[api_key].handle(state, request)
        if isinstance(found, Promise):
            self._respond_later(slot, request, len(frame), found)
        else:
            self._respond(slot, request, found, bytes(frame) if is_cacheable else None)

    def _respond_later(self, slot: Slot, request: Request, size_bytes: int, found: Promise[Any]) -> None:
        """Responds when the promise has its value. Until it is taken the request counts among those that wait
        to be served, also after its connection was closed.
        """
        connection, keep = slot.connection, self._state.keep
        # A member may wait for hours, and its request have megabytes: only the head is needed.
        head = request._replace(body=None)

        def taken(_: object) -> None:
            nonlocal size_bytes
            connection.kept_bytes -= size_bytes
            keep(-size_bytes)
            size_bytes = 0
            connection.on_output(connection)  # it may be read again

        def respond(made: Made) -> None:
            taken(made)
            self._respond(slot, head, made, None)

        connection.kept_bytes += size_bytes
        keep(size_bytes)
        found.taken.then(taken)
        found.then(respond)

    def _respond(self, slot: Slot, request: Request, made: Made, cache_for: bytes | None) -> None:
        """Fills the slot, now or later. A failure ends this connection alone: the caller may respond to
        others, too.
        """
        connection = slot.connection
        if connection.closed:
            return
        if isinstance(made, Exception):
            self._fail(slot, request, made)
            return
        if not callable(made) and items_of(made) < WRITE_HERE_MAX_ITEMS:
            try:
                self._fill(slot, _encode(request, made), cache_for)
            except Exception as error:
                self._fail(slot, request, error)
            return
        view = self._state.view.version

        def encoded(response: bytes | None, error: Exception | None) -> None:
            if response is None:
                self._respond(slot, request, error or RuntimeError("no response"), None)
            else:
                self._fill(slot, response, cache_for if view == self._state.view.version else None)

        self._turns.apart(connection, lambda: _encode(request, made() if callable(made) else made), encoded)

    @staticmethod
    def _fail(slot: Slot, request: Request, error: Exception) -> None:
        logger.error("%s: API %d failed", slot.connection.peer, request.api_key, exc_info=error)
        slot.connection.abort(f"API {request.api_key} failed")

    def _fill(self, slot: Slot, response: bytes, cache_for: bytes | None) -> None:
        if cache_for is not None:
            self._cache_metadata(_without_correlation(cache_for), response)
        slot.fill((response,))

    def _cache_metadata(self, request: bytes, response: bytes) -> None:
        size_bytes = len(request) + len(response)
        if (
            len(request) <= METADATA_CACHED_REQUEST_MAX_BYTES
            and len(self._metadata) < METADATA_CACHE_ENTRIES_MAX
            and self._metadata_bytes + size_bytes <= METADATA_CACHE_MAX_BYTES
        ):
            self._metadata[request] = bytearray(response)
            self._metadata_bytes += size_bytes

    def _cached_metadata(self, frame: Frame) -> bytearray | None:
        """Returns the response to the same request about the same view, if there was one."""
        if self._metadata_view != self._state.view.version:
            self._metadata_view = self._state.view.version
            self._metadata.clear()
            self._metadata_bytes = 0
        return self._metadata.get(_without_correlation(frame))


def _encode(request: Request, tree: Tree) -> bytes:
    return encode_response(
        build(request.api_key, request.version, tree), correlation_id=request.correlation_id
    )


def _without_correlation(frame: Frame) -> bytes:
    return bytes(frame[:4]) + bytes(frame[8:])
