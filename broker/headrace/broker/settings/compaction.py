"""Settings of compacted topics that programs and descriptions of clusters give along with `cleanup.policy`.

Each says how long, or how much of, what could be removed stays at least. Nothing is removed (decision 53), so
all of them are kept. `max.compaction.lag.ms` promises the contrary, so there is no such setting.

Source: https://kafka.apache.org/documentation/#topicconfigs.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.settings.setting import DOUBLE, LONG, LONG_MAX, Setting

COMPACTION_SETTINGS: Final = (
    Setting(
        "delete.retention.ms",
        LONG,
        "86400000",
        "how long tombstones of a compacted topic stay at least: they stay for good",
        0,
        LONG_MAX,
    ),
    Setting(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "how long a record of a compacted topic stays at least: it stays for good",
        0,
        LONG_MAX,
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "the share of a compacted topic that may be superseded records before they are removed: none are",
        0,
        1,
    ),
)
