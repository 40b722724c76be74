"""What the paper reports, for the plots: Kreps, Narkhede, Rao, "Kafka: a Distributed Messaging System for
Log Processing", NetDB 2011, section 5.

It gives averages for Kafka and bounds for the others: one producer, one consumer, 10 million messages
of 200 bytes, two machines with 8 cores each, a link of 1 Gb/s. Its brokers wrote to disk
asynchronously, and its Kafka producer did not wait for acknowledgements.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class PaperFigure(NamedTuple):
    """A line in the paper's plot, in messages per second."""

    label: str
    messages_per_s: float


FIGURE_4: Final = (
    PaperFigure("paper: Kafka, batch 50", 400_000),
    PaperFigure("paper: Kafka, batch 1", 50_000),
    PaperFigure("paper: RabbitMQ, at most", 25_000),
)
"""Producers. ActiveMQ was "orders of magnitude" slower: the text gives no number."""

FIGURE_5: Final = (
    PaperFigure("paper: Kafka", 22_000),
    PaperFigure("paper: ActiveMQ and RabbitMQ, less than", 5_500),
)
"""Consumers."""
