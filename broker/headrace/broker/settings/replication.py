"""The settings of replication: Kafka's names and defaults, and one of ours. `config` has all the others."""

from __future__ import annotations

from typing import Final

from headrace.broker.settings.setting import BOOLEAN, INT, INT_MAX, LONG, LONG_MAX, STRING, THROTTLED, Setting

REPLICAS_MAX: Final = 32767  # Kafka's protocol gives a replication factor 16 bits
DEFAULT_FACTOR: Final = 3  # any one broker may die, and another one while that one is away
MIN_INSYNC: Final = "min.insync.replicas"
_MIN_INSYNC_MAX: Final = 2  # of a topic that says nothing itself
FLUSHED: Final = "flushed"
REPLICATED: Final = "replicated"
LEADER_ALONE: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

REPLICATION_SETTINGS: Final = (
    Setting(
        "default.replication.factor",
        INT,
        str(DEFAULT_FACTOR),
        "replicas of a topic created without a number; one on each broker, if they are fewer",
        1,
        REPLICAS_MAX,
    ),
    Setting(
        MIN_INSYNC,
        INT,
        str(_MIN_INSYNC_MAX),
        "with fewer in-sync replicas acks=all is refused, and consumers see nothing new; where it is not "
        "set: 2 for a topic of three replicas or more, else 1",
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
        "replica.selector.class",
        STRING,
        LEADER_ALONE,
        "which replica serves consumers that name their rack (client.rack): the leader alone, or an in-sync "
        "replica of that rack",
        choices=(LEADER_ALONE, RACK_AWARE),
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


def default_min_insync(replica_count: int) -> int:
    """Returns `min.insync.replicas` of a partition where neither its topic nor its broker sets it.

    One replica fewer than there are, so that any one broker may be away; at most 2, at least 1.
    """
    return max(1, min(_MIN_INSYNC_MAX, replica_count - 1))


ACKS_ALL: Final = Setting(
    "headrace.acks.all",
    STRING,
    FLUSHED,
    "what acks=all waits for: flushed: the fsync of every in-sync replica; replicated: that each has "
    "received it, as in Apache Kafka. Then a power cut of all replicas at once may lose acknowledged records",
    choices=(FLUSHED, REPLICATED),
)
LEADER_THROTTLED: Final = Setting(
    "leader.replication.throttled.replicas",
    THROTTLED,
    "",
    "PARTITION:BROKER,…, or *: leaders that send to replicas that are not in sync no faster than "
    "leader.replication.throttled.rate of their broker",
)
FOLLOWER_THROTTLED: Final = Setting(
    "follower.replication.throttled.replicas",
    THROTTLED,
    "",
    "PARTITION:BROKER,…, or *: replicas that fetch, while they are not in sync, no faster than "
    "follower.replication.throttled.rate of their broker",
)
LEADER_RATE: Final = Setting(
    "leader.replication.throttled.rate",
    LONG,
    str(LONG_MAX),
    "bytes a second that this broker sends to replicas of leader.replication.throttled.replicas that are not "
    "in sync",
    0,
    LONG_MAX,
)
FOLLOWER_RATE: Final = Setting(
    "follower.replication.throttled.rate",
    LONG,
    str(LONG_MAX),
    "bytes a second that this broker fetches for replicas of follower.replication.throttled.replicas that "
    "are not in sync",
    0,
    LONG_MAX,
)
