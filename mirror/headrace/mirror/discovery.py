"""The topics to mirror, and the creation of their mirror partitions at the target.

Blocking calls of the manager's thread. A topic keeps its name. `coordination.mirrors` assigns its target
partitions to (datacenter, source partition) in order of arrival; an assignment never changes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID

from headrace.client.admin import Admin, ConfigEntry
from headrace.client.errors import BrokerError
from headrace.coordination.mirrors import MirrorMap
from headrace.replication.pull import ReplicationError
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

MIRROR_SETTING: Final = "headrace.mirror"
CLEANUP_SETTING: Final = "cleanup.policy"
NEVER_MIRRORED: Final = re.compile(r"__.*")  # Kafka's internal topics, such as __consumer_offsets


class NotAMirrorError(ReplicationError):
    """The target has a topic of that name that is not a mirror's; the message says what to do."""


class CopiedAlreadyError(ReplicationError):
    """The source's topic is copied as that of a datacenter with another name."""

    def __init__(self, topic: str, topic_id: UUID, known: str, partition: int, name: str) -> None:
        super().__init__(
            f"topic {topic} with id {topic_id} is copied as {known}'s already, into partition {partition}: "
            f"this is the same cluster by another name ({name}), and each event would be there twice. Give "
            f"the datacenter its name {known} back"
        )


def wanted(names: Iterable[str], include: re.Pattern[str], exclude: re.Pattern[str] | None) -> list[str]:
    """Returns the topics to mirror, sorted, of all that the source has."""
    return sorted(
        name
        for name in names
        if include.fullmatch(name)
        and not NEVER_MIRRORED.fullmatch(name)
        and not (exclude is not None and exclude.fullmatch(name))
    )


class TargetTopics:
    """Creates mirror partitions at the target, whose retention is the target's. The copy of a topic that is
    compacted is compacted, too: else it would lose the last records of keys that nobody writes any more.
    """

    def __init__(self, datacenter: str, source: Admin, target: Admin, mirrors: MirrorMap) -> None:
        self._datacenter = datacenter
        self._source = source
        self._target = target
        self._mirrors = mirrors

    def prepare(self, topic: str, partition_count: int, topic_id: UUID = NO_UUID) -> list[int]:
        """Returns the target partition of each source partition 0, 1, …, and creates those that are missing.
        `topic_id`: of the source's topic.

        Raises `NotAMirrorError`, `CopiedAlreadyError`, `ClientError`, `CoordinationError`.
        """
        self._check(topic)
        self._check_name(topic, topic_id)
        numbers = self._mirrors.claim(self._datacenter, topic, partition_count)
        total = len(self._mirrors.sources(topic))
        existing = self._target.topics().get(topic)
        if existing is None:
            settings = {MIRROR_SETTING: "true"} | self._cleanup_of(topic)
            _unless(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                lambda: self._target.create_topic(topic, total, config=settings),
            )
            existing = self._target.topic(topic)
            self._check(topic)
        if len(existing.partitions) < total:
            _unless(ErrorCode.INVALID_PARTITIONS, lambda: self._target.create_partitions(topic, total))
        return numbers

    def _cleanup_of(self, topic: str) -> dict[str, str]:
        found = self._source.describe_configs(topic).get(CLEANUP_SETTING)
        return {CLEANUP_SETTING: found.value} if found and found.value and "compact" in found.value else {}

    def copied_ids(self, topic: str) -> dict[int, UUID]:
        """Returns, by target partition, the id of the source's topic that it holds. Raises
        `CoordinationError`.
        """
        return self._mirrors.topic_ids(topic)

    def note_ids(self, topic: str, ids: Mapping[int, UUID]) -> None:
        """Records what target partitions hold from now on. Raises `CoordinationError`."""
        self._mirrors.note_topic_ids(topic, ids)

    def _check_name(self, topic: str, topic_id: UUID) -> None:
        """Checks that the topic is not copied from a datacenter by another name, if nothing is yet from this
        one. Raises `CopiedAlreadyError`.
        """
        sources, ids = self._mirrors.sources_with_ids(topic)
        if any(sources[number].datacenter == self._datacenter for number in ids if number < len(sources)):
            return
        for number, copied in sorted(ids.items()):
            if copied == topic_id != NO_UUID and number < len(sources):
                known = sources[number].datacenter
                raise CopiedAlreadyError(topic, topic_id, known, number, self._datacenter)

    def _check(self, topic: str) -> None:
        if topic not in self._target.topics():
            return
        check_is_mirror(topic, self._target.describe_configs(topic))


def check_is_mirror(topic: str, settings: Mapping[str, ConfigEntry]) -> None:
    """Checks a target's topic by its settings. Raises `NotAMirrorError`."""
    setting = settings.get(MIRROR_SETTING)
    if setting is None or setting.value != "true":
        raise NotAMirrorError(
            f"the target has a topic {topic} of its own ({MIRROR_SETTING} is not true): exclude it "
            "here, or delete it there"
        )


def _unless(code: ErrorCode, change: Callable[[], object]) -> None:
    """Makes a change; ignores `code`, the error if another mirror has made it concurrently."""
    try:
        change()
    except BrokerError as error:
        if error.code is not code:
            raise
