"""Which replicas are eligible to lead partitions of a topic, as their brokers tell (KIP-966)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.client.calls import Call, Schema, control_call
from headrace.client.errors import UnsupportedApiError
from headrace.wire.apis import ApiKey

PARTITIONS_AT_ONCE: Final = 2_000

Ask = Callable[[Call], Any]
"""Sends a call, and returns the body of its response. Raises `UnsupportedApiError`."""


def eligible_replicas(ask: Ask, topic: str) -> dict[int, tuple[int, ...]]:
    """Returns, by partition, the replicas that are not in sync and yet have all that was acknowledged; only
    partitions that have such. Empty if the brokers tell nothing of it, such as Apache Kafka before 4.0.
    """
    found: dict[int, tuple[int, ...]] = {}
    first: int | None = 0
    while first is not None:
        try:
            body = ask(_call(topic, first))
        except UnsupportedApiError:
            return {}
        parts = (part for each in body.topics for part in each.partitions)
        found |= {part.partition_index: tuple(part.eligible_leader_replicas or ()) for part in parts}
        cursor = body.next_cursor
        # A broker whose cursor does not go on would be asked for ever.
        first = cursor.partition_index if cursor is not None and cursor.partition_index > first else None
    return {number: replicas for number, replicas in sorted(found.items()) if replicas}


def _call(topic: str, first: int) -> Call:
    def build(schema: Schema) -> Any:
        return schema.make(
            "DescribeTopicPartitionsRequest",
            topics=(schema.make("TopicRequest", name=topic),),
            response_partition_limit=PARTITIONS_AT_ONCE,
            cursor=schema.make("Cursor", topic_name=topic, partition_index=first),
        )

    return control_call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, build)
