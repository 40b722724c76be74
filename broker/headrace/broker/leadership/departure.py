"""How a broker that stops gives its partitions away first, to others that are in sync or eligible.

Before it gives the first one away it says that it stops (`BrokerRegistry.announce_stop`): from then on nobody
takes it back into an in-sync set, or gives it something to lead. Each change is by compare-and-set. Blocks,
and is called on a control thread. The broker serves meanwhile, so that clients find the new leaders.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from headrace.broker.leadership.config_of import ConfigOf, elr_below_of
from headrace.broker.leadership.decisions import without
from headrace.coordination.brokers import BrokerRegistry
from headrace.coordination.errors import BadVersionError, NodeHeldError
from headrace.coordination.offline_logs import OfflineNames
from headrace.coordination.partition_states import PartitionChange, StaleBrokerError
from headrace.coordination.topics import TopicRegistry, TopicState

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
LED_WAIT_MAX_S: Final = 3.0  # until the new leaders lead
POLL_S: Final = 0.02

Topics = Mapping[str, TopicState]
Served = Callable[[int, str, list[int]], list[int]]
"""Returns which of these partitions of a topic a broker serves as their leader."""


def departing(
    broker_id: int,
    topics: Iterable[TopicState],
    alive: Iterable[int],
    config_of: ConfigOf,
    offline: OfflineNames = frozenset(),
) -> list[PartitionChange]:
    """Returns the changes that take a broker out of every partition that others can lead. Pure. `offline`:
    the logs that are known to be offline."""
    living = frozenset(alive) - {broker_id}
    changes = []
    for topic in topics:
        for index, state in topic.partitions.items():
            able = living - {r for r in state.replicas if (r, topic.name, index) in offline}
            new = without(state, broker_id, able, elr_below_of(topic, config_of))
            if new != state:
                changes.append(PartitionChange(topic.name, index, state, new, handled_only=True))
    return changes


def give_away(
    registry: TopicRegistry,
    broker_id: int,
    topics: Topics,
    alive: Iterable[int],
    config_of: ConfigOf,
    offline: OfflineNames = frozenset(),
) -> list[PartitionChange]:
    """Takes a broker out of the in-sync sets, and gives its partitions to others, in sync or eligible.

    `alive`: those that can be given something: who stops, too, cannot. Returns what was changed. Partitions
    that nobody else can lead keep their leader. A broker that has registered again, which no controller has
    seen yet, is given nothing: its disk may be another one.
    """
    living = frozenset(alive)
    done: list[PartitionChange] = []
    changes = departing(broker_id, topics.values(), living, config_of, offline)
    for _ in range(ATTEMPTS_MAX):
        problems = registry.set_partition_states(changes)
        done += [change for change, problem in zip(changes, problems, strict=True) if problem is None]
        living -= {problem.broker_id for problem in problems if isinstance(problem, StaleBrokerError)}
        stale = {
            change.topic
            for change, problem in zip(changes, problems, strict=True)
            if isinstance(problem, BadVersionError | StaleBrokerError)
        }
        if not stale:
            break
        now = registry.list()
        changes = departing(
            broker_id, [now[name] for name in stale if name in now], living, config_of, offline
        )
    return done


def wait_until_led(changes: Sequence[PartitionChange], served: Served) -> int:
    """Waits until the new leaders serve what they were given, at most `LED_WAIT_MAX_S`. Returns how many
    partitions were not served by then."""
    left: dict[tuple[int, str], list[int]] = {}
    for change in changes:
        if change.new.leader != change.expected.leader:
            left.setdefault((change.new.leader, change.topic), []).append(change.partition)
    deadline_s = time.monotonic() + LED_WAIT_MAX_S
    while left:
        for (leader, topic), indexes in list(left.items()):
            ready = set(served(leader, topic, indexes))
            remaining = [index for index in indexes if index not in ready]
            if remaining:
                left[leader, topic] = remaining
            else:
                del left[leader, topic]
        if time.monotonic() >= deadline_s:
            break
        if left:
            time.sleep(POLL_S)
    return sum(map(len, left.values()))


def announce_and_give_away(
    registry: TopicRegistry,
    brokers: BrokerRegistry,
    broker_id: int,
    config_of: ConfigOf,
    offline: OfflineNames,
) -> list[PartitionChange]:
    """Says that the broker stops, and then gives away what ZooKeeper holds after that: nothing is added to it
    any more, except by brokers of earlier versions, and topics that are made in that moment. Of two brokers
    that stop at once at least one sees it of the other.
    """
    try:
        brokers.announce_stop(broker_id)
    except NodeHeldError as error:
        logger.warning("broker %d may be taken back into in-sync sets while it stops: %s", broker_id, error)
    lasting = [each.broker_id for each in brokers.live() if not each.is_stopping]
    return give_away(registry, broker_id, registry.list(), lasting, config_of, offline)


def depart(
    registry: TopicRegistry,
    brokers: BrokerRegistry,
    broker_id: int,
    config_of: ConfigOf,
    offline: OfflineNames,
    served: Served,
) -> None:
    """Gives everything away that others can take, waits until they lead, and says so."""
    begun_s = time.monotonic()
    changes = announce_and_give_away(registry, brokers, broker_id, config_of, offline)
    moved = [change for change in changes if change.expected.leader == broker_id]
    waiting = wait_until_led(moved, served)
    logger.info(
        "broker %d gave %d partitions to other leaders in %.2f s, %d of them are not served there yet",
        broker_id,
        len(moved),
        time.monotonic() - begun_s,
        waiting,
    )
