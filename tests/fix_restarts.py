"""Brokers that are restarted one after another while a topic of three replicas is written.

Owns `brokers_of`, which starts them; `slow_topic`, whose replicas take seconds to fetch what they missed; and
`watched`, which writes while a broker is away, so that it misses something, and notes how many replicas are
in sync.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from fix_agent import HOST, RunningAgent, eventually
from fix_ports import free_port
from headrace.client import Admin, Producer
from headrace.reassignment.throttling import FOLLOWER_RATE, FOLLOWER_REPLICAS

TOPIC: Final = "clicks"
BROKERS: Final = (1, 2, 3)
NAMES: Final = [f"broker-{broker_id}" for broker_id in BROKERS]
VALUE: Final = bytes(100_000)
LOOK_EVERY_S: Final = 0.02


def brokers_of(agent: RunningAgent) -> list[str]:
    """Makes ZooKeeper and the brokers units of an agent; returns where the brokers listen."""
    zookeeper = f"{HOST}:{free_port(HOST)}"
    listens = [f"{HOST}:{free_port(HOST)}" for _ in BROKERS]
    common = {"datacenter": "east", "zookeeper": zookeeper}
    agent.put_all({"zookeeper": {"kind": "zookeeper", "datacenter": "east", "listen": zookeeper}})
    agent.put_all(
        {
            name: {"kind": "broker", "broker_id": broker_id, "listen": listen, **common}
            for name, broker_id, listen in zip(NAMES, BROKERS, listens, strict=True)
        }
    )
    return listens


def isr(admin: Admin) -> tuple[int, ...]:
    return admin.topic(TOPIC).partitions[0].isr


def slow_topic(bootstrap: Sequence[str], bytes_per_s: int) -> None:
    """Makes the topic; a replica that is not in sync fetches so many bytes a second."""
    with Admin(bootstrap) as admin:
        admin.create_topic(TOPIC, 1, replication_factor=len(BROKERS), config={FOLLOWER_REPLICAS: "*"})
        eventually(lambda: len(isr(admin)) == len(BROKERS))
        for broker_id in BROKERS:
            admin.alter_broker_configs(broker_id, {FOLLOWER_RATE: str(bytes_per_s)})


@contextmanager
def watched(bootstrap: Sequence[str]) -> Iterator[list[int]]:
    """Yields a list that grows: how many replicas were in sync at each look."""
    in_sync: list[int] = []
    is_over = threading.Event()

    def publish_while_one_is_away() -> None:
        with Producer(bootstrap, acks="all") as producer, Admin(bootstrap) as admin:
            while not is_over.wait(LOOK_EVERY_S):
                if len(admin.describe_cluster().brokers) < len(BROKERS):
                    producer.send(TOPIC, VALUE, partition=0)

    def look() -> None:
        with Admin(bootstrap) as admin:
            while not is_over.wait(LOOK_EVERY_S):
                in_sync.append(len(isr(admin)))

    threads = [threading.Thread(target=each) for each in (publish_while_one_is_away, look)]
    for thread in threads:
        thread.start()
    try:
        yield in_sync
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
