"""The settings of groups and their offsets: Kafka's names. `config` has all the others."""

from __future__ import annotations

from typing import Final

from headrace.broker.settings.setting import INT, INT_MAX, LONG, LONG_MAX, Setting

RETENTION: Final = "offsets.retention.minutes"
RETENTION_CHECK: Final = "offsets.retention.check.interval.ms"
NODES_MAX: Final = "headrace.groups.nodes.max"
BYTES_MAX: Final = "headrace.groups.bytes.max"

GROUP_SETTINGS: Final = (
    Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        "500",
        "how long an empty group waits for more members",
        0,
        INT_MAX,
    ),
    # ZooKeeper accepts at most 1 MiB in one write.
    Setting("offset.metadata.max.bytes", INT, "4096", "metadata stored with an offset", 0, 512 * 1024),
    Setting(
        RETENTION,
        INT,
        "10080",
        "how long a group without members keeps its offsets after its last commit",
        1,
        INT_MAX,
    ),
    Setting(RETENTION_CHECK, LONG, "600000", "how often such groups are looked for", 1, LONG_MAX),
    # A node takes some 800 bytes of ZooKeeper's heap, of which 128 MiB are the default.
    Setting(
        NODES_MAX,
        INT,
        "75000",
        "ZooKeeper's nodes of all groups (an offset is one, its metadata another), beyond which no new offset"
        " is stored; -1: no bound",
        -1,
        INT_MAX,
    ),
    Setting(
        BYTES_MAX,
        LONG,
        "16777216",
        "data of these nodes, beyond which no new offset and no longer metadata is stored; -1: no bound",
        -1,
        LONG_MAX,
    ),
    # Kafka's default is 6,000 ms.
    Setting(
        "group.min.session.timeout.ms", INT, "1000", "shortest session timeout of a group member", 1, INT_MAX
    ),
    Setting(
        "group.max.session.timeout.ms",
        INT,
        "1800000",
        "longest session timeout of a group member",
        1,
        INT_MAX,
    ),
    Setting("group.max.size", INT, "1000", "members of one group", 1, 10_000),
)
