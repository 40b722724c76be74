"""DescribeLogDirs: the log directories of one broker, whether one is offline, and the sizes of its logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.client.calls import Call, Schema, control_call
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.topic_names import TopicPartition

UNKNOWN: Final = -1


class StoredReplica(NamedTuple):
    """A replica on a broker's disk. `behind_bytes`: what it lacks of its leader's high watermark. The
    addresses are -1 if the broker is not one of ours."""

    size_bytes: int
    behind_bytes: int = 0
    start_address: int = UNKNOWN
    end_address: int = UNKNOWN


class LogDirectory(NamedTuple):
    """A directory of a broker's logs, and what is stored there by (topic, partition). `error` is not NONE if
    it is offline; `problem` says why, if the broker is one of ours. Sizes are -1 where the broker does not
    say. `file_system`: equal for directories that share their room, "" if that is not known; `reserve_bytes`:
    with less room free the broker refuses appends.
    """

    path: str
    error: ErrorCode
    problem: str
    replicas: Mapping[TopicPartition, StoredReplica]
    total_bytes: int
    usable_bytes: int
    file_system: str = ""
    reserve_bytes: int = UNKNOWN


def log_dirs_call(partitions: Mapping[str, Iterable[int]] | None, *, is_optional: bool = False) -> Call:
    """Returns the request for these partitions of each topic; None: all."""

    def build(schema: Schema) -> Any:
        topics = None
        if partitions is not None:
            topics = tuple(
                schema.make("DescribableLogDirTopic", topic=topic, partitions=tuple(indexes))
                for topic, indexes in partitions.items()
            )
        return schema.make("DescribeLogDirsRequest", topics=topics)

    return control_call(ApiKey.DESCRIBE_LOG_DIRS, build, is_optional=is_optional)


def read_log_dirs(body: Any) -> list[LogDirectory]:
    """Reads the response."""
    return [
        LogDirectory(
            each.log_dir,
            ErrorCode(each.error_code),
            getattr(each, "problem", ""),
            {
                (topic.name, part.partition_index): _replica(part)
                for topic in each.topics
                for part in topic.partitions
                if not part.is_future_key
            },
            getattr(each, "total_bytes", UNKNOWN),
            getattr(each, "usable_bytes", UNKNOWN),
            getattr(each, "file_system", ""),
            getattr(each, "reserve_bytes", UNKNOWN),
        )
        for each in body.results
    ]


def _replica(part: Any) -> StoredReplica:
    return StoredReplica(
        part.partition_size,
        part.offset_lag,
        getattr(part, "start_address", UNKNOWN),
        getattr(part, "end_address", UNKNOWN),
    )
