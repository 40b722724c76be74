"""One request as a value: how to encode it in the version the broker speaks, how to decode the response.

Owns the versions this client speaks, and building kio payloads across versions: fields that a version lacks
are omitted.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from kio.index import load_payload_module
from kio.static.constants import EntityType

from headrace.wire import fetch, messages, produce
from headrace.wire.apis import ApiKey
from headrace.wire.primitives import REQUEST_ITEMS_MAX, Buffer

EARLIEST: Final = -2
LATEST: Final = -1
"""What ListOffsets accepts in place of a timestamp."""

SUPPORTED_VERSIONS: Final[dict[int, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.METADATA: (4, 12),
    # These stop before the versions that batch several groups in a request.
    ApiKey.OFFSET_FETCH: (2, 7),
    ApiKey.FIND_COORDINATOR: (1, 3),
    ApiKey.LIST_GROUPS: (0, 4),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.DESCRIBE_CLUSTER: (0, 1),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}
"""The lowest and highest version of each API that this client writes and reads."""


ITEMS_AT_ONCE_MAX: Final = REQUEST_ITEMS_MAX // 2
"""Topics and partitions of one request. A broker ends the connection of a client that names too many."""

ANY_VERSION: Final = (0, 32_767)
PRODUCE_BY_NAME: Final = (0, produce.TOPIC_IDS_FROM - 1)
PRODUCE_BY_ID: Final = (produce.TOPIC_IDS_FROM, produce.VERSION_MAX)
FETCH_BY_NAME: Final = (0, fetch.TOPIC_IDS_FROM - 1)
FETCH_BY_ID: Final = (fetch.TOPIC_IDS_FROM, fetch.VERSION_MAX)


Place = Callable[[memoryview, int], int]


@dataclass(frozen=True, slots=True)
class Call:
    """`encode(version, correlation_id, client_id)` returns the framed request, whole or in pieces, and
    `decode(frame, version)` the response's body. `versions`: the lowest and the highest that say what this
    call means, of those that the client speaks. `is_optional`: `client.asking` takes the lack of this API for
    an answer, None. `wait_s`: for how long the broker is asked to wait before it answers.
    `place(beginning, version)` says where a large response begins in memory: see `FrameReader`.
    `chunk_bytes`: how much more of it is worth waking up for.
    """

    api_key: int
    encode: Callable[[int, int, str], bytes | list[Buffer]]
    decode: Callable[[memoryview, int], Any]
    expects_response: bool = True
    versions: tuple[int, int] = ANY_VERSION
    is_optional: bool = False
    wait_s: float = 0.0
    place: Place | None = None
    chunk_bytes: int = 1


def produce_call(request: produce.ProduceRequest, *, by_id: bool = False) -> Call:
    """Sends batches. `by_id`: as in `fetch_call`."""

    def encode(version: int, correlation_id: int, client_id: str) -> list[Buffer]:
        return produce.encode_request_pieces(
            request, version=version, correlation_id=correlation_id, client_id=client_id
        )

    def decode(frame: memoryview, version: int) -> produce.ProduceResponse:
        return produce.decode_response(frame, version=version)[1]

    versions = PRODUCE_BY_ID if by_id else PRODUCE_BY_NAME
    return Call(ApiKey.PRODUCE, encode, decode, expects_response=request.acks != 0, versions=versions)


def fetch_call(
    request: fetch.FetchRequest,
    *,
    by_id: bool = False,
    place: Place | None = None,
    chunk_bytes: int = 1,
) -> Call:
    """Requests batches. `by_id`: the request's topics have ids, not names (KIP-516): a topic that is made
    again under its name is another one then.
    """

    def encode(version: int, correlation_id: int, client_id: str) -> bytes:
        return fetch.encode_request(
            request, version=version, correlation_id=correlation_id, client_id=client_id
        )

    def decode(frame: memoryview, version: int) -> fetch.FetchResponse:
        return fetch.decode_response(frame, version=version)[1]

    versions = FETCH_BY_ID if by_id else FETCH_BY_NAME
    return Call(
        ApiKey.FETCH,
        encode,
        decode,
        versions=versions,
        wait_s=request.max_wait_ms / 1000,
        place=place,
        chunk_bytes=chunk_bytes,
    )


def control_call(api_key: ApiKey, build: Callable[[Schema], Any], *, is_optional: bool = False) -> Call:
    """Returns a call of any other API. `build` returns the payload in the version of the `Schema` it gets."""

    def encode(version: int, correlation_id: int, client_id: str) -> bytes:
        body = build(Schema(api_key, version))
        return messages.encode_request(body, correlation_id=correlation_id, client_id=client_id)

    def decode(frame: memoryview, version: int) -> Any:
        return messages.decode_response(frame, api_key=api_key, version=version)[1]

    return Call(api_key, encode, decode, is_optional=is_optional)


@dataclass(frozen=True, slots=True)
class Schema:
    """The request structures of one API version: `schema.make("MetadataRequestTopic", name=…)`."""

    api_key: int
    version: int

    def make(self, structure: str, **values: Any) -> Any:
        """Builds kio's `structure` from those of `values` that this version has."""
        kind, names = _structure(self.api_key, self.version, structure)
        return kind(**{name: value for name, value in values.items() if name in names})


@cache
def _structure(api_key: int, version: int, structure: str) -> tuple[Any, frozenset[str]]:
    kind = getattr(load_payload_module(api_key, version, EntityType.request), structure)
    return kind, frozenset(field.name for field in fields(kind))


def milliseconds(value: float) -> datetime.timedelta:
    """Returns a duration in ms as the type that kio expects."""
    return datetime.timedelta(milliseconds=value)


def api_versions_call(software_version: str) -> Call:
    def build(schema: Schema) -> Any:
        return schema.make(
            "ApiVersionsRequest", client_software_name="headrace", client_software_version=software_version
        )

    return control_call(ApiKey.API_VERSIONS, build)


def metadata_call(topics: list[str] | None, *, create: bool) -> Call:
    """Requests metadata of `topics` (None: all). `create`: brokers that allow it create missing ones."""

    def build(schema: Schema) -> Any:
        wanted = None
        if topics is not None:
            wanted = tuple(schema.make("MetadataRequestTopic", name=name, topic_id=None) for name in topics)
        return schema.make(
            "MetadataRequest",
            topics=wanted,
            allow_auto_topic_creation=create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    return control_call(ApiKey.METADATA, build)


def init_producer_id_call() -> Call:
    def build(schema: Schema) -> Any:
        return schema.make(
            "InitProducerIdRequest",
            transactional_id=None,
            transaction_timeout=milliseconds(60_000),
            producer_id=-1,
            producer_epoch=-1,
        )

    return control_call(ApiKey.INIT_PRODUCER_ID, build)


def list_offsets_call(wanted: dict[str, dict[int, int]]) -> Call:
    """Requests offsets. `wanted`: topic → partition → timestamp in ms since the epoch, EARLIEST or LATEST."""

    def build(schema: Schema) -> Any:
        topics = tuple(
            schema.make(
                "ListOffsetsTopic",
                name=topic,
                partitions=tuple(
                    schema.make("ListOffsetsPartition", partition_index=partition, timestamp=timestamp_ms)
                    for partition, timestamp_ms in partitions.items()
                ),
            )
            for topic, partitions in wanted.items()
        )
        return schema.make("ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics)

    return control_call(ApiKey.LIST_OFFSETS, build)


def in_parts(wanted: dict[str, dict[int, int]]) -> Iterator[dict[str, dict[int, int]]]:
    """Splits what is wanted of partitions, by topic, into what one request may name."""
    part: dict[str, dict[int, int]] = {}
    left = ITEMS_AT_ONCE_MAX
    for topic, partitions in wanted.items():
        for partition, value in partitions.items():
            items = 1 if topic in part else 2
            if left < items:
                yield part
                part, left, items = {}, ITEMS_AT_ONCE_MAX, 2
            left -= items
            part.setdefault(topic, {})[partition] = value
    if part:
        yield part


def leader_epochs_call(wanted: dict[str, dict[int, int]]) -> Call:
    """Requests where leader epochs end (KIP-320). `wanted`: topic → partition → epoch."""

    def build(schema: Schema) -> Any:
        topics = tuple(
            schema.make(
                "OffsetForLeaderTopic",
                topic=topic,
                partitions=tuple(
                    schema.make("OffsetForLeaderPartition", partition=partition, leader_epoch=epoch)
                    for partition, epoch in partitions.items()
                ),
            )
            for topic, partitions in wanted.items()
        )
        return schema.make("OffsetForLeaderEpochRequest", replica_id=-1, topics=topics)

    return control_call(ApiKey.OFFSET_FOR_LEADER_EPOCH, build)
