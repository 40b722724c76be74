"""The warehouse's files of an hour, as the newest verification of the table found them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.audit import phrases
from headrace.audit.evidence import Evidence
from headrace.audit.findings import LOAD_HOP, Finding, Status


def judge_files(evidence: Evidence) -> Iterator[Finding]:
    """Yields the files that are gone, cut, unreadable, not what they were when they were written, or in no
    manifest.

    A file may have rows of several datacenters: the hour of each of them has the finding.
    """
    for file in evidence.unsound_files:
        hour = f"{evidence.topic}, {phrases.hour(evidence.hour_ms)}"
        yield Finding(
            Status.LOST if file.is_gone else Status.CORRUPT,
            LOAD_HOP,
            f"of {hour}, {file.text}: a verification found it at {phrases.instant(file.said_ms)}",
            record_count=file.rows,
            path=file.path,
        )
