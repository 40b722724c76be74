"""The ends of logs as a heartbeat may tell them: none is older than verdicts rely on."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.audit.counting.partition_counter import PartitionCounter
from headrace.audit.times import END_STALE_MAX_MS
from headrace.client import Consumer
from headrace.wire.topic_names import TopicPartition


def known_ends(
    counters: Mapping[TopicPartition, PartitionCounter], consumer: Consumer
) -> list[tuple[PartitionCounter, int]]:
    """Returns the partitions that a heartbeat names, with the end addresses of their logs.

    One that is counted to the end which the last answered fetch told is left out if that fetch is too old:
    its leader may have stored events since that nobody can fetch now, and a heartbeat would say that they are
    not there. Verdicts then go by the last heartbeat that named it.
    """
    named = []
    for key, counter in counters.items():
        end = consumer.high_watermark(*key)
        if end is None:
            continue
        is_recent = consumer.high_watermark_age_s(*key) * 1_000 < END_STALE_MAX_MS
        if is_recent or counter.counted_to < end:
            named.append((counter, end))
    return named
