"""Kafka clients in Python: `Producer`, `Consumer`, `ConsumerGroup`, `Admin`. They work with Apache Kafka."""

import headrace.wire  # noqa: F401  # before kio: see there
from headrace.client.admin import Admin, ConfigEntry, OffsetAndTimestamp
from headrace.client.cluster import PartitionInfo, TopicInfo
from headrace.client.consumer import Consumer
from headrace.client.delivery import DeliveryFuture, RecordMetadata
from headrace.client.groups import ConsumerGroup
from headrace.client.observer import BatchIdentity, BatchObserver
from headrace.client.producer import Producer
from headrace.client.streams import MessageStream
from headrace.client.unpacking import ConsumerRecord, FetchedBatches

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
