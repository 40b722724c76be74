"""The settings of replication: Kafka's names and defaults, and one of ours. `config` has all the others."""

from __future__ import annotations

from typing import Final

from headrace.broker.setting import BOOLEAN, INT, INT_MAX, LONG, LONG_MAX, STRING, Setting

REPLICAS_MAX: Final = 32767  # Kafka's protocol gives a replication factor 16 bits
FLUSHED: Final = "flushed"
REPLICATED: Final = "replicated"

REPLICATION_SETTINGS: Final = (
    Setting(
        "default.replication.factor",
        INT,
        "1",
        "replicas of a topic created without a number",
        1,
        REPLICAS_MAX,
    ),
    Setting(
        "min.insync.replicas",
        INT,
        "1",
        "with fewer in-sync replicas acks=all is refused, and consumers see nothing new",
        1,
        INT_MAX,
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "whether a replica that is not in sync may lead when no other is left: acknowledged records are lost",
    ),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        "a replica that has not reached its leader's end for so long leaves the in-sync replicas",
        1,
        LONG_MAX,
    ),
    Setting(
        "broker.rack",
        STRING,
        "",
        "the rack of this broker: replicas are spread over racks; by default its host is one",
    ),
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "whether the controller gives partitions back to their preferred leaders, once those are in sync",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "how often it does",
        1,
        LONG_MAX // 1000,
    ),
    Setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "whether a broker that stops first gives its partitions to other in-sync replicas",
    ),
)

ACKS_ALL: Final = Setting(
    "headrace.acks.all",
    STRING,
    FLUSHED,
    "what acks=all waits for: flushed: the fsync of every in-sync replica; replicated: that each has "
    "received it, as in Apache Kafka. Then a power cut of all replicas at once may lose acknowledged records",
    choices=(FLUSHED, REPLICATED),
)
