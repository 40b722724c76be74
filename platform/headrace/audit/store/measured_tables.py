"""The audit store's tables of what was measured, tested and kept: clocks, logs of the audit topics, recounts
that are read again, missing reports, who publishes which topic, verifications, doubles, drills, how long
findings took to be named, verdicts on settled hours. `audit.store.tables` and
`audit.store.load_tables` have all others.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, String, Table, Text

from headrace.audit.store.columns import (
    flag_column,
    key_column,
    metadata,
    number_column,
    text_column,
)

# Publishers whose clock is off, or was: by how much it is ahead, measured when the auditor's said `said_ms`.
clocks = Table(
    "clocks",
    metadata,
    key_column("datacenter", String),
    key_column("publisher", String),
    number_column("skew_ms"),
    number_column("said_ms"),
)

# When the last heartbeat of each tier was said that was read in a partition of an audit topic.
heard = Table(
    "heard",
    metadata,
    key_column("topic", String),
    key_column("partition", Integer),
    key_column("tier", String),
    number_column("at_ms"),
)

# By how much the clock of each datacenter's auditor was ahead when its newest heartbeat was folded, at least.
ahead = Table(
    "ahead",
    metadata,
    key_column("datacenter", String),
    number_column("beat"),
    number_column("said_ms"),
    number_column("ahead_ms"),
)

# The record of each audit topic's log that was folded last, by which log that was; and the datacenters whose
# auditors and publishers speak in it (`audit.store.fold_logs`).
read_logs = Table(
    "read_logs",
    metadata,
    key_column("topic", String),
    key_column("partition", Integer),
    text_column("topic_id"),
    number_column("last_offset"),
    text_column("last_digest"),
)
speakers = Table(
    "speakers",
    metadata,
    key_column("topic", String),
    key_column("partition", Integer),
    key_column("datacenter", String),
)

# Logs of audit topics that were deleted with records that nobody has read, said from `from_ms` to `until_ms`.
lost_logs = Table(
    "lost_logs",
    metadata,
    key_column("topic", String),
    key_column("partition", Integer),
    key_column("topic_id", String),
    key_column("datacenter", String),
    number_column("from_ms"),
    number_column("until_ms"),
    number_column("last_offset"),
    text_column("last_digest"),
)

# Recounts, by the key of `tables.recounts`, that are read once more: the log of an audit topic is read again
# from its start, and what they took back comes before them.
awaited = Table(
    "awaited",
    metadata,
    key_column("tier", String),
    key_column("datacenter", String),
    key_column("topic", String),
    key_column("topic_id", String),
    key_column("partition", Integer),
    key_column("said_ms", BigInteger),
    key_column("from_address", BigInteger),
)

# Reports that arrived by their publisher's word, and were not read (`audit.store.fold_missing`): between a
# report of `from_ms` and one of `until_ms`, which names it. `made_ms`: when it was made, if that is known.
missing_reports = Table(
    "missing_reports",
    metadata,
    key_column("datacenter", String),
    key_column("publisher", String),
    key_column("report_number", BigInteger),
    text_column("service"),
    text_column("server"),
    number_column("from_ms"),
    number_column("until_ms"),
    Column("made_ms", BigInteger),
)

# The topics that each publisher has had events of, in any hour, also one that is forgotten.
published = Table(
    "published",
    metadata,
    key_column("datacenter", String),
    key_column("publisher", String),
    key_column("topic", String),
)

# The newest verification of each table; `problems`: JSON list of the values of a `TableProblem`.
verified = Table(
    "verified",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    text_column("checked"),
    number_column("files"),
    number_column("rows"),
    number_column("problem_count"),
    Column("problems", Text, nullable=False),
    number_column("said_ms"),
)

# Rows whose guids other rows have, too, of one hour of a table; and when a dedupe removed the extra ones.
doubled = Table(
    "doubled",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("hour_ms", BigInteger),
    key_column("log_partition", Integer),
    key_column("first_offset", BigInteger),
    number_column("last_offset"),
    flag_column("is_extra"),
    number_column("said_ms"),
)
deduped = Table(
    "deduped",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("hour_ms", BigInteger),
    number_column("removed"),
    number_column("said_ms"),
)

# Drills that ended; `plants`: JSON list of what `DrillPlant.to_json` returns.
drills = Table(
    "drills",
    metadata,
    key_column("run", String),
    text_column("said_by"),
    number_column("began_ms"),
    number_column("false_count"),
    Column("plants", Text, nullable=False),
    number_column("said_ms"),
)

# Findings, by their digests: when each was named first, and how long that took; -1 if nobody saw it.
named = Table(
    "named",
    metadata,
    key_column("digest", String),
    text_column("hop"),
    number_column("took_ms"),
    number_column("named_ms"),
)

# Loads before which their table went back, by the addresses that they read of each partition; -1: of none
# (`audit.store.fold_returns`).
load_returns = Table(
    "load_returns",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("load_sequence", BigInteger),
    key_column("committed_ms", BigInteger),
    key_column("log_partition", Integer),
    number_column("from_address"),
    text_column("log_topic_id"),
)

# Hours [from, to) that the store has forgotten (`audit.store.forgotten`).
forgotten = Table(
    "forgotten",
    metadata,
    key_column("topic", String),
    key_column("datacenter", String),
    key_column("from_ms", BigInteger),
    number_column("to_ms"),
)

# Verdicts on hours that are complete, as long as nothing contradicts them (`audit.store.kept`).
kept = Table(
    "kept",
    metadata,
    key_column("topic", String),
    key_column("hour_ms", BigInteger),
    key_column("datacenter", String),
    text_column("counted_from"),
    number_column("producer"),
    number_column("datacenter_count"),
    number_column("analysis"),
    number_column("warehouse"),
    number_column("dead_lettered"),
)
