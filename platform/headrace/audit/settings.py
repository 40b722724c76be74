"""The settings of an auditor, and the sources of the partitions that are copies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from headrace.audit.counting import SourcePartition
from headrace.audit.records import AUDIT_TOPIC
from headrace.audit.tally import BUCKET_DEFAULT_MS
from headrace.coordination.errors import CoordinationError
from headrace.coordination.mirrors import MirrorMap

EVERY_DEFAULT_S: Final = 5.0


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


def sources_of(mirrors: MirrorMap, topics: Iterable[str]) -> dict[str, list[SourcePartition]]:
    """Returns mirrored topic → the source of each of its partitions."""
    mirrored = set(mirrors.topics())
    return {
        topic: [SourcePartition(*source) for source in mirrors.sources(topic)]
        for topic in topics
        if topic in mirrored
    }


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
