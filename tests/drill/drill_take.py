"""Choosing a batch of a simulated lane for a plant."""

from __future__ import annotations

import random
from typing import Final

from drill.drill_logs import Sent
from drill.drill_truth import Plant
from drill.drill_world import HAND_OVER_ROUNDS, ROUND_MS, Lane
from fix_audit_world import REPORTED_MS

LAST: Final = HAND_OVER_ROUNDS - 1


def free(lane: Lane, *, is_last: bool | None = None) -> list[Sent]:
    """The batches without a plant; those that are, or are not, the last of their publisher."""
    last = {id(publisher.sent[-1]) for publisher in lane.publishers if publisher.sent}
    return [
        sent
        for sent in lane.sent
        if sent.plant is None and (is_last is None or (id(sent) in last) is is_last)
    ]


def take(lane: Lane, rng: random.Random, plant: Plant, *, is_last: bool | None = None) -> Sent | None:
    found = free(lane, is_last=is_last)
    if not found:
        return None
    sent = rng.choice(found)
    sent.plant = plant.number
    plant.touched |= set(lane.identities(sent.batch))
    plant.planted_ms = time_of(sent.round)
    return sent


def time_of(round_: int) -> int:
    return REPORTED_MS + round_ * ROUND_MS
