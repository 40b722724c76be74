"""The placement of a new topic's replicas on brokers. Pure."""

import random
from collections.abc import Sequence

from headrace.coordination.errors import InvalidTopicError


def place_partitions(
    broker_ids: Sequence[int], count: int, replication_factor: int, seed: int, *, first: int = 0
) -> dict[int, tuple[int, ...]]:
    """Assigns partitions `first … first + count - 1` to brokers; the first replica of each is the leader.

    Leaders are assigned round-robin from a broker that `seed` selects. Followers are shifted from their
    leader by a distance that grows by one each round, so that a dead broker's load spreads over all others
    (Kafka's own placement). Deterministic. Raises `InvalidTopicError` if there are too few brokers.
    """
    brokers = sorted(set(broker_ids))
    if count < 1 or replication_factor < 1:
        raise InvalidTopicError(
            f"partitions ({count}) and replication factor ({replication_factor}) must be at least 1"
        )
    if replication_factor > len(brokers):
        raise InvalidTopicError(
            f"replication factor {replication_factor} needs as many brokers; {len(brokers)} are alive"
        )
    seeded = random.Random(seed)
    start, shift = seeded.randrange(len(brokers)), seeded.randrange(len(brokers))
    placed: dict[int, tuple[int, ...]] = {}
    for partition_id in range(first, first + count):
        leader = (start + partition_id) % len(brokers)
        distance = shift + partition_id // len(brokers)
        followers = (
            (leader + 1 + (distance + i) % (len(brokers) - 1)) % len(brokers)
            for i in range(replication_factor - 1)
        )
        placed[partition_id] = (brokers[leader], *(brokers[i] for i in followers))
    return placed
