"""Offsets of Kafka's groups in ZooKeeper, without a broker: `store_offsets`."""

from headrace.broker.groups import offset_nodes
from headrace.broker.groups.coordinator import coordinator_for
from headrace.broker.groups.fencing import Coordinator, Fence
from headrace.broker.groups.offset_nodes import Offsets
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.session import ZooKeeperSession


def store_offsets(session: ZooKeeperSession, group: str, offsets: Offsets) -> None:
    """Stores offsets as the broker that coordinates the group; registers broker 1 if there is none."""
    registry = BrokerRegistry(session)
    if not registry.live():
        registry.register(BrokerRegistration(1, "127.0.0.1", 9092, "east"))
    epochs = {broker.broker_id: broker.epoch for broker in registry.live()}
    broker_id = coordinator_for(group, epochs)
    assert broker_id is not None
    offset_nodes.write(Fence(session), group, offsets, Coordinator(broker_id, epochs[broker_id]))
