"""Publishing events: `EventPublisher`."""

from headrace.events.publisher import EventPublisher, InvalidEventError, PublisherClosedError, published_ms
from headrace.events.reporter import ReportError
from headrace.events.schemas import MissingSchemaError

__all__ = [
    "EventPublisher",
    "InvalidEventError",
    "MissingSchemaError",
    "PublisherClosedError",
    "ReportError",
    "published_ms",
]
