"""DescribeLogDirs: the log directories of one broker, whether one is offline, and the sizes of its logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headrace.client.calls import Call, Schema, control_call
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode


class LogDirectory(NamedTuple):
    """A directory of a broker's logs, and their sizes by (topic, partition). `error` is not NONE if it is
    offline; `problem` says why, if the broker is one of ours. Sizes are -1 where the broker does not say.
    """

    path: str
    error: ErrorCode
    problem: str
    sizes_bytes: Mapping[tuple[str, int], int]
    total_bytes: int
    usable_bytes: int


def log_dirs_call(partitions: Mapping[str, Iterable[int]] | None) -> Call:
    """Returns the request for these partitions of each topic; None: all."""

    def build(schema: Schema) -> Any:
        topics = None
        if partitions is not None:
            topics = tuple(
                schema.make("DescribableLogDirTopic", topic=topic, partitions=tuple(indexes))
                for topic, indexes in partitions.items()
            )
        return schema.make("DescribeLogDirsRequest", topics=topics)

    return control_call(ApiKey.DESCRIBE_LOG_DIRS, build)


def read_log_dirs(body: Any) -> list[LogDirectory]:
    """Reads the response."""
    return [
        LogDirectory(
            each.log_dir,
            ErrorCode(each.error_code),
            getattr(each, "problem", ""),
            {
                (topic.name, part.partition_index): part.partition_size
                for topic in each.topics
                for part in topic.partitions
            },
            getattr(each, "total_bytes", -1),
            getattr(each, "usable_bytes", -1),
        )
        for each in body.results
    ]
