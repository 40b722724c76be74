"""Publishing events: `EventPublisher`."""

from headrace.events.publisher import (
    EventPublisher,
    InvalidEventError,
    PublisherClosedError,
    ReportError,
    published_ms,
)
from headrace.events.schemas import MissingSchemaError

__all__ = [
    "EventPublisher",
    "InvalidEventError",
    "MissingSchemaError",
    "PublisherClosedError",
    "ReportError",
    "published_ms",
]
