"""What ZooKeeper does not take in one request is refused before it is sent: the server would end the
session's connection, and with it all its other calls, again at each repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import uuid4

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.broker_configs import BrokerConfigRegistry
from headrace.coordination.documents import CONFIG_MAX_BYTES
from headrace.coordination.errors import TooLargeError
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.coordination.topics import PARTITIONS_PER_CHANGE_MAX, TopicRegistry
from headrace.coordination.transaction import HEAD_BYTES, REQUEST_MAX_BYTES, STEP_BYTES
from headrace.wire.topic_names import TOPIC_NAME_LENGTH_MAX

LONG_NAME: Final = "n" * TOPIC_NAME_LENGTH_MAX
REPLICAS: Final = (1001, 1002, 1003)
LONG_TEXT: Final = " " * CONFIG_MAX_BYTES + "5"  # a number, for whoever parses it


def large_topic(session: ZooKeeperSession) -> None:
    TopicRegistry(session).create(
        LONG_NAME, uuid4(), dict.fromkeys(range(PARTITIONS_PER_CHANGE_MAX), REPLICAS)
    )


def topic_that_grows(session: ZooKeeperSession) -> None:
    """It could not be deleted at once."""
    half = PARTITIONS_PER_CHANGE_MAX // 2
    registry = TopicRegistry(session)
    registry.create(LONG_NAME, uuid4(), dict.fromkeys(range(half), REPLICAS))
    registry.add_partitions(LONG_NAME, dict.fromkeys(range(half, 2 * half), REPLICAS))


def topic_settings(session: ZooKeeperSession) -> None:
    registry = TopicRegistry(session)
    registry.create("t", uuid4(), {0: (1,)})
    registry.change_config("t", lambda _: {"retention.ms": LONG_TEXT})


def new_topics_settings(session: ZooKeeperSession) -> None:
    TopicRegistry(session).create("t", uuid4(), {0: (1,)}, {"retention.ms": LONG_TEXT})


def broker_settings(session: ZooKeeperSession) -> None:
    BrokerConfigRegistry(session).change(1, lambda _: {"leader.replication.throttled.rate": LONG_TEXT})


def one_node(session: ZooKeeperSession) -> None:
    session.transaction().create("/large", b"x" * REQUEST_MAX_BYTES).commit()


@pytest.mark.parametrize(
    "change",
    [large_topic, topic_that_grows, topic_settings, new_topics_settings, broker_settings, one_node],
)
def test_what_is_too_large_is_refused_and_disturbs_nobody(
    zookeeper: ZooKeeperRoom, change: Callable[[ZooKeeperSession], None]
) -> None:
    with zookeeper.session(timeout_s=30.0) as session:
        seen: list[SessionState] = []
        session.on_state(seen.append)
        with pytest.raises(TooLargeError, match=r"/.*: (a change|settings) of \d+ bytes"):
            change(session)
        assert not seen


@pytest.mark.parametrize("count", [1, 4000])
def test_what_just_fits_is_taken(zookeeper: ZooKeeperRoom, count: int) -> None:
    with zookeeper.session(timeout_s=30.0) as session:
        paths = [f"/n{number:04}" for number in range(count)]
        besides = STEP_BYTES + len(zookeeper.chroot) + len(paths[0])
        data = b"x" * ((REQUEST_MAX_BYTES - HEAD_BYTES) // count - besides)
        change = session.transaction()
        for path in paths:
            change.create(path, data)
        change.commit()
        assert len(session.children("/")) == count
