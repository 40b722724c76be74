"""The audit store's tables, for SQLite and PostgreSQL: names, keys, indexes.

`audit.store.store`, `audit.store.fold` and `audit.store.upkeep` write them, `audit.gathering.gather` reads
them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

from headrace.wire.content import from_hex, hex_of

SCHEMA_VERSION: Final = 4

metadata = MetaData()


def _key(name: str, kind: type[BigInteger] | type[Integer] | type[String]) -> Column[int | str]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _text(name: str) -> Column[str]:
    return Column(name, String, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


class Content(TypeDecorator[int]):
    """What batches hold (`wire.content`): a number of 128 bits, kept in hexadecimal digits."""

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return hex_of(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        return from_hex(value)


# SQLite assigns row numbers only in a column whose type is exactly INTEGER.
_RowId = BigInteger().with_variant(Integer, "sqlite")

meta = Table("meta", metadata, _key("name", String), _text("value"))

# How far each partition of the audit topics is folded. Written in the transaction that folds.
folded = Table("folded", metadata, _key("topic", String), _key("partition", Integer), _number("address"))

# Tallies of log ranges, as reported. Where ranges overlap, those with `chosen` count (`audit.store.cover`).
tallies = Table(
    "tallies",
    metadata,
    Column("id", _RowId, primary_key=True, autoincrement=True),
    _text("tier"),
    _text("datacenter"),
    _text("topic"),
    _text("topic_id"),
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
    tallies.c.topic_id,
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
    Column("content", Content),
)
Index("spans_tally_bucket", spans.c.tally_id, spans.c.bucket_start_ms)
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
# as JSON lists of [partition, producer id, epoch, first sequence, last sequence]; `contents` has what the
# batches of each of `ranges` hold, in hexadecimal digits, or null.
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
    Column("contents", Text, nullable=False),
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
# `deleted_ms`: when its auditor saw that it was deleted; null of one that is there, as far as anybody knows.
declarations = Table(
    "declarations",
    metadata,
    _key("datacenter", String),
    _key("topic", String),
    _key("topic_id", String),
    _number("first_said_ms"),
    _number("said_ms"),
    Column("changes", Text, nullable=False),
    Column("deleted_ms", BigInteger),
)

# The newest heartbeat of each partition.
beats = Table(
    "beats",
    metadata,
    _key("tier", String),
    _key("datacenter", String),
    _key("topic", String),
    _key("topic_id", String),
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
    _key("topic_id", String),
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
    _key("topic_id", String),
    _key("partition", Integer),
    _key("from_address", BigInteger),
    _key("to_address", BigInteger),
    _key("reason", String),
    _flag("accepted"),
    Column("said_ms", BigInteger),
)

# Damaged batches of a tier's log, by the newest record about each. `audit-corrupt.avsc` describes the fields.
corrupt = Table(
    "corrupt",
    metadata,
    _key("tier", String),
    _key("datacenter", String),
    _key("topic", String),
    _key("topic_id", String),
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
    Column("from_source", Boolean, nullable=False),
)
Index("load_ranges_topic", load_ranges.c.topic, load_ranges.c.committed_ms)

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
    Column("content", Content),
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

# The analysis cluster's topic from which a load read, by Kafka's id; loads that do not name it have no row.
load_topics = Table(
    "load_topics",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _key("load_sequence", BigInteger),
    _text("log_topic_id"),
)

# The address from which on a load's partition, and later ones, are those of another log than before.
load_begins = Table(
    "load_begins",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _key("load_sequence", BigInteger),
    _key("log_partition", Integer),
    _number("begins_at"),
)

# `load_gaps` of loads that name their topic.
load_topic_gaps = Table(
    "load_topic_gaps",
    metadata,
    _key("warehouse", String),
    _key("topic", String),
    _key("load_sequence", BigInteger),
    _key("log_partition", Integer),
    _key("from_address", BigInteger),
    _number("to_address"),
    _text("reason"),
)

# The source partition that an analysis partition copies, by the newest record: the datacenter, its partition
# and the id of the topic there. `log_topic_id`: of the analysis cluster's topic; "" in records that do not
# name it.
attributions = Table(
    "attributions",
    metadata,
    _key("topic", String),
    _key("log_partition", Integer),
    _key("log_topic_id", String),
    _text("datacenter"),
    _number("partition"),
    _text("topic_id"),
    _number("said_ms"),
)

# The topics that had one name in a datacenter, by their ids: the first and the last record that names each.
topic_ids = Table(
    "topic_ids",
    metadata,
    _key("datacenter", String),
    _key("topic", String),
    _key("topic_id", String),
    _number("first_ms"),
    _number("last_ms"),
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

# Lost events that were brought again, by their new numbers. `audit-resent.avsc` describes the fields.
resent = Table(
    "resent",
    metadata,
    _key("datacenter", String),
    _key("topic", String),
    _key("partition", Integer),
    _key("producer_id", BigInteger),
    _key("producer_epoch", BigInteger),
    _key("first_sequence", BigInteger),
    _number("last_sequence"),
    _number("bucket_start_ms"),
    _text("publisher"),
    _number("old_producer_id"),
    _number("old_producer_epoch"),
    _number("old_first_sequence"),
    _text("said_by"),
    _number("said_ms"),
)
Index("resent_bucket", resent.c.topic, resent.c.bucket_start_ms)

# The newest word about each finding that somebody accepted. `audit-acceptance.avsc` describes the fields.
acceptances = Table(
    "acceptances",
    metadata,
    _key("digest", String),
    _text("topic"),
    _number("hour_ms"),
    Column("sentence", Text, nullable=False),
    _text("said_by"),
    _number("said_ms"),
    Column("reason", Text, nullable=False),
    _flag("withdrawn"),
)
Index("acceptances_hour", acceptances.c.topic, acceptances.c.hour_ms)
