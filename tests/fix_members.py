"""Members of a consumer group that read a topic of their own, each stream in a thread.

Fixture: `members`, of a new group over the broker of `one_broker`; they are closed after the test.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fix_broker import BrokerCluster
from fix_fake_log import number_of
from headrace.client import Admin, ConsumerGroup, ConsumerRecord, Producer
from headrace.client.cluster import TopicPartition
from headrace.client.streams import MessageStream
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.session import ZooKeeperSession

WAIT_S = 60


def until(condition: Callable[[], bool], what: str = "it", wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {wait_s:g} s"
        time.sleep(0.02)


class Members:
    """Members of one group that read a topic of four partitions, each stream in a thread of its own."""

    def __init__(self, cluster: BrokerCluster, partitions: int = 4) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.topic = f"group-{uuid.uuid4().hex[:8]}"
        self.name = f"readers-{uuid.uuid4().hex[:8]}"
        self.groups: list[ConsumerGroup] = []
        self.got: list[list[ConsumerRecord]] = []  # one list per member
        self.published = 0
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(self.topic, partitions)

    def publish(self, count: int) -> None:
        with Producer(self.cluster.bootstrap) as producer:
            for _ in range(count):
                producer.send(self.topic, b"%d" % self.published, partition=self.published % self.partitions)
                self.published += 1

    def make(self, **options: Any) -> ConsumerGroup:
        options = {
            "consumer_options": {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100},
            "session_timeout_ms": 2000,
            **options,
        }
        group = ConsumerGroup(
            self.cluster.zookeeper.hosts, self.cluster.bootstrap, self.name, [self.topic], **options
        )
        self.groups.append(group)
        return group

    def join(self, streams: int = 1, leave_after: int | None = None, **options: Any) -> ConsumerGroup:
        """A member that reads all its streams, and leaves after `leave_after` messages."""
        group = self.make(**options)
        got: list[ConsumerRecord] = []
        self.got.append(got)

        def work(stream: MessageStream) -> None:
            for message in stream:
                got.append(message)
                if len(got) == leave_after:
                    break
            if leave_after:
                group.close()

        for stream in group.streams(streams):
            threading.Thread(target=work, args=(stream,), daemon=True).start()
        return group

    def numbers(self) -> list[int]:
        return [number_of(message) for got in self.got for message in got]

    def shares(self) -> list[TopicPartition]:
        return sorted(key for group in self.groups for keys in group.assignment.values() for key in keys)

    def until_shared(self) -> None:
        everything = [(self.topic, partition) for partition in range(4)]
        until(lambda: self.shares() == everything, "an even share")

    def offsets(self) -> dict[TopicPartition, int]:
        with ZooKeeperSession(self.cluster.zookeeper.hosts) as session:
            return ConsumerRegistry(session, self.name).all_offsets()

    def ends(self) -> dict[TopicPartition, int]:
        with Admin(self.cluster.bootstrap) as admin:
            found = admin.list_offsets(self.topic)
        return {(self.topic, partition): at.offset for partition, at in found.items() if at.offset}

    def close(self) -> None:
        for group in self.groups:
            group.close()


@pytest.fixture
def members(one_broker: BrokerCluster) -> Iterator[Members]:
    with contextlib.closing(Members(one_broker)) as made:
        yield made
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("group-")]
