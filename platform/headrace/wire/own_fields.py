"""Responses of Kafka's protocol with a field more: tagged, so other clients skip it (KIP-482).

Tags from 10,000 on are ours: Kafka counts from 0. No postponed annotations here: kio and `wire.schemas` read
the types of the fields.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from kio.index import load_response_schema
from kio.schema.describe_cluster.v1.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.describe_log_dirs.v4.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.static.primitive import i32, i64

from headrace.wire.apis import ApiKey

PROBLEM_TAG: Final = 10_000
FILE_SYSTEM_TAG: Final = 10_001
RESERVE_BYTES_TAG: Final = 10_002
PLACEMENT_RACK_TAG: Final = 10_000
BROKER_EPOCH_TAG: Final = 10_001
DRAINED_TAG: Final = 10_000
START_ADDRESS_TAG: Final = 10_000
END_ADDRESS_TAG: Final = 10_001
UNKNOWN: Final = i64(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirPartition(DescribeLogDirsPartition):
    """Where this replica's log begins and ends; the end is also that of what is not acknowledged yet."""

    start_address: i64 = field(metadata={"kafka_type": "int64", "tag": START_ADDRESS_TAG}, default=UNKNOWN)
    end_address: i64 = field(metadata={"kafka_type": "int64", "tag": END_ADDRESS_TAG}, default=UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirTopic(DescribeLogDirsTopic):
    partitions: tuple[LogDirPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir(DescribeLogDirsResult):
    """`problem`: what is wrong with the log directory, and the ways out; Kafka has only an error code.
    `file_system`: equal for directories whose room is the same. `reserve_bytes`: with less room free the
    broker refuses appends."""

    topics: tuple[LogDirTopic, ...]
    problem: str = field(metadata={"kafka_type": "string", "tag": PROBLEM_TAG}, default="")
    file_system: str = field(metadata={"kafka_type": "string", "tag": FILE_SYSTEM_TAG}, default="")
    reserve_bytes: i64 = field(metadata={"kafka_type": "int64", "tag": RESERVE_BYTES_TAG}, default=UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirs(DescribeLogDirsResponse):
    results: tuple[LogDir, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBroker(DescribeClusterBroker):
    """`placement_rack`: by which replicas are spread, also where clients see none. `broker_epoch`: the number
    of its registration (KIP-380)."""

    placement_rack: str = field(metadata={"kafka_type": "string", "tag": PLACEMENT_RACK_TAG}, default="")
    broker_epoch: i64 = field(metadata={"kafka_type": "int64", "tag": BROKER_EPOCH_TAG}, default=UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBrokers(DescribeClusterResponse):
    """`drained_brokers`: those that get no new replicas, also dead ones."""

    brokers: tuple[ClusterBroker, ...]
    drained_brokers: tuple[i32, ...] = field(metadata={"kafka_type": "int32", "tag": DRAINED_TAG}, default=())


_OWN: Final[dict[tuple[int, int], type[Any]]] = {
    (ApiKey.DESCRIBE_LOG_DIRS, 4): LogDirs,
    (ApiKey.DESCRIBE_CLUSTER, 1): ClusterBrokers,
}


@lru_cache(maxsize=512)
def response_schema(api_key: int, version: int) -> type[Any]:
    """Returns the dataclass of a response. Raises kio's `KioIndexError` for an unknown version."""
    return _OWN.get((api_key, version)) or load_response_schema(api_key, version)
