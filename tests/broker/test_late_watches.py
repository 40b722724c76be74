"""A controller whose watches are late decides by what ZooKeeper holds."""

from __future__ import annotations

import uuid

from fix_zookeeper import ZooKeeperRoom
from headrace.broker.leadership.config_of import config_of
from headrace.broker.leadership.controller import Controller
from headrace.broker.settings.config import BrokerConfig
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
