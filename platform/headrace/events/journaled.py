"""What a reporter tells a journal of each change, and the journal of a publisher that keeps none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from headrace.client import BatchIdentity
from headrace.events.arrived import Arrived
from headrace.events.handovers import HandoverCounts


class Journaled(Protocol):
    """What the counts' owner tells of each change. All calls come from one thread at a time."""

    def belongs_to(self, audit_topic_id: UUID) -> None: ...
    def hand_over(self, topic: str, time_ms: int, bucket_start_ms: int, count: int) -> None: ...
    def batch_closed(self, identity: BatchIdentity) -> None: ...
    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None: ...
    def finished(self, numbers: Iterable[int]) -> None: ...
    def begin_report(self, report_number: int) -> None: ...
    def report_arrived(self, arrived: Arrived) -> None: ...
    def compact(self, counts: HandoverCounts) -> None: ...
    def rewrite(self, counts: HandoverCounts) -> None: ...
    def leave(self) -> None: ...
    def delete(self) -> None: ...


class NoJournal:
    """Keeps nothing: for publishers without a state directory."""

    def belongs_to(self, audit_topic_id: UUID) -> None:
        """Does nothing."""

    def hand_over(self, topic: str, time_ms: int, bucket_start_ms: int, count: int) -> None:
        """Does nothing."""

    def batch_closed(self, identity: BatchIdentity) -> None:
        """Does nothing."""

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        """Does nothing."""

    def finished(self, numbers: Iterable[int]) -> None:
        """Does nothing."""

    def begin_report(self, report_number: int) -> None:
        """Does nothing."""

    def report_arrived(self, arrived: Arrived) -> None:
        """Does nothing."""

    def compact(self, counts: HandoverCounts) -> None:
        """Does nothing."""

    def rewrite(self, counts: HandoverCounts) -> None:
        """Does nothing."""

    def leave(self) -> None:
        """Does nothing."""

    def delete(self) -> None:
        """Does nothing."""
