"""Real clients as members of a group of Kafka's own protocol: `make_member`.

Every member commits right after each poll, so a record that is delivered twice is a defect.
"""

import uuid
from pathlib import Path
from typing import NamedTuple, Protocol

import confluent_kafka
import kafka
import pytest

from fix_clients import got_of, parse_java_row
from fix_java import JavaPeer
from fix_samples import Got

BITE = 700
"""Records per poll: fewer than a batch holds, so that commits fall inside batches."""
POLL_S = 0.1
KAFKA_PYTHON_POLL_S = 2.0


class Place(NamedTuple):
    """What a member joins."""

    bootstrap: str
    group: str
    topic: str
    session_timeout_ms: int = 10_000


Row = tuple[int, Got]


class Member(Protocol):
    """One consumer of a group. `poll` commits the records, then returns them."""

    def poll(self) -> list[Row]: ...

    def assigned(self) -> set[int]: ...

    def leave(self) -> None: ...


class ConfluentMember:
    def __init__(self, place: Place) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": place.bootstrap,
                "group.id": place.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": place.session_timeout_ms,
                "heartbeat.interval.ms": 300,
            }
        )
        self._consumer.subscribe([place.topic])

    def poll(self) -> list[Row]:
        rows = []
        for message in self._consumer.consume(BITE, POLL_S):
            assert message.error() is None, message.error()
            partition = message.partition()
            assert partition is not None
            rows.append((partition, got_of(message)))
        if rows:
            self._consumer.commit(asynchronous=False)
        return rows

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def leave(self) -> None:
        self._consumer.close()


class KafkaPythonMember:
    def __init__(self, place: Place) -> None:
        self._consumer = kafka.KafkaConsumer(
            place.topic,
            bootstrap_servers=place.bootstrap,
            group_id=place.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=place.session_timeout_ms,
            heartbeat_interval_ms=300,
        )

    def poll(self) -> list[Row]:
        # If a poll ends just before the group responds, the next one joins again: on a slow machine short
        # polls would do so forever.
        answer = self._consumer.poll(timeout_ms=int(KAFKA_PYTHON_POLL_S * 1000), max_records=BITE)
        rows = [
            (where.partition, Got(record.offset, record.timestamp, record.key, record.value))
            for where, records in answer.items()
            for record in records
        ]
        if rows:
            self._consumer.commit()
        return rows

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def leave(self) -> None:
        self._consumer.close(autocommit=False)


class JavaMember:
    def __init__(self, peer: JavaPeer, scratch: Path, place: Place) -> None:
        self._peer = peer
        self._name = uuid.uuid4().hex
        self._lines = scratch / f"{self._name}.out"
        self._assigned: set[int] = set()
        settings = {
            "bootstrap.servers": place.bootstrap,
            "group.id": place.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "max.poll.records": BITE,
            "session.timeout.ms": place.session_timeout_ms,
            "heartbeat.interval.ms": 300,
        }
        peer("join", settings, member=self._name, topic=place.topic)

    def poll(self) -> list[Row]:
        answer = self._peer("poll", member=self._name, wait_ms=int(POLL_S * 1000), records=self._lines)
        self._assigned = {int(each) for each in answer["assigned"].split(",") if each}
        rows = []
        for line in self._lines.read_text().splitlines():
            partition, rest = line.split(" ", 1)
            rows.append((int(partition), parse_java_row(rest)))
        if rows:
            self._peer("commit", member=self._name)
        return rows

    def assigned(self) -> set[int]:
        return self._assigned

    def leave(self) -> None:
        self._peer("leave", member=self._name)


def make_member(kind: str, place: Place, request: pytest.FixtureRequest, scratch: Path) -> Member:
    """`kind`: a name of `CLIENT_NAMES`, but kcat's."""
    match kind:
        case "confluent-kafka":
            return ConfluentMember(place)
        case "kafka-python":
            return KafkaPythonMember(place)
        case _:
            return JavaMember(request.getfixturevalue("java_peer"), scratch, place)
