"""Kafka clients in Python: `Producer`, `Consumer`, `ConsumerGroup`, `Admin`. They work with Apache Kafka.

Each name is imported when it is first used: a command that lists topics needs neither producers nor groups.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import headrace.wire  # noqa: F401  # before kio: see there

if TYPE_CHECKING:
    from headrace.client.admin import Admin, ConfigEntry, OffsetAndTimestamp
    from headrace.client.cluster import PartitionInfo, TopicInfo
    from headrace.client.consumer import Consumer
    from headrace.client.delivery import DeliveryFuture, RecordMetadata
    from headrace.client.groups import ConsumerGroup
    from headrace.client.observer import BatchIdentity, BatchObserver
    from headrace.client.producer import Producer
    from headrace.client.streams import MessageStream
    from headrace.client.unpacking import ConsumerRecord, FetchedBatches

_MODULES = {
    "Admin": "admin",
    "BatchIdentity": "observer",
    "BatchObserver": "observer",
    "ConfigEntry": "admin",
    "Consumer": "consumer",
    "ConsumerGroup": "groups",
    "ConsumerRecord": "unpacking",
    "DeliveryFuture": "delivery",
    "FetchedBatches": "unpacking",
    "MessageStream": "streams",
    "OffsetAndTimestamp": "admin",
    "PartitionInfo": "cluster",
    "Producer": "producer",
    "RecordMetadata": "delivery",
    "TopicInfo": "cluster",
}

__all__ = [
    "Admin",
    "BatchIdentity",
    "BatchObserver",
    "ConfigEntry",
    "Consumer",
    "ConsumerGroup",
    "ConsumerRecord",
    "DeliveryFuture",
    "FetchedBatches",
    "MessageStream",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "Producer",
    "RecordMetadata",
    "TopicInfo",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
