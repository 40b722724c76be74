"""The kinds of failures in simulated worlds, and worlds with plants: the same seed gives the same world."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final

from drill.drill_batch_kinds import BATCH_KINDS
from drill.drill_logs import Sent, SimPublisher
from drill.drill_place_kinds import PLACE_KINDS
from drill.drill_truth import Plant
from drill.drill_world import DATACENTERS, HAND_OVER_ROUNDS, Lane, World, bucket
from fix_audit_world import Batch

KINDS: Final = {**BATCH_KINDS, **PLACE_KINDS}
KNOWN_MISSES: Final[dict[str, str]] = {}
"""Kinds that the audit does not judge right yet, and why. They make the drill fail as any other."""
SHARED_TOPIC: Final = "page-view"
BUSY_LANES: Final = 6
PLACE_LANES: Final = 4
BATCH_PLANTS: Final = 8  # of each busy lane
ALONE_EVERY: Final = 4


def planned(seed: int, kinds: Collection[str] = ()) -> World:
    """The world of this seed, with plants of these kinds (default: all).

    In each fourth world batches meet failures of one kind alone. An hour with several kinds is incomplete for
    any of them, so it does not show that the audit would call it complete without one of its checks.
    """
    rng = random.Random(seed)
    of_batches = [name for name in BATCH_KINDS if not kinds or name in kinds]
    if of_batches and seed % ALONE_EVERY == 0:
        of_batches = [of_batches[seed // ALONE_EVERY % len(of_batches)]]
    of_places = [name for name in PLACE_KINDS if not kinds or name in kinds]
    lanes = [_lane(number, SHARED_TOPIC, rng) for number in range(BUSY_LANES if of_batches else 0)]
    for lane in lanes:
        for _ in range(BATCH_PLANTS):
            _plant(lane, rng, rng.choice(of_batches), seed)
    for number in range(PLACE_LANES if of_places else 0):
        lane = _lane(len(lanes), f"topic-{number}", rng)
        _plant(lane, rng, of_places[(seed * PLACE_LANES + number) % len(of_places)], seed)
        lanes.append(lane)
    return World(seed, lanes, rng)


def _plant(lane: Lane, rng: random.Random, name: str, seed: int) -> None:
    plant = Plant(len(lane.plants), name, seed)
    if KINDS[name](lane, rng, plant):
        lane.plants.append(plant)


def _lane(number: int, topic: str, rng: random.Random) -> Lane:
    """A lane whose publishers hand over a few batches in each of six rounds."""
    datacenter = DATACENTERS[number % len(DATACENTERS)]
    partition, log_partition = (number // 2, number) if topic == SHARED_TOPIC else (0, 0)
    publishers = []
    for index in range(rng.randint(1, 2)):
        producer_id = 1_000 + number * 10 + index
        name = f"service-{producer_id}"
        publisher = SimPublisher(name, name, producer_id)
        sequence = 0
        for round_ in sorted(rng.choices(range(HAND_OVER_ROUNDS), k=rng.randint(6, 12))):
            batch = Batch(partition, producer_id, 0, sequence, rng.randint(1, 6), bucket(rng))
            sequence += batch.count
            publisher.sent.append(Sent(batch, round_, [round_]))
        publishers.append(publisher)
    return Lane(topic, datacenter, partition, log_partition, publishers)
