"""What comes and goes while a site runs: clients, groups, topics, schemas, connections.

A visitor is a process that makes one kind of visit again and again, as services, people and monitors do for
months. Each visit ends as it should end: what it opened is closed, what it created is deleted.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import AdminClient

from headrace.client import Admin, Consumer, ConsumerGroup, Producer
from headrace.events import EventPublisher
from headrace.registry.client import SchemaRegistryClient

TOPIC: Final = "visited"
PARTITIONS: Final = 4
VALUE: Final = b"v" * 200
RECORDS: Final = 5
FLUSH_MAX_S: Final = 30.0
ANSWER_MAX_S: Final = 20.0
POLL_S: Final = 0.1
SUBJECTS: Final = 100
API_VERSIONS: Final = struct.Struct(">ihhih")


@dataclass(frozen=True)
class Place:
    """The addresses of the site that is visited. `pages`: of its units, for people and for Prometheus."""

    bootstrap: str
    analysis_bootstrap: str
    zookeeper: str
    registry_url: str
    pages: tuple[str, ...]


Visit = Callable[[int], None]


class Kind(NamedTuple):
    """One kind of visit: makes the call that visits once, and the pause between two visits."""

    make: Callable[[Place], Visit]
    pause_s: float


def _producers(place: Place) -> Visit:
    def visit(_: int) -> None:
        producer = Producer(place.bootstrap)
        for number in range(RECORDS):
            producer.send(TOPIC, VALUE, key=b"%d" % number)
        producer.flush(FLUSH_MAX_S)
        producer.close(FLUSH_MAX_S)

    return visit


def _librdkafka_producers(place: Place) -> Visit:
    def visit(_: int) -> None:
        producer = LibrdkafkaProducer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
        for _number in range(RECORDS):
            producer.produce(TOPIC, VALUE)
        if left := producer.flush(FLUSH_MAX_S):
            raise TimeoutError(f"{left} records were not acknowledged within {FLUSH_MAX_S:.0f} s")

    return visit


def _publishers(place: Place) -> Visit:
    event = {"remote_host": "192.0.2.7", "method": "GET", "path": "/", "status": 200}

    def visit(number: int) -> None:
        with EventPublisher(
            datacenter="east",
            service="visitor",
            server=f"server-{number % 20}",
            bootstrap=place.bootstrap,
            registry_url=place.registry_url,
            journal=False,
        ) as publisher:
            for _ in range(RECORDS):
                publisher.publish("page-view", event)

    return visit


def _consumers(place: Place) -> Visit:
    def visit(number: int) -> None:
        consumer = Consumer(place.bootstrap, auto_offset_reset="earliest")
        consumer.assign([(TOPIC, number % PARTITIONS)])
        consumer.poll(POLL_S)
        consumer.close()

    return visit


def _groups(place: Place) -> Visit:
    """Groups by Kafka's protocol: a member joins, reads, commits and leaves; then the group is deleted."""
    admin = AdminClient({"bootstrap.servers": place.bootstrap})

    def visit(number: int) -> None:
        group = f"group-{number}"
        consumer = LibrdkafkaConsumer(
            {
                "bootstrap.servers": place.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 10_000,
                "queued.max.messages.kbytes": 100,
            }
        )
        consumer.subscribe([TOPIC])
        try:
            _first_message(consumer)
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        _delete_group(admin, group)

    return visit


def _first_message(consumer: Any) -> None:
    deadline_s = time.monotonic() + ANSWER_MAX_S
    while time.monotonic() < deadline_s:
        message = consumer.poll(POLL_S)
        if message is not None and not message.error():
            return
    raise TimeoutError(f"no message of {TOPIC!r} within {ANSWER_MAX_S:.0f} s")


def _delete_group(admin: AdminClient, group: str) -> None:
    for answer in admin.delete_consumer_groups([group]).values():
        answer.result(ANSWER_MAX_S)


def _paper_groups(place: Place) -> Visit:
    """The paper's groups, which coordinate through ZooKeeper."""
    admin = AdminClient({"bootstrap.servers": place.bootstrap})

    def visit(number: int) -> None:
        group = ConsumerGroup(
            zookeeper=place.zookeeper,
            bootstrap=place.bootstrap,
            group=f"paper-{number}",
            topics=[TOPIC],
            consumer_options={"auto_offset_reset": "earliest"},
        )
        try:
            next(iter(group.streams(1)[0]))
            group.commit()
        finally:
            group.close()
        _delete_group(admin, f"paper-{number}")

    return visit


def _topics(place: Place) -> Visit:
    """A topic is created, written, copied to analysis, and deleted in both datacenters."""

    def visit(number: int) -> None:
        topic = f"passing-{number}"
        with Admin(place.bootstrap) as east, Admin(place.analysis_bootstrap) as analysis:
            east.create_topic(topic, 2)
            producer = Producer(place.bootstrap)
            for _ in range(RECORDS):
                producer.send(topic, VALUE)
            producer.close(FLUSH_MAX_S)
            wait_for_copy(analysis, topic)
            east.delete_topic(topic)
            analysis.delete_topic(topic)

    return visit


def wait_for_copy(analysis: Admin, topic: str) -> None:
    """Waits until the mirror has made its copy of the topic. Raises `TimeoutError`."""
    deadline_s = time.monotonic() + ANSWER_MAX_S
    while topic not in analysis.topics():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"topic {topic!r} was not copied to analysis within {ANSWER_MAX_S:.0f} s")
        time.sleep(POLL_S)


def _configs(place: Place) -> Visit:
    def visit(number: int) -> None:
        with Admin(place.bootstrap) as admin:
            admin.alter_configs(TOPIC, {"retention.ms": str(86_400_000 + number)})

    return visit


def _schemas(place: Place) -> Visit:
    def visit(number: int) -> None:
        name = f"Visitor{number % SUBJECTS}"
        fields = [{"name": "number", "type": "long"}]
        with SchemaRegistryClient(place.registry_url) as registry:
            registry.register(f"{name}-value", {"type": "record", "name": name, "fields": fields})

    return visit


def _connections(place: Place) -> Visit:
    """Connections that say nothing, half a request, nonsense, or leave before their answer."""
    host, port = place.bootstrap.split(",")[0].rsplit(":", 1)

    def visit(number: int) -> None:
        request = API_VERSIONS.pack(API_VERSIONS.size - 4 + 100, 18, 0, number & 0x7FFFFFFF, -1)
        whole = API_VERSIONS.pack(API_VERSIONS.size - 4, 18, 0, number & 0x7FFFFFFF, -1)
        for sent in (b"", request, whole, os.urandom(40)):
            with socket.create_connection((host, int(port)), ANSWER_MAX_S) as connection:
                connection.sendall(sent)

    return visit


def _pages(place: Place) -> Visit:
    def visit(number: int) -> None:
        url = place.pages[number % len(place.pages)]
        with urllib.request.urlopen(url, timeout=ANSWER_MAX_S) as answer:
            answer.read()

    return visit


KINDS: Final[dict[str, Kind]] = {
    "producers": Kind(_producers, 1.0),
    "librdkafka producers": Kind(_librdkafka_producers, 2.0),
    "publishers": Kind(_publishers, 2.0),
    "consumers": Kind(_consumers, 0.5),
    "groups": Kind(_groups, 1.0),
    "paper's groups": Kind(_paper_groups, 2.0),
    "topics": Kind(_topics, 2.0),
    "settings": Kind(_configs, 2.0),
    "schemas": Kind(_schemas, 1.0),
    "connections": Kind(_connections, 0.5),
    "pages": Kind(_pages, 0.2),
}
