"""ListOffsets for one topic: where its partitions' logs begin and end, and where a time is in them.

Asks each leader, and again those whose answer was a transient error. `client.admin` offers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.client.admin_requests import AdminRequests, existing_topic
from headrace.client.calls import list_offsets_call
from headrace.client.errors import BrokerError, ClientError, NetworkError, UnknownTopicError
from headrace.client.network import Network
from headrace.wire.errors import ErrorCode


class OffsetAndTimestamp(NamedTuple):
    """A result of `list_offsets`. `offset` is -1 if no record has the timestamp or a later one.

    `timestamp_ms` is -1 at EARLIEST and LATEST.
    """

    offset: int
    timestamp_ms: int


def list_offsets(
    requests: AdminRequests, topic: str, timestamp_ms: int, partitions: Iterable[int] | None
) -> dict[int, OffsetAndTimestamp]:
    """Returns what the leaders answer, by partition; `partitions` None: all.

    `timestamp_ms`: EARLIEST, LATEST, or a time. Raises `UnknownTopicError`, `BrokerError`, `NetworkError`.
    """
    wanted = set(partitions) if partitions is not None else None
    found: dict[int, OffsetAndTimestamp] = {}

    def attempt(deadline_s: float) -> ClientError | None:
        info = existing_topic(topic, requests.refresh([topic], deadline_s))
        missing = (set(info.partitions) if wanted is None else wanted) - found.keys()
        by_leader, error = _by_leader(requests.network, topic, missing)
        for leader, some in by_leader.items():
            call = list_offsets_call({topic: dict.fromkeys(some, timestamp_ms)})
            try:
                body = requests.network.send_and_wait(call, node_id=leader, deadline_s=deadline_s)
            except NetworkError as failure:
                error = failure
                continue
            for part in body.topics[0].partitions:
                if part.error_code == ErrorCode.NONE:
                    found[part.partition_index] = OffsetAndTimestamp(part.offset, part.timestamp)
                    continue
                refusal = BrokerError(part.error_code, f"{topic}-{part.partition_index}")
                if not refusal.retriable:
                    raise refusal
                error = refusal
        return error

    requests.retry(attempt)
    return dict(sorted(found.items()))


def _by_leader(
    network: Network, topic: str, partitions: Iterable[int]
) -> tuple[dict[int, list[int]], ClientError | None]:
    """Returns the partitions that each leader has, and the error of one that has none."""
    by_leader: dict[int, list[int]] = {}
    error: ClientError | None = None
    for partition in sorted(partitions):
        if partition not in network.cluster.topics[topic].partitions:
            raise UnknownTopicError(f"{topic} has no partition {partition}")
        leader = network.cluster.leader(topic, partition)
        if leader is None:
            error = NetworkError(f"{topic}-{partition} has no leader")
        else:
            by_leader.setdefault(leader, []).append(partition)
    return by_leader, error
