"""Fragments of findings' sentences: producers, events, hours, sequences, addresses. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from headrace.audit.evidence import Evidence
from headrace.audit.findings import Status
from headrace.audit.times import OUTSIDE_NAME, is_named

TALLY_MISSING: Final = "auditor is missing: not all of"
"""Said where a heartbeat lies behind addresses that no tally counts: they can be counted again."""
_OF_ONE: Final = {"are": "is", "have": "has", "were": "was", "lie": "lies", "wait": "waits"}
_VERB: Final = re.compile(rf"(?:(?<=, )|(?<=, or ))(?:{'|'.join(_OF_ONE)})\b")
FORGOTTEN: Final = "nobody had reported on it for as long as it keeps hours"


def instant(time_ms: int) -> str:
    """Returns a moment in UTC, to the second: `2015-05-17 11:05:03`; a name outside of year 1 to 9999."""
    if not is_named(time_ms):
        return OUTSIDE_NAME
    return datetime.fromtimestamp(time_ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def hour(hour_ms: int) -> str:
    """Returns an hour in UTC, by its start: `2015-05-17 11:00`; a name outside of year 1 to 9999."""
    if not is_named(hour_ms):
        return OUTSIDE_NAME
    return datetime.fromtimestamp(hour_ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M")


def duration(duration_ms: int) -> str:
    """Returns a duration in its largest sensible unit: `40 s`, `12 min`, `3 h`, `2 d`."""
    seconds = max(0, duration_ms) // 1_000
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    return f"{seconds // 3_600} h" if seconds < 172_800 else f"{seconds // 86_400} d"


def events(count: int, evidence: Evidence) -> str:
    """Returns `7 events of page-view, west, 2015-05-17 11:00`."""
    noun = "event" if count == 1 else "events"
    return f"{count} {noun} of {evidence.topic}, {evidence.datacenter}, {hour(evidence.hour_ms)}"


def agreeing(text: str) -> str:
    """Returns the text of a finding or note with the verbs of one event, if it is about one."""
    return _VERB.sub(lambda found: _OF_ONE[found[0]], text) if text.startswith("1 event of ") else text


def producer(evidence: Evidence, producer_id: int) -> str:
    """Returns `producer 12 (service frontend-2)`; only the id of a producer that never reported."""
    publisher = evidence.publisher_of(producer_id)
    return f"producer {producer_id}" + (f" (service {publisher.service})" if publisher else "")


def sequences(first: int, last: int, partition: int) -> str:
    """Returns `sequences 100 to 106 of partition 3`."""
    numbers = f"sequence {first}" if first == last else f"sequences {first} to {last}"
    return f"{numbers} of partition {partition}"


def addresses(after: int | None, before: int | None) -> str:
    """Returns `between addresses 10 and 20`; `at address 10` if they are equal; "" if neither is known."""
    if after is None:
        return "" if before is None else f"before address {before}"
    if after == before:
        return f"at address {after}"
    return f"after address {after}" if before is None else f"between addresses {after} and {before}"


def tally_missing(whose: str, low: int, high: int) -> str:
    """Returns `a tally of east's auditor is missing: not all of addresses 10 to 20 is counted`."""
    return f"a tally of {whose} {TALLY_MISSING} addresses {low} to {high} is counted"


def of_topic(about: str, evidence: Evidence) -> str:
    """Returns what a finding at addresses of a log is about, with the id of its topic: the addresses of one
    that is made again under its name begin at 0 again.
    """
    return f"{about} of the topic with id {evidence.topic_id}" if evidence.topic_id else about


def unless_forgotten(evidence: Evidence, status: Status, predicate: str) -> tuple[Status, str]:
    """Returns what a comparison of counts says; of an hour that the store has forgotten it proves nothing."""
    if not evidence.is_forgotten:
        return status, predicate
    forgotten = f"or the audit has forgotten this hour: {FORGOTTEN}"
    return Status.UNKNOWN, f"{predicate}; {forgotten}"
