"""What there is to mirror, and making room for it at the target: topics, partitions, and the map between
them.

Blocking calls of the manager's thread. A topic keeps its name; its target partitions are handed out to
(datacenter, source partition) in order of arrival, by `coordination.mirrors`, and never change hands.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final

from headrace.client.admin import Admin
from headrace.client.errors import BrokerError
from headrace.coordination.mirrors import MirrorMap
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

MIRROR_SETTING: Final = "headrace.mirror"
NEVER_MIRRORED: Final = re.compile(r"__.*")  # Kafka's own, such as __consumer_offsets


class NotAMirrorError(Exception):
    """The target has a topic of that name that is no mirror's copy; the message says the way out."""


def wanted(names: Iterable[str], include: re.Pattern[str], exclude: re.Pattern[str] | None) -> list[str]:
    """The topics to mirror, of all that the source has."""
    return sorted(
        name
        for name in names
        if include.fullmatch(name)
        and not NEVER_MIRRORED.fullmatch(name)
        and not (exclude is not None and exclude.fullmatch(name))
    )


class TargetTopics:
    """Makes mirror partitions at the target."""

    def __init__(self, datacenter: str, target: Admin, mirrors: MirrorMap) -> None:
        self._datacenter = datacenter
        self._target = target
        self._mirrors = mirrors

    def prepare(self, topic: str, partition_count: int) -> list[int]:
        """The target partition of each source partition 0, 1, …; all of them exist on return.

        Raises `NotAMirrorError`, `ClientError`, `CoordinationError`.
        """
        self._check(topic)
        numbers = self._mirrors.claim(self._datacenter, topic, partition_count)
        total = len(self._mirrors.sources(topic))
        existing = self._target.topics().get(topic)
        if existing is None:
            settings = {MIRROR_SETTING: "true"}
            _unless(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                lambda: self._target.create_topic(topic, total, config=settings),
            )
            existing = self._target.topic(topic)
            self._check(topic)
        if len(existing.partitions) < total:
            _unless(ErrorCode.INVALID_PARTITIONS, lambda: self._target.create_partitions(topic, total))
        return numbers

    def _check(self, topic: str) -> None:
        if topic not in self._target.topics():
            return
        setting = self._target.describe_configs(topic).get(MIRROR_SETTING)
        if setting is None or setting.value != "true":
            raise NotAMirrorError(
                f"the target has a topic {topic} of its own ({MIRROR_SETTING} is not true): exclude it "
                "here, or delete "
                "it there"
            )


def _unless(code: ErrorCode, act: Callable[[], object]) -> None:
    """Do it; another mirror may have done it meanwhile."""
    try:
        act()
    except BrokerError as error:
        if error.code is not code:
            raise
