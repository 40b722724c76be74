"""The audit store's tables of what was handed over, counted, found damaged, brought again and accepted.

`audit.store.store`, `audit.store.fold` and `audit.store.upkeep` write them, `audit.gathering.gather` reads
them. `audit.store.load_tables` has what loads report, `audit.store.measured_tables` the rest.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text

from headrace.audit.store.columns import (
    Content,
    flag_column,
    key_column,
    metadata,
    number_column,
    text_column,
)

SCHEMA_VERSION: Final = 4

# SQLite assigns row numbers only in a column whose type is exactly INTEGER.
_RowId = BigInteger().with_variant(Integer, "sqlite")

meta = Table("meta", metadata, key_column("name", String), text_column("value"))

# How far each partition of the audit topics is folded. Written in the transaction that folds.
folded = Table(
    "folded",
    metadata,
    key_column("topic", String),
    key_column("partition", Integer),
    number_column("address"),
)

# Tallies of log ranges, as reported. Where ranges overlap, those with `chosen` count (`audit.store.cover`).
tallies = Table(
    "tallies",
    metadata,
    Column("id", _RowId, primary_key=True, autoincrement=True),
    text_column("tier"),
    text_column("datacenter"),
    text_column("topic"),
    text_column("topic_id"),
    number_column("partition"),
    number_column("from_address"),
    number_column("to_address"),
    text_column("digest"),
    number_column("counted_ms"),
    flag_column("chosen"),
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
    number_column("tally_id"),
    number_column("bucket_start_ms"),
    number_column("producer_id"),
    number_column("producer_epoch"),
    number_column("first_sequence"),
    number_column("last_sequence"),
    number_column("record_count"),
    number_column("first_address"),
    number_column("end_address"),
    Column("content", Content),
)
Index("spans_tally_bucket", spans.c.tally_id, spans.c.bucket_start_ms)
Index("spans_bucket", spans.c.bucket_start_ms)

publishers = Table(
    "publishers",
    metadata,
    key_column("datacenter", String),
    key_column("publisher", String),
    text_column("service"),
    text_column("server"),
    number_column("started_ms"),
    number_column("last_ms"),
    number_column("report_number"),
    flag_column("closed"),
)

# The newest tally of each (publisher, part). `ranges` are its claims, `ever` the claims of all its versions,
# as JSON lists of [partition, producer id, epoch, first sequence, last sequence]; `contents` has what the
# batches of each of `ranges` hold, in hexadecimal digits, or null.
handovers = Table(
    "handovers",
    metadata,
    key_column("datacenter", String),
    key_column("publisher", String),
    key_column("part", BigInteger),
    number_column("report_number"),
    text_column("topic"),
    number_column("bucket_start_ms"),
    number_column("handed_over_count"),
    flag_column("final"),
    number_column("reported_ms"),
    Column("ranges", Text, nullable=False),
    Column("ever", Text, nullable=False),
    Column("contents", Text, nullable=False),
)
Index("handovers_bucket", handovers.c.topic, handovers.c.bucket_start_ms)

producer_ids = Table(
    "producer_ids",
    metadata,
    key_column("datacenter", String),
    key_column("producer_id", BigInteger),
    text_column("publisher"),
)

# The publishers whose tallies have no sequence numbers and are compared by count.
counting_publishers = Table(
    "counting_publishers", metadata, key_column("datacenter", String), key_column("publisher", String)
)

# What each incarnation of a topic declares, by its newest record; `changes`: JSON list of [producers, from].
# `deleted_ms`: when its auditor saw that it was deleted; null of one that is there, as far as anybody knows.
declarations = Table(
    "declarations",
    metadata,
    key_column("datacenter", String),
    key_column("topic", String),
    key_column("topic_id", String),
    number_column("first_said_ms"),
    number_column("said_ms"),
    Column("changes", Text, nullable=False),
    Column("deleted_ms", BigInteger),
    Column("partitions", BigInteger),
)

# The newest heartbeat of each partition.
beats = Table(
    "beats",
    metadata,
    key_column("tier", String),
    key_column("datacenter", String),
    key_column("topic", String),
    key_column("topic_id", String),
    key_column("partition", Integer),
    number_column("log_partition"),
    number_column("beat"),
    number_column("at_ms"),
    number_column("counted_to_address"),
    number_column("end_address"),
)

# Tiers that count a partition again: [from_address, to_address) was counted before, and no longer held.
recounts = Table(
    "recounts",
    metadata,
    key_column("tier", String),
    key_column("datacenter", String),
    key_column("topic", String),
    key_column("topic_id", String),
    key_column("partition", Integer),
    key_column("said_ms", BigInteger),
    key_column("from_address", BigInteger),
    number_column("to_address"),
    Column("cause", Text, nullable=False),
)

gaps = Table(
    "gaps",
    metadata,
    key_column("tier", String),
    key_column("datacenter", String),
    key_column("topic", String),
    key_column("topic_id", String),
    key_column("partition", Integer),
    key_column("from_address", BigInteger),
    key_column("to_address", BigInteger),
    key_column("reason", String),
    flag_column("accepted"),
    Column("said_ms", BigInteger),
)

# Damaged batches of a tier's log, by the newest record about each. `audit-corrupt.avsc` describes the fields.
corrupt = Table(
    "corrupt",
    metadata,
    key_column("tier", String),
    key_column("datacenter", String),
    key_column("topic", String),
    key_column("topic_id", String),
    key_column("partition", Integer),
    key_column("from_address", BigInteger),
    key_column("to_address", BigInteger),
    number_column("log_partition"),
    text_column("cause"),
    Column("record_count", BigInteger),
    Column("first_ms", BigInteger),
    Column("last_ms", BigInteger),
    number_column("producer_id"),
    number_column("producer_epoch"),
    number_column("first_sequence"),
    number_column("last_sequence"),
    flag_column("in_tally"),
    number_column("reported_ms"),
)

# Records of the audit topics that are not audit records: how many, and the problem of the last of them.
set_aside = Table(
    "set_aside",
    metadata,
    key_column("topic", String),
    key_column("partition", Integer),
    number_column("records"),
    number_column("first_offset"),
    number_column("last_offset"),
    Column("problem", Text, nullable=False),
)

# The source partition that an analysis partition copies, by the newest record: the datacenter, its partition
# and the id of the topic there. `log_topic_id`: of the analysis cluster's topic; "" in records that do not
# name it.
attributions = Table(
    "attributions",
    metadata,
    key_column("topic", String),
    key_column("log_partition", Integer),
    key_column("log_topic_id", String),
    text_column("datacenter"),
    number_column("partition"),
    text_column("topic_id"),
    number_column("said_ms"),
)

# The topics that had one name in a datacenter, by their ids: the first and the last record that names each.
topic_ids = Table(
    "topic_ids",
    metadata,
    key_column("datacenter", String),
    key_column("topic", String),
    key_column("topic_id", String),
    number_column("first_ms"),
    number_column("last_ms"),
)

# Every hour that a tier has reported on, and the time of the newest record about it.
hours = Table(
    "hours",
    metadata,
    key_column("topic", String),
    key_column("datacenter", String),
    key_column("hour_ms", BigInteger),
    number_column("touched_ms"),
)

# Lost events that were brought again, by their new numbers. `audit-resent.avsc` describes the fields.
resent = Table(
    "resent",
    metadata,
    key_column("datacenter", String),
    key_column("topic", String),
    key_column("partition", Integer),
    key_column("producer_id", BigInteger),
    key_column("producer_epoch", BigInteger),
    key_column("first_sequence", BigInteger),
    number_column("last_sequence"),
    number_column("bucket_start_ms"),
    text_column("publisher"),
    number_column("old_producer_id"),
    number_column("old_producer_epoch"),
    number_column("old_first_sequence"),
    text_column("said_by"),
    number_column("said_ms"),
)
Index("resent_bucket", resent.c.topic, resent.c.bucket_start_ms)

# The newest word about each finding that somebody accepted. `audit-acceptance.avsc` describes the fields.
acceptances = Table(
    "acceptances",
    metadata,
    key_column("digest", String),
    text_column("topic"),
    number_column("hour_ms"),
    Column("sentence", Text, nullable=False),
    text_column("said_by"),
    number_column("said_ms"),
    Column("reason", Text, nullable=False),
    flag_column("withdrawn"),
)
Index("acceptances_hour", acceptances.c.topic, acceptances.c.hour_ms)
