"""DescribeLogDirs: the size of each log, free space, and which logs are offline.

A broker has one data directory. Each log that is offline is listed as a directory of its own, with
KAFKA_STORAGE_ERROR, since it is offline alone. `problem`, a field of ours, says why and what to do.

Source: https://kafka.apache.org/protocol#The_Messages_DescribeLogDirs, KIP-113.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headrace.broker.bodies import Tree
from headrace.broker.state import BrokerState
from headrace.log.names import SEGMENT_SUFFIX
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

UNKNOWN_BYTES = -1


def handle(state: BrokerState, request: Request) -> Callable[[], Tree]:
    """Returns how to make the response: a thread asks the file system."""
    wanted = request.body.topics
    named = None if wanted is None else {topic.topic: set(topic.partitions) for topic in wanted}

    def is_wanted(topic: str, index: int) -> bool:
        return named is None or index in named.get(topic, ())

    sizes: dict[str, list[tuple[int, int]]] = {}
    for partition in state.partitions:
        is_offline = partition.name in state.unopened
        if is_wanted(partition.topic, partition.index) and not is_offline:
            sizes.setdefault(partition.topic, []).append((partition.index, partition.log.size_bytes))
    offline = [(name, problem) for name, problem in state.unopened.items() if is_wanted(*name)]
    data_dir = state.data_dir

    def respond() -> Tree:
        total_bytes, usable_bytes = _space(data_dir)
        results: list[Tree] = [
            {
                "error_code": ErrorCode.NONE,
                "log_dir": str(data_dir),
                "topics": [_topic(name, entries) for name, entries in sizes.items()],
                "total_bytes": total_bytes,
                "usable_bytes": usable_bytes,
            }
        ]
        for name, problem in offline:
            folder = data_dir / str(name)
            results.append(
                {
                    "error_code": ErrorCode.KAFKA_STORAGE_ERROR,
                    "log_dir": str(folder),
                    "topics": [_topic(name.topic, [(name.partition, _size_bytes(folder))])],
                    "total_bytes": total_bytes,
                    "usable_bytes": usable_bytes,
                    "problem": problem,
                }
            )
        return {"error_code": ErrorCode.NONE, "results": results}

    return respond


def _topic(name: str, sizes: list[tuple[int, int]]) -> Tree:
    return {
        "name": name,
        "partitions": [
            {"partition_index": index, "partition_size": size, "offset_lag": 0, "is_future_key": False}
            for index, size in sizes
        ],
    }


def _space(folder: Path) -> tuple[int, int]:
    """Returns the size of the file system and what is free for this user."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _size_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.glob(f"*{SEGMENT_SUFFIX}"))
    except OSError:
        return 0
