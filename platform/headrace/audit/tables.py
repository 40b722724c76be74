"""The audit store's tables, for SQLite and PostgreSQL: names, keys, indexes.

`audit.store`, `audit.fold` and `audit.upkeep` write them, `audit.gather` reads them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION: Final = 1

metadata = MetaData()


def _key(name: str, kind: type[BigInteger] | type[Integer] | type[String]) -> Column[int | str]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _text(name: str) -> Column[str]:
    return Column(name, String, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


# SQLite assigns row numbers only in a column whose type is exactly INTEGER.
_RowId = BigInteger().with_variant(Integer, "sqlite")

meta = Table("meta", metadata, _key("name", String), _text("value"))

# How far each partition of the audit topics is folded. Written in the transaction that folds.
folded = Table("folded", metadata, _key("topic", String), _key("partition", Integer), _number("address"))

# Tallies of log ranges, as reported. Where ranges overlap, those with `chosen` count (`audit.cover`).
tallies = Table(
    "tallies",
    metadata,
    Column("id", _RowId, primary_key=True, autoincrement=True),
    _text("tier"),
    _text("datacenter"),
    _text("topic"),
    _number("partition"),
    _number("from_address"),
    _number("to_address"),
    _text("digest"),
    _number("counted_ms"),
    _flag("chosen"),
)
Index(
    "tallies_range",
    tallies.c.topic,
    tallies.c.datacenter,
    tallies.c.tier,
    tallies.c.partition,
    tallies.c.from_address,
    tallies.c.to_address,
    tallies.c.digest,
    unique=True,
)

spans = Table(
    "spans",
    metadata,
    _number("tally_id"),
    _number("bucket_start_ms"),
    _number("producer_id"),
    _number("producer_epoch"),
    _number("first_sequence"),
    _number("last_sequence"),
    _number("record_count"),
    _number("first_address"),
    _number("end_address"),
)
Index("spans_tally", spans.c.tally_id)
Index("spans_bucket", spans.c.bucket_start_ms)

publishers = Table(
    "publishers",
    metadata,
    _key("datacenter", String),
    _key("publisher", String),
    _text("service"),
    _text("server"),
    _number("started_ms"),
    _number("last_ms"),
    _number("report_number"),
    _flag("closed"),
)

# The newest tally of each (publisher, part). `ranges` are its claims, `ever` the claims of all its versions,
# as JSON lists of [partition, producer id, epoch, first sequence, last sequence].
handovers = Table(
    "handovers",
    metadata,
    _key("datacenter", String),
    _key("publisher", String),
    _key("part", BigInteger),
    _number("report_number"),
    _text("topic"),
    _number("bucket_start_ms"),
    _number("handed_over_count"),
    _flag("final"),
    _number("reported_ms"),
    Column("ranges", Text, nullable=False),
    Column("ever", Text, nullable=False),
)
Index("handovers_bucket", handovers.c.topic, handovers.c.bucket_start_ms)

producer_ids = Table(
    "producer_ids", metadata, _key("datacenter", String), _key("producer_id", BigInteger), _text("publisher")
)

# The publishers whose tallies have no sequence numbers and are compared by count.
counting_publishers = Table(
    "counting_publishers", metadata, _key("datacenter", String), _key("publisher", String)
)

# What each incarnation of a topic declares, by its newest record; `changes`: JSON list of [producers, from].
declarations = Table(
    "declarations",
    metadata,
    _key("datacenter", String),
    _key("topic", String),
    _key("topic_id", String),
    _number("first_said_ms"),
    _number("said_ms"),
    Column("changes", Text, nullable=False),
)

# The newest heartbeat of each partition.
beats = Table(
    "beats",
    metadata,
    _key("tier", String),
    _key("datacenter", String),
    _key("topic", String),
    _key("partition", Integer),
    _number("log_partition"),
    _number("beat"),
    _number("at_ms"),
    _number("counted_to_address"),
    _number("end_address"),
)

# Tiers that count a partition again: [from_address, to_address) was counted before, and no longer held.
recounts = Table(
    "recounts",
    metadata,
    _key("tier", String),
    _key("datacenter", String),
    _key("topic", String),
    _key("partition", Integer),
    _key("said_ms", BigInteger),
    _key("from_address", BigInteger),
    _number("to_address"),
    Column("cause", Text, nullable=False),
)

gaps = Table(
    "gaps",
    metadata,
    _key("tier", String),
    _key("datacenter", String),
    _key("topic", String),
    _key("partition", Integer),
    _key("from_address", BigInteger),
    _key("to_address", BigInteger),
    _key("reason", String),
    _flag("accepted"),
)

# Damaged batches of a tier's log, by the newest record about each. `audit-corrupt.avsc` describes the fields.
corrupt = Table(
    "corrupt",
    metadata,
    _key("tier", String),
    _key("datacenter", String),
    _key("topic", String),
    _key("partition", Integer),
    _key("from_address", BigInteger),
    _key("to_address", BigInteger),
    _number("log_partition"),
    _text("cause"),
    Column("record_count", BigInteger),
    Column("first_ms", BigInteger),
    Column("last_ms", BigInteger),
    _number("producer_id"),
    _number("producer_epoch"),
    _number("first_sequence"),
    _number("last_sequence"),
    _flag("in_tally"),
    _number("reported_ms"),
)

# Records of the audit topics that are not audit records: how many, and the problem of the last of them.
set_aside = Table(
    "set_aside",
    metadata,
    _key("topic", String),
    _key("partition", Integer),
    _number("records"),
    _number("first_offset"),
    _number("last_offset"),
    Column("problem", Text, nullable=False),
)

# In the tables of loads, `log_partition` is the analysis cluster's partition.
load_ranges = Table(
    "load_ranges",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _key("load_sequence", BigInteger),
    _key("log_partition", Integer),
    _number("from_address"),
    _number("to_address"),
    _number("committed_ms"),
)

load_rows = Table(
    "load_rows",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _key("load_sequence", BigInteger),
    _key("log_partition", Integer),
    _key("hour_ms", BigInteger),
    _number("rows"),
    _number("distinct_offsets"),
    _number("dead_lettered"),
)
Index("load_rows_hour", load_rows.c.topic, load_rows.c.hour_ms)

load_gaps = Table(
    "load_gaps",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _key("log_partition", Integer),
    _key("from_address", BigInteger),
    _key("to_address", BigInteger),
    _text("reason"),
)

# The (datacenter, source partition) that an analysis partition copies, by the newest record.
attributions = Table(
    "attributions",
    metadata,
    _key("topic", String),
    _key("log_partition", Integer),
    _text("datacenter"),
    _number("partition"),
    _number("said_ms"),
)

# Every hour that a tier has reported on, and the time of the newest record about it.
hours = Table(
    "hours",
    metadata,
    _key("topic", String),
    _key("datacenter", String),
    _key("hour_ms", BigInteger),
    _number("touched_ms"),
)
