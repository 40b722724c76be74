"""What of an auditor's counts was ever taken back, in case its audit topic is deleted and made again. Pure.

A recount takes back what the store has folded, once it is read. If the topic that holds it is deleted before,
nobody else knows of it: the store would believe those counts for good.
"""

from __future__ import annotations

from uuid import UUID

from headrace.audit.topic.records import ReceivedRecord
from headrace.audit.topic.recounts import RecountRecord
from headrace.wire.topic_names import TopicPartition


class TakenBack:
    """Of one auditor. It knows its own recounts, those that people asked for, and those in the part of the
    audit topic that it reads when it starts.
    """

    def __init__(self) -> None:
        self.addresses: dict[TopicPartition, int] = {}
        """From which address on each partition's counts were taken back; the lowest one."""
        self._audit_topic_id: UUID | None = None

    def learn(self, received: ReceivedRecord, datacenter: str) -> None:
        """Notes a recount that is read in the audit topic, if it is about counts of this auditor."""
        record = received.record
        if isinstance(record, RecountRecord) and received.datacenter == datacenter:
            self.note((record.topic, record.log_partition), record.from_address)

    def note(self, key: TopicPartition, address: int) -> None:
        """Notes that counts from this address on were taken back."""
        self.addresses[key] = min(address, self.addresses.get(key, address))

    def forget(self, key: TopicPartition) -> None:
        """Forgets a partition that is gone."""
        self.addresses.pop(key, None)

    def is_in_another_topic(self, topic_id: UUID | None) -> bool:
        """Whether the audit topic is another one than `said_in` noted; None: there is none now."""
        return self._audit_topic_id is not None and topic_id not in (None, self._audit_topic_id)

    def said_in(self, topic_id: UUID | None) -> None:
        """Notes the topic in which all of it is said."""
        self._audit_topic_id = topic_id or self._audit_topic_id
