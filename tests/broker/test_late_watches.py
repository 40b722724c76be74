"""A controller whose watches are late decides by what ZooKeeper holds."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.broker.leadership.config_of import config_of
from headrace.broker.leadership.controller import Controller
from headrace.broker.settings.config import BrokerConfig
from headrace.coordination import znodes
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.election import Reign
from headrace.coordination.handled_brokers import HandledBrokers
from headrace.coordination.topics import TopicRegistry

REIGN = Reign(2, 1, {})


def test_a_topic_of_before_a_registration_gets_a_new_epoch_with_it(zookeeper: ZooKeeperRoom) -> None:
    """The topic was made while its leader was restarted, and the controller has not seen it yet. That broker
    takes epoch 0 for its process of before, and waits for the next one, which nobody else would begin.
    """
    with zookeeper.session() as session:
        topics, registry = TopicRegistry(session), BrokerRegistry(session)
        topics.create("t", uuid.uuid4(), {0: (1, 2)})
        for number in (1, 2):
            registry.register(BrokerRegistration(number, "127.0.0.1", 9092, "east"))
        controller = Controller(
            session, 2, lambda _: None, config_of(BrokerConfig()), rebalance_interval_s=None
        )
        controller.topics_changed({})
        controller.brokers_changed(registry.live())
        controller._act(REIGN)
        state = topics.get("t").partitions[0]
        assert (state.leader, state.leader_epoch, state.isr) == (1, 1, (1, 2))
        handled = HandledBrokers(session)
        assert not handled.new_among(registry.live())
        controller._act(REIGN)  # nobody is new
        assert topics.get("t").partitions[0] == state


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "never-read"])
def test_a_disk_that_was_replaced_while_a_topic_could_not_be_read_is_not_in_sync_afterwards(
    zookeeper: ZooKeeperRoom, is_known: bool
) -> None:
    """The broker counted as handled. With the topic's node mended it led, with an empty log, and all others
    cut off what they had.
    """
    with zookeeper.session() as session:
        topics, registry = TopicRegistry(session), BrokerRegistry(session)
        for name in ("t", "u"):
            topics.create(name, uuid.uuid4(), {0: (2, 1, 3)})
        path = znodes.partition_state("t", 0)
        data = session.get(path).data
        registry.register(BrokerRegistration(1, "127.0.0.1", 9092, "east", directory_id="a"))
        registry.register(BrokerRegistration(3, "127.0.0.1", 9094, "east", directory_id="c"))
        held = registry.register(BrokerRegistration(2, "127.0.0.1", 9093, "east", directory_id="b"))
        if is_known:
            topics.list()
        topics = topics if is_known else TopicRegistry(session)
        controller = Controller(
            session, 1, lambda _: None, config_of(BrokerConfig()), rebalance_interval_s=None, topics=topics
        )
        HandledBrokers(session).note(registry.live(), {})

        def act() -> None:
            controller.topics_changed(topics.list())
            controller.brokers_changed(registry.live())
            controller._act(REIGN)

        session.set(path, b"{}")
        session.set(znodes.topic("t"), session.get(znodes.topic("t")).data)
        held.release()
        registry.register(BrokerRegistration(2, "127.0.0.1", 9093, "east", directory_id="another"))
        act()
        state = TopicRegistry(session).get("u").partitions[0]
        assert state.leader == 1 and 2 not in state.isr
        joined = replace(state, isr=(*state.isr, 2))
        topics.set_partition_state("u", 0, joined, expected=state)
        act()
        session.set(path, data)
        session.set(znodes.topic("t"), session.get(znodes.topic("t")).data)
        for _ in range(3):
            act()
        found = TopicRegistry(session)
        state = found.get("t").partitions[0]
        assert state.leader == 1 and state.leader_epoch == 1 and 2 not in state.isr
        assert found.get("u").partitions[0] == joined, "it has fetched all since"
        rejoined = replace(state, isr=(*state.isr, 2))
        topics.set_partition_state("t", 0, rejoined, expected=state)
        act()
        assert found.get("t").partitions[0] == rejoined
