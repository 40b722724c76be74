"""Audit records of strangers that are possible in every field, by kind.

Such a record cannot be told from a true one (`audit.topic.validity`). So nothing possible is made about the
audited topic in its own datacenter's name or about its copy, and no load of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from fuzzing.audit_lies import HOUR_A
from headrace.audit.times import FIRST_NAMED_MS, HOUR_MS, LAST_NAMED_MS

Tree = dict[str, Any]
BUCKET_MS: Final = 600_000
MANY: Final = 300
HOURS_MANY: Final = 300
MADE: Final = 0.1
"""How often a report says when the one was made that it names; most of those times cannot be."""
TIMES_MS: Final = (
    HOUR_A,
    HOUR_A + 40 * BUCKET_MS,
    0,
    FIRST_NAMED_MS,
    FIRST_NAMED_MS - 1,
    LAST_NAMED_MS,
    LAST_NAMED_MS + 1,
    HOUR_A * 1000,
    2**62,
    -(2**63),
    2**63 - 1,
)
"""Usual ones, those at the calendar's edges, µs for ms, and numbers that no calendar has."""
PRODUCERS: Final = (10**9, 10**9 + 1, 2**63 - 1)
"""Ids that brokers have not given to anybody here."""


class Place:
    """Whom a record is about, and who says it."""

    def __init__(self, topic: str, datacenter: str, speaker: str, now_ms: int) -> None:
        self.topic = topic
        self.datacenter = datacenter
        self.speaker = speaker
        self.now_ms = now_ms

    def header(self) -> Tree:
        return {
            "time": self.now_ms,
            "datacenter": self.speaker,
            "server": "host-x",
            "service": "auditor",
            "guid": "b3b7",
        }


def _spans(rng: random.Random, at: int, end: int) -> list[Tree]:
    spans: list[Tree] = []
    for _ in range(rng.choice((0, 1, 3, MANY))):
        size = rng.randint(1, max(1, (end - at) // MANY))
        if at + size > end:
            break
        count = rng.randint(1, min(size, 2**31 - 1))
        first = rng.choice((0, 1, 2**31 - count))
        named = rng.random() < 0.7
        spans.append(
            {
                "bucket_start_ms": rng.choice(TIMES_MS),
                "producer_id": rng.choice(PRODUCERS) if named else -1,
                "producer_epoch": rng.choice((0, 2**15 - 1)) if named else -1,
                "first_sequence": first if named else -1,
                "last_sequence": first + count - 1 if named else -1,
                "record_count": count,
                "first_address": at,
                "end_address": at + size,
            }
        )
        at += size
    return spans


def _range(rng: random.Random) -> tuple[int, int]:
    start = rng.choice((0, 0, rng.randrange(100_000), 2**40))
    return start, min(2**62, start + rng.choice((0, 1, rng.randrange(1_000_000), 2**61)))


def tally(rng: random.Random, place: Place) -> Tree:
    start, end = _range(rng)
    return {
        "tier": rng.choice(("datacenter", "analysis")),
        "datacenter": place.datacenter,
        "topic": place.topic,
        "partition": rng.choice((0, 1, 2**31 - 1)),
        "log_partition": rng.choice((0, 1, 2**31 - 1)),
        "from_address": start,
        "to_address": end,
        "bucket_ms": rng.choice((BUCKET_MS, HOUR_MS, 1)),
        "topic_id": rng.choice(("", "\x1b[2J", "x" * 10_000)),
        "spans": _spans(rng, start, end),
    }


def heartbeat(rng: random.Random, place: Place) -> Tree:
    parts = rng.choice((1, 1, 3, 2**31 - 1))
    position = {
        "datacenter": place.datacenter,
        "topic": place.topic,
        "partition": rng.choice((0, 1, 2**31 - 1)),
        "log_partition": rng.choice((0, 1, 2**31 - 1)),
        "counted_to_address": rng.choice((0, 500)),
        "end_address": rng.choice((500, 2**62)),
        "topic_id": rng.choice(("", "\x1b[2J", "x" * 10_000)),
        "last_address": rng.choice((-(2**63), -1, 0, 2**63 - 1)),
        "last_crc": rng.choice((-1, 0, 2**63 - 1)),
        "last_epoch": rng.choice((-(2**31), -1, 0, 2**31 - 1)),
        "source_topic_id": rng.choice(("", "\x1b[2J", "x" * 10_000)),
        "content_from": rng.choice((-(2**63), -1, 0, 2**63 - 1)),
        "content": rng.choice((None, b"\xff" * 16)),
    }
    return {
        "tier": "datacenter",
        "beat": rng.choice((0, place.now_ms, place.now_ms + 23 * HOUR_MS, FIRST_NAMED_MS)),
        "part": rng.randrange(parts),
        "parts": parts,
        "positions": [position] * rng.choice((0, 1, 3, MANY)),
    }


def gap(rng: random.Random, place: Place) -> Tree:
    start, end = _range(rng)
    return {
        "tier": rng.choice(("datacenter", "analysis")),
        "datacenter": place.datacenter,
        "topic": place.topic,
        "partition": rng.choice((0, 1)),
        "from_address": start,
        "to_address": end,
        "reason": rng.choice(("deleted", "", "\x1b[2J\n[bold]x[/]", "\u202e", "x" * 10_000)),
        "accepted": rng.random() < 0.5,
    }


def corrupt(rng: random.Random, place: Place) -> Tree:
    start, end = _range(rng)
    size = max(1, end - start)
    return {
        **{key: value for key, value in gap(rng, place).items() if key not in ("reason", "accepted")},
        "log_partition": rng.choice((0, 1)),
        "from_address": start,
        "to_address": start + size,
        "cause": rng.choice(("rot", "[/red]\x1b[31m", "x" * 10_000)),
        "record_count": rng.choice((None, 0, 1, size)),
        "first_ms": rng.choice((None, *TIMES_MS)),
        "last_ms": rng.choice((None, *TIMES_MS)),
        "producer_id": rng.choice((-1, 0, 2**63 - 1)),
        "producer_epoch": 0,
        "first_sequence": 0,
        "last_sequence": rng.choice((0, 2**31 - 1)),
        "in_tally": rng.random() < 0.5,
    }


def recount(rng: random.Random, place: Place) -> Tree:
    start, end = _range(rng)
    return {
        **{key: value for key, value in gap(rng, place).items() if key not in ("reason", "accepted")},
        "log_partition": rng.choice((0, 1)),
        "from_address": start,
        "counted_to_address": end,
        "cause": rng.choice(("cut", "[/red]\x1b[31m", "x" * 10_000)),
    }


def producer_report(rng: random.Random, place: Place) -> Tree:
    ranges = [
        {
            "partition": rng.choice((0, 1, 2**31 - 1)),
            "producer_id": rng.choice(PRODUCERS),
            "producer_epoch": rng.choice((0, 2**15 - 1)),
            "first_sequence": first,
            "last_sequence": first + rng.randrange(3),
        }
        for first in (rng.randrange(2**31 - 5) for _ in range(rng.choice((0, 1, 5, MANY))))
    ]
    tallies = [
        {
            "part": rng.choice((0, 1, part, 2**40)),
            "topic": place.topic,
            "bucket_start": rng.choice(TIMES_MS),
            "handed_over_count": rng.choice((0, 1, 10, 2**40)),
            "final": rng.random() < 0.5,
            "ranges": ranges,
        }
        for part in range(rng.choice((0, 1, 3)))
    ]
    return {
        "publisher": f"stranger-{rng.randrange(5)}",
        "started": rng.choice(TIMES_MS),
        "report_number": rng.choice((0, 1, 2, 2**40)),
        "arrived_number": rng.choice((0, 0, 0, 1, 2**40)),
        "arrived_made": rng.choice(TIMES_MS) if rng.random() < MADE else None,
        "reported_until": rng.choice(TIMES_MS),
        "state": rng.choice(("OPEN", "CLOSED")),
        "bucket_ms": rng.choice((BUCKET_MS, 0, -1)),
        "tallies": tallies,
    }


def load(rng: random.Random, place: Place) -> Tree:
    many = rng.random() < 0.1
    hours = [
        {
            "hour": HOUR_A + number * HOUR_MS if many else rng.choice(TIMES_MS),
            "rows": rng.choice((0, 1, 2**40)),
            "distinct_offsets": rng.choice((0, 1, 2**40)),
            "dead_lettered": rng.choice((0, -1, 2**40)),
        }
        for number in range(HOURS_MANY if many else rng.choice((0, 1, 3)))
    ]
    start, end = _range(rng)
    partition = {"partition": rng.choice((0, 1, 2**31 - 1)), "from_address": start, "to_address": end}
    return {
        "warehouse": rng.choice(("hdfs://x", "", "\x1b[2J")),
        "topic": place.topic,
        "load_sequence": rng.choice((0, 1, 2**40)),
        "committed": rng.choice((place.now_ms, FIRST_NAMED_MS, LAST_NAMED_MS)),
        "partitions": [{**partition, "hours": hours}] * rng.choice((0, 1, 2)),
        "accepted_gaps": [{**partition, "reason": "lost"}] * rng.choice((0, 1)),
    }


def resent(rng: random.Random, place: Place) -> Tree:
    first, count = rng.choice((0, 5)), rng.choice((1, 7, 10_000))
    had = rng.random() < 0.5
    return {
        "datacenter": place.datacenter,
        "topic": place.topic,
        "bucket_start": rng.choice((HOUR_A, FIRST_NAMED_MS, LAST_NAMED_MS)),
        "publisher": f"stranger-{rng.randrange(5)}",
        "partition": rng.choice((0, 1, 2**31 - 1)),
        "producer_id": rng.choice(PRODUCERS),
        "producer_epoch": rng.choice((0, 2**15 - 1)),
        "first_sequence": first,
        "last_sequence": first + count - 1,
        "old_producer_id": 10**8 if had else -1,
        "old_producer_epoch": 0 if had else -1,
        "old_first_sequence": 3 if had else -1,
        "said_by": "somebody@host",
    }


def acceptance(rng: random.Random, place: Place) -> Tree:
    count = rng.choice((1, 2, MANY))
    return {
        "topic": place.topic,
        "hour": rng.choice((HOUR_A, HOUR_A + 7 * HOUR_MS, FIRST_NAMED_MS)),
        "digests": [f"{rng.getrandbits(256):064x}" for _ in range(count)],
        "texts": [rng.choice(("lost", "\x1b[2J\n[bold]x[/]", "x" * 10_000)) for _ in range(count)],
        "said_by": "somebody@host",
        "reason": rng.choice(("a disk died", "[/red]\x1b[31m", "x" * 10_000)),
        "withdrawn": rng.random() < 0.5,
    }


def verified(rng: random.Random, place: Place) -> Tree:
    problem = {
        "hour_ms": rng.choice((-1, HOUR_A, FIRST_NAMED_MS)),
        "path": rng.choice(("/data/x", "", "\x1b[2J", "x" * 10_000)),
        "rows": rng.choice((0, 1, 2**40)),
        "is_gone": rng.random() < 0.5,
        "text": rng.choice(("is missing", "[/red]\x1b[31m", "x" * 10_000)),
    }
    count = rng.choice((0, 1, 100))
    return {
        "warehouse": rng.choice(("hdfs://x", "", "\x1b[2J")),
        "topic": place.topic,
        "checked": rng.choice(("all", "recent")),
        "files": rng.choice((0, 2**40)),
        "rows": rng.choice((0, 2**40)),
        "problem_count": rng.choice((100, 2**40)),
        "problems": [problem] * count,
    }


def doubled(rng: random.Random, place: Place) -> Tree:
    start, end = _range(rng)
    run = {"log_partition": rng.choice((0, 2**31 - 1)), "first_offset": start, "last_offset": end}
    return {
        "warehouse": rng.choice(("hdfs://x", "", "\x1b[2J")),
        "topic": place.topic,
        "hour_ms": rng.choice((HOUR_A, FIRST_NAMED_MS)),
        "removed": rng.choice((0, 1, 2**40)),
        "runs": [{**run, "is_extra": rng.random() < 0.5}] * rng.choice((0, 1, MANY)),
    }


def drill(rng: random.Random, place: Place) -> Tree:
    outcome = rng.choice(("named", "missed", "wrong place", "unknown"))
    first, last = rng.choice(((-1, -1), (0, 6), (7, 2**31 - 1)))
    plant = {
        "kind": rng.choice(("dropped", "[red]x[/]", "x" * 255)),
        "datacenter": place.datacenter,
        "service": rng.choice(("drill-x", "x" * 255)),
        "hour_ms": rng.choice((HOUR_A, FIRST_NAMED_MS)),
        "hop": rng.choice(("producer → datacenter", "", "\x1b[2J")),
        "statuses": rng.choice(([], ["lost"], ["x" * 10_000] * 5)),
        "note": rng.choice(("", "the clock", "x" * 10_000)),
        "record_count": rng.choice((0, 7, 2**40)),
        "producer_id": -1 if first < 0 else rng.choice(PRODUCERS),
        "producer_epoch": min(first, 0),
        "first_sequence": first,
        "last_sequence": last,
        "outcome": outcome,
        "named_after_ms": rng.choice((0, 2**40)) if outcome == "named" else -1,
        "path": rng.choice(("", "/data/_drills/1/x.parquet", "\x1b[2J", "x" * 10_000)),
        "sent_count": rng.choice((0, 12, 2**40)),
        "copied_after_ms": rng.choice((-1, 0, 2**40)),
    }
    return {
        "run": f"{rng.getrandbits(32):x}",
        "said_by": "somebody@host",
        "began_ms": rng.choice((HOUR_A, FIRST_NAMED_MS)),
        "false_count": rng.choice((0, 2**40)),
        "plants": [plant] * rng.choice((0, 1, 200)),
    }


KINDS: Final[Mapping[str, Callable[[random.Random, Place], Tree]]] = {
    "audit-tally.avsc": tally,
    "audit-positions.avsc": heartbeat,
    "audit-gap.avsc": gap,
    "audit-corrupt.avsc": corrupt,
    "audit-recount.avsc": recount,
    "audit-producer.avsc": producer_report,
    "audit-load.avsc": load,
    "audit-resent.avsc": resent,
    "audit-acceptance.avsc": acceptance,
    "audit-verified.avsc": verified,
    "audit-doubled.avsc": doubled,
    "audit-drill.avsc": drill,
}
