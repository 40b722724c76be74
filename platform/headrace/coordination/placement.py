"""The placement of a new topic's replicas on brokers. Pure."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import zip_longest

from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.errors import InvalidTopicError


def place_partitions(
    brokers: Mapping[int, BrokerRegistration],
    count: int,
    replication_factor: int,
    seed: int,
    *,
    first: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Assigns partitions `first … first + count - 1` to brokers; the first replica of each is the leader.

    Leaders are assigned round-robin, rack after rack, from a broker that `seed` selects. Each follower is on
    a rack, then on a host, that the partition does not use yet, if there is one; among such brokers on the
    one with the fewest followers. Deterministic. Raises `InvalidTopicError` if there are too few brokers.
    """
    if count < 1 or replication_factor < 1:
        raise InvalidTopicError(
            f"partitions ({count}) and replication factor ({replication_factor}) must be at least 1"
        )
    if replication_factor > len(brokers):
        raise InvalidTopicError(
            f"replication factor {replication_factor} needs as many brokers; {len(brokers)} are alive"
        )
    order = _rack_after_rack(brokers)
    seeded = random.Random(seed)
    start, shift = seeded.randrange(len(order)), seeded.randrange(len(order))
    followers: Counter[int] = Counter()
    placed: dict[int, tuple[int, ...]] = {}
    for partition_id in range(first + count):  # those before `first`, too: new ones continue from them
        at = (start + partition_id) % len(order)
        replicas = [order[at]]
        # The followers of a broker's partitions begin one further each round: a dead broker's load spreads.
        turned = at + 1 + shift + partition_id // len(order)
        candidates = [order[(turned + i) % len(order)] for i in range(len(order))]
        while len(replicas) < replication_factor:
            follower = min(
                (broker for broker in candidates if broker not in replicas),
                key=lambda broker: (*_shared(brokers, broker, replicas), followers[broker]),
            )
            followers[follower] += 1
            replicas.append(follower)
        placed[partition_id] = tuple(replicas)
    return {partition_id: replicas for partition_id, replicas in placed.items() if partition_id >= first}


def _rack_after_rack(brokers: Mapping[int, BrokerRegistration]) -> list[int]:
    racks: dict[str, list[int]] = {}
    for broker_id in sorted(brokers):
        racks.setdefault(brokers[broker_id].rack, []).append(broker_id)
    turns = zip_longest(*(racks[rack] for rack in sorted(racks)))
    return [broker_id for turn in turns for broker_id in turn if broker_id is not None]


def _shared(
    brokers: Mapping[int, BrokerRegistration], broker_id: int, replicas: Iterable[int]
) -> tuple[int, int]:
    """Returns how many of the replicas are on this broker's rack, and on its host."""
    mine = brokers[broker_id]
    others = [brokers[replica] for replica in replicas]
    return sum(each.rack == mine.rack for each in others), sum(each.host == mine.host for each in others)
