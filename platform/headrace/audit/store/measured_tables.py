"""The audit store's tables of what was measured, tested and kept: clocks, logs of the audit topics, recounts
that are read again, missing reports, who publishes which topic, verifications, doubles, drills, how long
findings took to be named, verdicts on settled hours. `audit.store.tables` has all others.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Integer, String, Table, Text

from headrace.audit.store.tables import metadata


def _key(name: str, kind: type[BigInteger] | type[Integer] | type[String]) -> Column[int | str]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _text(name: str) -> Column[str]:
    return Column(name, String, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


# Publishers whose clock is off, or was: by how much it is ahead, measured when the auditor's said `said_ms`.
clocks = Table(
    "clocks",
    metadata,
    _key("datacenter", String),
    _key("publisher", String),
    _number("skew_ms"),
    _number("said_ms"),
)

# When the last heartbeat of each tier was said that was read in a partition of an audit topic.
heard = Table(
    "heard",
    metadata,
    _key("topic", String),
    _key("partition", Integer),
    _key("tier", String),
    _number("at_ms"),
)

# By how much the clock of each datacenter's auditor was ahead when its newest heartbeat was folded, at least.
ahead = Table(
    "ahead",
    metadata,
    _key("datacenter", String),
    _number("beat"),
    _number("said_ms"),
    _number("ahead_ms"),
)

# The record of each audit topic's log that was folded last, by which log that was; and the datacenters whose
# auditors and publishers speak in it (`audit.store.fold_logs`).
read_logs = Table(
    "read_logs",
    metadata,
    _key("topic", String),
    _key("partition", Integer),
    _text("topic_id"),
    _number("last_offset"),
    _text("last_digest"),
)
speakers = Table(
    "speakers",
    metadata,
    _key("topic", String),
    _key("partition", Integer),
    _key("datacenter", String),
)

# Logs of audit topics that were deleted with records that nobody has read, said from `from_ms` to `until_ms`.
lost_logs = Table(
    "lost_logs",
    metadata,
    _key("topic", String),
    _key("partition", Integer),
    _key("topic_id", String),
    _key("datacenter", String),
    _number("from_ms"),
    _number("until_ms"),
    _number("last_offset"),
    _text("last_digest"),
)

# Recounts, by the key of `tables.recounts`, that are read once more: the log of an audit topic is read again
# from its start, and what they took back comes before them.
awaited = Table(
    "awaited",
    metadata,
    _key("tier", String),
    _key("datacenter", String),
    _key("topic", String),
    _key("topic_id", String),
    _key("partition", Integer),
    _key("said_ms", BigInteger),
    _key("from_address", BigInteger),
)

# Reports that arrived by their publisher's word, and were not read (`audit.store.fold_missing`): between a
# report of `from_ms` and one of `until_ms`, which names it. `made_ms`: when it was made, if that is known.
missing_reports = Table(
    "missing_reports",
    metadata,
    _key("datacenter", String),
    _key("publisher", String),
    _key("report_number", BigInteger),
    _text("service"),
    _text("server"),
    _number("from_ms"),
    _number("until_ms"),
    Column("made_ms", BigInteger),
)

# The topics that each publisher has had events of, in any hour, also one that is forgotten.
published = Table(
    "published",
    metadata,
    _key("datacenter", String),
    _key("publisher", String),
    _key("topic", String),
)

# The newest verification of each table; `problems`: JSON list of the values of a `TableProblem`.
verified = Table(
    "verified",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _text("checked"),
    _number("files"),
    _number("rows"),
    _number("problem_count"),
    Column("problems", Text, nullable=False),
    _number("said_ms"),
)

# Rows whose guids other rows have, too, of one hour of a table; and when a dedupe removed the extra ones.
doubled = Table(
    "doubled",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _key("hour_ms", BigInteger),
    _key("log_partition", Integer),
    _key("first_offset", BigInteger),
    _number("last_offset"),
    _flag("is_extra"),
    _number("said_ms"),
)
deduped = Table(
    "deduped",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _key("hour_ms", BigInteger),
    _number("removed"),
    _number("said_ms"),
)

# Drills that ended; `plants`: JSON list of what `DrillPlant.to_json` returns.
drills = Table(
    "drills",
    metadata,
    _key("run", String),
    _text("said_by"),
    _number("began_ms"),
    _number("false_count"),
    Column("plants", Text, nullable=False),
    _number("said_ms"),
)

# Findings, by their digests: when each was named first, and how long that took; -1 if nobody saw it.
named = Table(
    "named",
    metadata,
    _key("digest", String),
    _text("hop"),
    _number("took_ms"),
    _number("named_ms"),
)

# Hours [from, to) that the store has forgotten (`audit.store.forgotten`).
forgotten = Table(
    "forgotten",
    metadata,
    _key("topic", String),
    _key("datacenter", String),
    _key("from_ms", BigInteger),
    _number("to_ms"),
)

# Verdicts on hours that are complete, as long as nothing contradicts them (`audit.store.kept`).
kept = Table(
    "kept",
    metadata,
    _key("topic", String),
    _key("hour_ms", BigInteger),
    _key("datacenter", String),
    _text("counted_from"),
    _number("producer"),
    _number("datacenter_count"),
    _number("analysis"),
    _number("warehouse"),
    _number("dead_lettered"),
)
