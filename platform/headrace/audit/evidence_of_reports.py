"""What is known of reports that publishers sent, as evidence: values only."""

from __future__ import annotations

from typing import NamedTuple


class LostLog(NamedTuple):
    """A log of an audit topic that was deleted, with what nobody had read of it: said from `from_ms` to
    `until_ms`, by the auditor's clock. `topic_id`: of the deleted topic.
    """

    topic: str
    partition: int
    from_ms: int
    until_ms: int
    topic_id: str = ""


class MissingReport(NamedTuple):
    """A report that arrived by its publisher's word, and that the audit's topic does not hold.

    It counted events that the publisher accepted from `from_ms` to `until_ms`, by its own clock: the times
    of the reports before and after it; or until `made_ms`, where it is known when it was made.
    """

    publisher: str
    service: str
    server: str
    report_number: int
    from_ms: int
    until_ms: int
    made_ms: int | None = None
