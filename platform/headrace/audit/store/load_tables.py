"""The audit store's tables of what loads report. In all of them `log_partition` is the analysis cluster's.

`audit.store.fold_load` writes them, `audit.gathering.loads` reads them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table

from headrace.audit.store.columns import (
    Content,
    flag_column,
    key_column,
    metadata,
    number_column,
    text_column,
)

load_ranges = Table(
    "load_ranges",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("load_sequence", BigInteger),
    key_column("log_partition", Integer),
    number_column("from_address"),
    number_column("to_address"),
    number_column("committed_ms"),
    flag_column("from_source"),
)
Index("load_ranges_topic", load_ranges.c.topic, load_ranges.c.committed_ms)

load_rows = Table(
    "load_rows",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("load_sequence", BigInteger),
    key_column("log_partition", Integer),
    key_column("hour_ms", BigInteger),
    number_column("rows"),
    number_column("distinct_offsets"),
    number_column("dead_lettered"),
    Column("content", Content),
)
Index("load_rows_hour", load_rows.c.topic, load_rows.c.hour_ms)

load_gaps = Table(
    "load_gaps",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("log_partition", Integer),
    key_column("from_address", BigInteger),
    key_column("to_address", BigInteger),
    text_column("reason"),
)

# The analysis cluster's topic from which a load read, by Kafka's id; loads that do not name it have no row.
load_topics = Table(
    "load_topics",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("load_sequence", BigInteger),
    text_column("log_topic_id"),
)

# The address from which on a load's partition, and later ones, are those of another log than before.
load_begins = Table(
    "load_begins",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("load_sequence", BigInteger),
    key_column("log_partition", Integer),
    number_column("begins_at"),
)

# `load_gaps` of loads that name their topic.
load_topic_gaps = Table(
    "load_topic_gaps",
    metadata,
    key_column("warehouse", String),
    key_column("topic", String),
    key_column("load_sequence", BigInteger),
    key_column("log_partition", Integer),
    key_column("from_address", BigInteger),
    number_column("to_address"),
    text_column("reason"),
)
