"""States of partitions and sets of brokers, as the controller decides about them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st

from headrace.broker.leadership.controller import Cluster, decide
from headrace.broker.leadership.decisions import Brokers
from headrace.broker.settings.config import BrokerConfig
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.partition_states import PartitionChange
from headrace.coordination.topics import NO_LEADER, ElrBelow, PartitionState, TopicState

IDS = range(1, 6)
SETS = st.frozensets(st.sampled_from(IDS))


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    """A state that the controller or a leader may have written."""
    replicas = tuple(draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    elr = tuple(r for r in draw(st.permutations(replicas)) if r not in isr and draw(st.booleans()))
    return PartitionState(leader, draw(st.integers(0, 9)), replicas, isr, elr=elr)


def below(number: int) -> ElrBelow:
    """Replicas that leave are eligible while fewer than so many are in sync."""
    return lambda _: number


NONE = below(0)
MINIMA = st.integers(0, 4).map(below)


@st.composite
def brokers(draw: st.DrawFn) -> Brokers:
    alive = draw(SETS)
    return Brokers(alive, draw(SETS) & alive, stopping=draw(SETS) & alive)


def at(
    leader: int, epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3)
) -> PartitionState:
    return PartitionState(leader, epoch, replicas, isr)


def decided(state: PartitionState, known: Brokers, *, offline: int | None = None) -> list[PartitionChange]:
    topic = TopicState("t", UUID(int=1), {0: state})
    registered = {
        each: BrokerRegistration(each, "127.0.0.1", 9092, "east", epoch=100 + each) for each in known.alive
    }
    names = frozenset() if offline is None else frozenset({(offline, "t", 0)})
    config = BrokerConfig().topic_config({"min.insync.replicas": "2"})
    return decide(Cluster({"t": topic}, registered, names), known, lambda _: config, rebalance=True)
