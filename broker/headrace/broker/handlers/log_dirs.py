"""DescribeLogDirs: each replica that this broker stores, its size and lag, free space, what is offline.

A broker has one data directory. Each log that is offline is listed as a directory of its own, with
KAFKA_STORAGE_ERROR, since it is offline alone. `problem`, a field of ours, says why and what to do.
`start_address` and `end_address` are ours, too: `offset_lag` counts from the high watermark, as Kafka's, so
what is not acknowledged yet does not show in it. Two more say what a plan of moves has to know of the room:
`file_system`, which brokers on one disk have in common, and `reserve_bytes`, which has to stay free.

Source: https://kafka.apache.org/protocol#The_Messages_DescribeLogDirs, KIP-113, KIP-827.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headrace.broker.bodies import Tree
from headrace.broker.disk_guard import SETTING as RESERVE_SETTING
from headrace.broker.state import BrokerState, StoredReplica
from headrace.log.names import SEGMENT_SUFFIX
from headrace.process.disk import file_system_of
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

UNKNOWN = -1


def handle(state: BrokerState, request: Request) -> Callable[[], Tree]:
    """Returns how to make the response: a thread asks the file system."""
    wanted = request.body.topics
    # A topic may be named several times, with other partitions each.
    named = None if wanted is None else {(topic.topic, at) for topic in wanted for at in topic.partitions}

    def is_wanted(topic: str, index: int) -> bool:
        return named is None or (topic, index) in named

    stored = [
        StoredReplica(each.name, each.log.size_bytes, each.log.start_address, each.log.end_address, 0)
        for each in state.partitions
        if each.name not in state.unopened
    ]
    online: dict[str, list[Tree]] = {}
    for replica in (*stored, *state.followed()):
        if is_wanted(*replica.name):
            online.setdefault(replica.name.topic, []).append(_partition(replica))
    offline = [(name, problem) for name, problem in state.unopened.items() if is_wanted(*name)]
    data_dir, reserve_bytes = state.data_dir, state.config[RESERVE_SETTING]

    def respond() -> Tree:
        space = _space(data_dir) | {"reserve_bytes": reserve_bytes}
        results: list[Tree] = [
            {
                "error_code": ErrorCode.NONE,
                "log_dir": str(data_dir),
                "topics": [{"name": name, "partitions": found} for name, found in online.items()],
                **space,
            }
        ]
        for name, problem in offline:
            folder = data_dir / str(name)
            results.append(
                {
                    "error_code": ErrorCode.KAFKA_STORAGE_ERROR,
                    "log_dir": str(folder),
                    "topics": [
                        {
                            "name": name.topic,
                            "partitions": [
                                _partition(StoredReplica(name, _size_bytes(folder), UNKNOWN, UNKNOWN, 0))
                            ],
                        }
                    ],
                    **space,
                    "problem": problem,
                }
            )
        return {"error_code": ErrorCode.NONE, "results": results}

    return respond


def _partition(replica: StoredReplica) -> Tree:
    return {
        "partition_index": replica.name.partition,
        "partition_size": replica.size_bytes,
        "offset_lag": replica.behind_bytes,
        "is_future_key": False,
        "start_address": replica.start_address,
        "end_address": replica.end_address,
    }


def _space(folder: Path) -> Tree:
    """Returns the size of the file system, what is free for this user, and which one it is."""
    try:
        found, name = os.statvfs(folder), file_system_of(folder)
    except OSError:
        return {"total_bytes": UNKNOWN, "usable_bytes": UNKNOWN, "file_system": ""}
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "usable_bytes": found.f_bavail * found.f_frsize,
        "file_system": name,
    }


def _size_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.glob(f"*{SEGMENT_SUFFIX}"))
    except OSError:
        return 0
