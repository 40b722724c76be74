"""The settings of an auditor, and the sources of the partitions that are copies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.audit.batches.tally import BUCKET_DEFAULT_MS
from headrace.audit.counting.partition_counter import CountedPartition, SourcePartition, counted_partition
from headrace.audit.topic.logs_read import named_id
from headrace.audit.topic.records import AUDIT_TOPIC
from headrace.client.cluster import TopicInfo
from headrace.coordination.errors import CoordinationError
from headrace.coordination.mirrors import MirrorMap

EVERY_DEFAULT_S: Final = 5.0
NOT_AUDITED: Final = re.compile(r"_.*")  # the audit's own topics, Kafka's internal ones


@dataclass(frozen=True, slots=True)
class AuditorSettings:
    """The settings of one auditor. It counts the topics that match `topics` and reports to `audit_topic`."""

    datacenter: str
    bootstrap: str
    registry_url: str
    audit_topic: str
    topics: re.Pattern[str] = re.compile(".*")
    every_s: float = EVERY_DEFAULT_S
    bucket_ms: int = BUCKET_DEFAULT_MS

    def counts(self, topic: str) -> bool:
        """Whether a topic is to be counted."""
        return bool(self.topics.fullmatch(topic)) and not NOT_AUDITED.fullmatch(topic)


def counted_partitions(
    settings: AuditorSettings, mirrors: MirrorMap | None, topics: Mapping[str, TopicInfo]
) -> Iterator[CountedPartition]:
    """Yields the partitions to count, by topic; no copies whose source is not known yet. Raises
    `CoordinationError`.
    """
    names = sorted(filter(settings.counts, topics))
    sources = None if mirrors is None else sources_of(mirrors, names)
    for name in names:
        for number in topics[name].partitions:
            topic_id = named_id(topics[name].topic_id)
            found = counted_partition(settings.datacenter, name, number, sources, topic_id)
            if found is not None:
                yield found


def sources_of(mirrors: MirrorMap, topics: Iterable[str]) -> dict[str, list[SourcePartition]]:
    """Returns mirrored topic → the source of each of its partitions."""
    mirrored = set(mirrors.topics())
    found: dict[str, list[SourcePartition]] = {}
    for topic in topics:
        if topic in mirrored:
            sources, ids = mirrors.sources_with_ids(topic)
            found[topic] = [
                SourcePartition(*source, named_id(ids.get(number))) for number, source in enumerate(sources)
            ]
    return found


def audit_source(mirrors: MirrorMap | None) -> Callable[[str, int], str | None]:
    """Returns a function of an audit topic and partition: the datacenter that it is a copy of.

    It returns None if that is not known, and asks ZooKeeper only for partitions that it does not know.
    """
    known: dict[int, str] = {}

    def source_of(topic: str, partition: int) -> str | None:
        if mirrors is None or topic != AUDIT_TOPIC:
            return None
        if partition not in known:
            try:
                known.update(enumerate(each.datacenter for each in mirrors.sources(topic)))
            except CoordinationError:
                return None
        return known.get(partition)

    return source_of
