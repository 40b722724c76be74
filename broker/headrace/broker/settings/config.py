"""The settings of a broker and of a topic: Kafka's names, their types, defaults and checks, in one table.

Owns the tables. `setting` parses and explains values. Does not know where the values are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.broker.settings import cleanup
from headrace.broker.settings.cleanup import DELETES, CleanupPolicy
from headrace.broker.settings.compaction import COMPACTION_SETTINGS
from headrace.broker.settings.groups import GROUP_SETTINGS
from headrace.broker.settings.replication import (
    ACKS_ALL,
    FLUSHED,
    FOLLOWER_THROTTLED,
    LEADER_THROTTLED,
    MIN_INSYNC,
    REPLICATION_SETTINGS,
    default_min_insync,
)
from headrace.broker.settings.setting import (
    BOOLEAN,
    CLEANUP,
    GAPS,
    HISTORY,
    HOUR_MS,
    INT,
    INT_MAX,
    IP_COUNTS,
    LONG,
    LONG_MAX,
    STRING,
    WEEK_MS,
    ConfigError,
    Setting,
)
from headrace.coordination import declared
from headrace.log.config import UNLIMITED, LogConfig
from headrace.process.nearest import question
from headrace.replication import gaps
from headrace.replication.gaps import AcceptedGap
from headrace.replication.throttling import NO_REPLICAS, ThrottledReplicas

_BROKER_SETTINGS: Final = (
    Setting("num.partitions", INT, "1", "partitions of a topic created without a number", 1, 10_000),
    Setting(
        "auto.create.topics.enable",
        BOOLEAN,
        "false",
        "whether a request for an unknown topic creates it; Apache Kafka's default is true",
    ),
    *REPLICATION_SETTINGS,
    Setting("delete.topic.enable", BOOLEAN, "true", "whether DeleteTopics is allowed"),
    Setting("log.segment.bytes", INT, "134217728", "size at which a segment is rolled", 1024, INT_MAX),
    Setting("log.roll.ms", LONG, WEEK_MS, "age at which a segment is rolled", 1, LONG_MAX),
    Setting(
        "log.retention.ms",
        LONG,
        WEEK_MS,
        "how long a segment is kept after its last append; -1: for ever",
        -1,
        LONG_MAX,
    ),
    Setting("log.retention.bytes", LONG, "-1", "how much of a partition is kept; -1: all", -1, LONG_MAX),
    Setting("log.retention.check.interval.ms", LONG, "30000", "how often retention is enforced", 1, LONG_MAX),
    Setting(
        "log.flush.interval.messages",
        LONG,
        str(LONG_MAX),
        "fsync after so many records; with neither flush setting: at once, grouped",
        1,
        LONG_MAX,
    ),
    Setting("log.flush.interval.ms", LONG, str(LONG_MAX), "fsync after so long", 0, LONG_MAX),
    Setting(
        "log.flush.offset.checkpoint.interval.ms", INT, "30000", "how often checkpoints are saved", 1, INT_MAX
    ),
    Setting(
        "log.scrub.bytes.per.second",
        LONG,
        "4194304",
        "how fast all logs are read and their checksums verified in the background; 0: never",
        0,
        LONG_MAX,
    ),
    Setting(
        "headrace.disk.free.min.bytes",
        LONG,
        "268435456",
        "free space of the data directory's disk below which appends are refused; 0: never",
        0,
        LONG_MAX,
    ),
    Setting("log.scrub.interval.ms", LONG, "86400000", "from one such pass to the next", 1000, LONG_MAX),
    Setting("message.max.bytes", INT, "1048588", "largest batch", 0, INT_MAX),
    Setting(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "whose clock stamps records",
        choices=("CreateTime", "LogAppendTime"),
    ),
    Setting(
        "log.message.timestamp.before.max.ms",
        LONG,
        str(LONG_MAX),
        "how far before the broker's clock a record's timestamp may lie",
        0,
        LONG_MAX,
    ),
    Setting(
        "log.message.timestamp.after.max.ms",
        LONG,
        HOUR_MS,
        "how far after the broker's clock a record's timestamp may lie",
        0,
        LONG_MAX,
    ),
    Setting(
        "log.message.validation",
        STRING,
        "records",
        "what Produce checks: every record, or only batch headers and checksums (for trusted clients)",
        choices=("records", "headers"),
    ),
    Setting(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        "when a silent idempotent producer is forgotten; producers rely on two minutes",
        120_000,
        INT_MAX,
    ),
    Setting("socket.request.max.bytes", INT, "104857600", "largest request", 1024, INT_MAX),
    Setting(
        "queued.max.request.bytes",
        LONG,
        "536870912",
        "memory of all requests that are being received or passed on to other brokers, together",
        1024,
        LONG_MAX,
    ),
    Setting("max.connections", INT, "10000", "connections at once; further ones are refused", 1, INT_MAX),
    Setting("max.connections.per.ip", INT, str(INT_MAX), "connections at once from one address", 0, INT_MAX),
    Setting(
        "max.connections.per.ip.overrides",
        IP_COUNTS,
        "",
        "ADDRESS:COUNT,…: other numbers for some addresses, such as a balancer's",
    ),
    Setting(
        "max.connection.creation.rate",
        INT,
        str(INT_MAX),
        "new connections a second; further ones wait in the listener's backlog",
        1,
        INT_MAX,
    ),
    Setting("connections.max.idle.ms", LONG, "600000", "when an idle connection is closed", 1000, LONG_MAX),
    Setting(
        "headrace.request.receive.timeout.ms",
        LONG,
        "30000",
        "an incomplete request must progress within so long, and be complete if others wait for its memory; "
        "else its connection is closed",
        100,
        LONG_MAX,
    ),
    Setting(
        "headrace.request.receive.bytes.per.second.min",
        INT,
        "16384",
        "the slowest progress that counts: slower connections are closed",
        0,
        INT_MAX,
    ),
    Setting(
        "headrace.request.receive.stall.ms",
        LONG,
        "1000",
        "as headrace.request.receive.timeout.ms, for progress while others wait for memory of requests",
        100,
        LONG_MAX,
    ),
    Setting(
        "headrace.response.send.stall.ms",
        LONG,
        "300000",
        "a connection is closed whose client takes no byte of its responses for so long",
        1000,
        LONG_MAX,
    ),
    Setting(
        "headrace.response.unsent.max.bytes",
        LONG,
        "268435456",
        "memory of all responses that clients do not take; beyond it the longest waiting client is cut off",
        1024,
        LONG_MAX,
    ),
    Setting("fetch.max.bytes", INT, "57671680", "largest fetch response", 1024, INT_MAX),
    Setting("zookeeper.session.timeout.ms", INT, "10000", "session timeout", 100, INT_MAX),
    *GROUP_SETTINGS,
)
BROKER_SETTINGS: Final = {setting.name: setting for setting in _BROKER_SETTINGS}

# Topic settings whose default is a setting of the broker.
_INHERITED: Final = {
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.validation": "log.message.validation",
    MIN_INSYNC: MIN_INSYNC,
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
TOPIC_SETTINGS: Final = {
    setting.name: setting
    for setting in (
        *(
            replace(BROKER_SETTINGS[inherits_from], name=name, inherits_from=inherits_from)
            for name, inherits_from in _INHERITED.items()
        ),
        Setting(
            cleanup.NAME,
            CLEANUP,
            cleanup.DELETE,
            "what becomes of old records: delete (by retention), compact (all are kept, and each must have a "
            "key), compact,delete (by retention, and each must have a key), or nothing (all are kept)",
        ),
        *COMPACTION_SETTINGS,
        Setting(
            "compression.type", STRING, "producer", "batches are stored as they come", choices=("producer",)
        ),
        ACKS_ALL,
        LEADER_THROTTLED,
        FOLLOWER_THROTTLED,
        Setting(
            "headrace.mirror",
            BOOLEAN,
            "false",
            "a mirror's copy: takes only batches that carry its end address, and stays a copy",
        ),
        Setting(
            gaps.SETTING,
            GAPS,
            "",
            "accepted gaps of a mirror's copy, PARTITION:FROM-TO,…: a partition that ends at FROM drops what "
            "it holds and restarts with the batch for TO",
        ),
        Setting(
            declared.PRODUCERS,
            STRING,
            declared.REPORTING,
            "whether all producers report their counts to the audit; any: it counts from the log on",
            choices=declared.DECLARATIONS,
        ),
        Setting(
            declared.HISTORY,
            HISTORY,
            "",
            f"the hours from which {declared.PRODUCERS} changed; the brokers write it",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings, parsed; `log` holds those of its partitions' logs.

    `acks_all_waits_for_fsync`: acks=all waits until every in-sync replica has flushed, not only received.
    `min_insync_replicas`: None where neither the topic nor the broker sets it.
    """

    log: LogConfig
    max_message_bytes: int
    log_append_time: bool
    mirror: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    checks_records: bool
    min_insync_replicas: int | None = None
    unclean_leader_election: bool = False
    acks_all_waits_for_fsync: bool = True
    accepted_gaps: tuple[AcceptedGap, ...] = ()
    leader_throttled: ThrottledReplicas = NO_REPLICAS
    follower_throttled: ThrottledReplicas = NO_REPLICAS
    cleanup: CleanupPolicy = DELETES

    def min_insync(self, replica_count: int) -> int:
        """Returns `min.insync.replicas` of a partition with so many replicas."""
        chosen = self.min_insync_replicas
        return default_min_insync(replica_count) if chosen is None else chosen

    def least_in_sync(self, settled_count: int) -> int:
        """Returns how many replicas of a partition must be in sync: no more than it has without those that
        are being added. They have to copy everything first: until then acks=all would be refused, and
        consumers would see nothing new.
        """
        return min(self.min_insync(settled_count), settled_count)

    def elr_below(self, settled_count: int) -> int:
        """Returns below how many in-sync replicas those that leave are eligible to lead (KIP-966): 0, so
        never, where acks=all does not wait for the fsync. Then a replica that crashes has lost something.
        """
        return self.least_in_sync(settled_count) if self.acks_all_waits_for_fsync else 0


class BrokerConfig:
    """The broker's own settings; `overrides` are those set, by Kafka's names. Raises `ConfigError`."""

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        self.overrides = dict(overrides or {})
        for name, text in self.overrides.items():
            if name not in BROKER_SETTINGS:
                hint = question(name, BROKER_SETTINGS)
                raise ConfigError(f"there is no broker setting {name!r}{hint} (see `--help-settings`)")
            BROKER_SETTINGS[name].parse(text)
        self._values = {name: setting.parse(self.text(name)) for name, setting in BROKER_SETTINGS.items()}

    def text(self, name: str) -> str:
        return self.overrides.get(name, BROKER_SETTINGS[name].default)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Parses a topic's own settings over this broker's. Raises `ConfigError`."""
        check_topic_config(overrides)

        def value(name: str) -> Any:
            setting = TOPIC_SETTINGS[name]
            inherited = self.text(setting.inherits_from) if setting.inherits_from else setting.default
            return setting.parse(overrides.get(name, inherited))

        is_min_insync_chosen = MIN_INSYNC in overrides or MIN_INSYNC in self.overrides
        policy: CleanupPolicy = value(cleanup.NAME)
        return TopicConfig(
            log=LogConfig(
                segment_bytes=value("segment.bytes"),
                segment_ms=value("segment.ms"),
                retention_ms=value("retention.ms") if policy.deletes else UNLIMITED,
                retention_bytes=value("retention.bytes") if policy.deletes else UNLIMITED,
                flush_messages=_unless_max(value("flush.messages")),
                flush_ms=_unless_max(value("flush.ms")),
                producer_expiration_ms=self["producer.id.expiration.ms"],
            ),
            max_message_bytes=value("max.message.bytes"),
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            mirror=value("headrace.mirror"),
            timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
            checks_records=policy.compacts or value("message.validation") == "records",
            min_insync_replicas=value(MIN_INSYNC) if is_min_insync_chosen else None,
            unclean_leader_election=value("unclean.leader.election.enable"),
            acks_all_waits_for_fsync=value(ACKS_ALL.name) == FLUSHED,
            accepted_gaps=value(gaps.SETTING),
            leader_throttled=value(LEADER_THROTTLED.name),
            follower_throttled=value(FOLLOWER_THROTTLED.name),
            cleanup=policy,
        )


def _unless_max(value: int) -> int | None:
    return None if value == LONG_MAX else value


def check_topic_config(overrides: Mapping[str, str]) -> None:
    """Raises `ConfigError` for a setting that topics do not have, or a value that it cannot have."""
    for name, text in overrides.items():
        if name not in TOPIC_SETTINGS:
            raise ConfigError(f"there is no topic setting {name!r}")
        TOPIC_SETTINGS[name].parse(text)
