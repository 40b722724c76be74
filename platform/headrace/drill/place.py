"""Where a drill plants: the addresses of one datacenter, and the publishers of the canary topic."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.audit.topic.drills import CANARY_TOPIC
from headrace.client import Admin
from headrace.client.errors import BrokerError
from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema
from headrace.wire.errors import ErrorCode

RETENTION_MS: Final = 30 * 3_600_000
"""As long as its table keeps an hour: a new table is loaded from what the log has."""
FLUSH_WAIT_MAX_S: Final = 60.0
LINGER_MS: Final = 60_000.0
"""A batch waits until it is flushed: how many events it has is chosen, not a matter of how busy a host is."""


class Place(NamedTuple):
    """A datacenter: `balancer` is what its services know, `brokers` are asked for the topic."""

    datacenter: str
    balancer: str
    brokers: str
    registry_url: str

    def ensure_canary(self) -> None:
        """Creates the canary topic if there is none. Raises `ClientError`."""
        with Admin(self.brokers) as admin:
            try:
                if CANARY_TOPIC not in admin.topics():
                    admin.create_topic(CANARY_TOPIC, 1, config={"retention.ms": str(RETENTION_MS)})
            except BrokerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise

    def publisher(self, service: str, state_dir: Path, **options: Any) -> EventPublisher:
        """Returns a publisher of the canary topic, which keeps its state in a folder of the drill."""
        chosen = {"compression": "none", "linger_ms": LINGER_MS, **options.pop("producer_options", {})}
        return EventPublisher(
            datacenter=self.datacenter,
            service=service,
            bootstrap=self.balancer,
            registry_url=self.registry_url,
            schemas={CANARY_TOPIC: read_schema(f"{CANARY_TOPIC}.avsc")},
            state_dir=state_dir,
            spool_bytes=0,
            producer_options=chosen,
            **options,
        )


def publish(publisher: EventPublisher, numbers: Iterable[int], base_ms: int) -> None:
    """Hands over the events with these numbers, of which their times follow. Raises what `publish` raises."""
    for number in numbers:
        publisher.publish(CANARY_TOPIC, {"number": number}, time_ms=base_ms + number, partition=0)
