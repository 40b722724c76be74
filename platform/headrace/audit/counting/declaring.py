"""What the topics of an auditor's own cluster declare about their producers, read every few seconds; and
which of them are deleted.

Owns what was published already, so that only news is published again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.logs_read import named_id
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, ReceivedRecord
from headrace.client import Admin
from headrace.client.errors import ClientError
from headrace.coordination.declared import HISTORY, PRODUCERS, history_of

logger = logging.getLogger(__name__)

READ_PAUSE_S: Final = 10.0
GONE_S: Final = 30.0
"""For how long no broker may have named a topic that is said to be deleted: one that starts names none."""


class Declarations:
    """The declarations of one cluster's topics. One thread uses it."""

    def __init__(self, admin: Admin, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._clock_s = clock_s
        self._read_after_s = 0.0
        self._published: dict[str, TopicDeclaration] = {}
        self._counted: dict[str, str] = {}
        """The ids of topics that were counted, by name, until they are said to be deleted."""
        self._missing_s: dict[str, float] = {}

    def learn(self, received: ReceivedRecord, datacenter: str) -> None:
        """Takes what this datacenter's auditor said before it started anew."""
        record = received.record
        if received.datacenter != datacenter:
            return
        if isinstance(record, HeartbeatRecord) and record.tier == DATACENTER_TIER:
            self._counted.update((at.topic, at.source_topic_id) for at in record.positions)
        if isinstance(record, TopicDeclaration) and record.deleted:
            self._counted = {
                name: topic_id
                for name, topic_id in self._counted.items()
                if (name, topic_id) != (record.topic, record.topic_id)
            }

    def gone(self, existing: Mapping[str, UUID]) -> list[TopicDeclaration]:
        """Returns that topics are deleted which were counted, and are not among those that a broker has just
        named, nor were for `GONE_S`, and of which no broker has a replica. Call it with each answer of a
        broker.
        """
        now_s, found = self._clock_s(), []
        self._missing_s = {name: at_s for name, at_s in self._missing_s.items() if name not in existing}
        missing = [name for name in self._counted if name not in existing]
        due = [name for name in missing if now_s - self._missing_s.setdefault(name, now_s) >= GONE_S]
        held = self._held() if due else None
        for name in due:
            if held is None or name in held:
                self._missing_s[name] = now_s
                continue
            del self._missing_s[name]
            if topic_id := self._counted.pop(name):
                found.append(TopicDeclaration(name, topic_id, (), deleted=True))
        return found

    def _held(self) -> set[str] | None:
        """Returns the topics of which any broker has a replica; None if one does not answer. A broker that
        started while a topic's node was damaged does not name it, and others serve it still.
        """
        try:
            brokers = self._admin.describe_cluster().brokers
            directories = [each for broker in brokers for each in self._admin.describe_log_dirs(broker)]
        except ClientError as error:
            logger.info("whether a topic is deleted is not known: %s", error)
            return None
        return {topic for directory in directories for topic, _ in directory.replicas}

    def news(self, topics: Mapping[str, UUID], counts: Mapping[str, int]) -> list[TopicDeclaration]:
        """Returns the declarations of `topics` (name → id) that it has not returned yet, or that changed.
        `counts`: how many partitions they have.

        Reads the settings of topics that it does not know at once, of the others every `READ_PAUSE_S`. Raises
        `ClientError`; the next call then returns what this one did not.
        """
        self._counted.update((name, named_id(topic_id)) for name, topic_id in topics.items())
        self._published = {
            name: known for name, known in self._published.items() if str(topics.get(name)) == known.topic_id
        }
        is_due = self._clock_s() >= self._read_after_s
        wanted = topics if is_due else [name for name in topics if name not in self._published]
        settings = self._admin.topic_settings(wanted, (PRODUCERS, HISTORY))
        if is_due:
            self._read_after_s = self._clock_s() + READ_PAUSE_S
        found = [
            TopicDeclaration(name, str(topics[name]), history_of(config), partitions=counts.get(name, 0))
            for name, config in settings.items()
        ]
        fresh = self._still_there([each for each in found if self._published.get(each.topic) != each])
        self._published.update((each.topic, each) for each in fresh)
        return fresh

    def _still_there(self, fresh: list[TopicDeclaration]) -> list[TopicDeclaration]:
        """Returns those whose topic was not deleted and created again before its settings were read."""
        if not fresh:
            return []
        topics = self._admin.topics()
        ids = {name: str(info.topic_id) for name, info in topics.items()}
        return [each for each in fresh if ids.get(each.topic) == each.topic_id]
