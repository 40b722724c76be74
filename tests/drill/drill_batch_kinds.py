"""The kinds of failures that a drill plants in simulated worlds: each writes its truth down first.

These happen to one batch of a busy lane, to its publisher, or to its rows in the warehouse. Those of a whole
lane are in `drill_place_kinds`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from drill.drill_take import LAST, free, take, time_of
from drill.drill_truth import NO_ID, Harm, Identity, Plant, hour_of
from drill.drill_world import Lane, bucket
from fix_audit_world import HOUR_A
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Status
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER

CLOCK_OFF_MS: Final = 59 * 60_000

Kind = Callable[[Lane, random.Random, Plant], bool]
"""Plants one failure in a lane; False if the lane has no room for it, and then it changed nothing."""


# --- what happens to one batch ---


def lost(lane: Lane, rng: random.Random, plant: Plant, *, is_last: bool = False) -> bool:
    sent = take(lane, rng, plant, is_last=is_last)
    if sent is None:
        return False
    sent.appended = []
    plant.harms.update(lane.harms(sent.batch, Status.LOST, PRODUCER_HOP))
    return True


def lost_at_the_end(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return lost(lane, rng, plant, is_last=True)


def doubled(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    sent = take(lane, rng, plant)
    if sent is None:
        return False
    times = rng.choice([1, 1, 2])
    sent.appended += [rng.randint(sent.round, LAST + 1) for _ in range(times)]
    plant.harms.update(lane.harms(sent.batch, Status.DUPLICATED, PRODUCER_HOP, times))
    return True


def delayed(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    sent = take(lane, rng, plant, is_last=True)
    if sent is None:
        return False
    sent.appended = [LAST + 2 + rng.randrange(3)]
    return True


def late_event(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    sent = take(lane, rng, plant)
    if sent is None:
        return False
    sent.batch = replace(sent.batch, bucket_ms=HOUR_A - HOUR_MS * rng.randint(1, 5))
    return True


def missing_in_the_copy(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    sent = take(lane, rng, plant)
    if sent is None:
        return False
    sent.in_copy = 0
    plant.harms.update(lane.harms(sent.batch, Status.LOST, MIRROR_HOP))
    return True


def swapped_in_the_copy(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    """The copy has another batch's numbers in the place of these: totals agree."""
    sent = take(lane, rng, plant)
    if sent is None:
        return False
    twins = [
        other for other in free(lane) if other.batch.count == sent.batch.count and other.round < sent.round
    ]
    plant.harms.update(lane.harms(sent.batch, Status.LOST, MIRROR_HOP))
    if not twins:
        sent.in_copy = 0
        return True
    twin = rng.choice(twins)
    twin.plant = plant.number
    sent.twin = twin
    hour_ms = hour_of(sent.batch.bucket_ms)
    doubles = (Harm(Status.DUPLICATED, MIRROR_HOP, hour_ms, each) for each in lane.identities(twin.batch))
    plant.harms.update(doubles)
    return True


def altered(lane: Lane, rng: random.Random, plant: Plant, tier: str = DATACENTER_TIER) -> bool:
    """Other bytes under a right checksum. The place is as narrow as both sides' counts: some neighbours of
    the same publisher and hour are named with them.
    """
    publisher = rng.choice(lane.publishers)
    free = [sent for sent in publisher.sent if sent.plant is None]
    if not free or any(sent.old is not None for sent in publisher.sent):
        return False
    sent = rng.choice(free)
    sent.plant, sent.altered_in, plant.planted_ms = plant.number, tier, time_of(sent.round)
    hop = PRODUCER_HOP if tier == DATACENTER_TIER else MIRROR_HOP
    plant.harms.update(lane.harms(sent.batch, Status.ALTERED, hop))
    for other in publisher.sent:
        if other is not sent and hour_of(other.batch.bucket_ms) == hour_of(sent.batch.bucket_ms):
            plant.allowed.update(lane.harms(other.batch, Status.ALTERED, hop))
    return True


def altered_in_the_copy(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return altered(lane, rng, plant, ANALYSIS_TIER)


# --- what happens to a publisher ---


def unnumbered(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    """The client drops events before they have a number."""
    publisher, count, bucket_ms = rng.choice(lane.publishers), rng.randint(1, 9), bucket(rng)
    publisher.unnumbered[bucket_ms] = publisher.unnumbered.get(bucket_ms, 0) + count
    nobody = Identity(lane.topic, lane.datacenter, NO_ID, NO_ID, NO_ID, NO_ID)
    plant.harms[Harm(Status.LOST, PRODUCER_HOP, hour_of(bucket_ms), nobody)] += count
    plant.planted_ms = time_of(0)
    return True


def renumbered(lane: Lane, rng: random.Random, plant: Plant, *, twice: bool = False) -> bool:
    """After a lost answer the client bumps its epoch and numbers a batch, and all later ones, again."""
    untouched = [p for p in lane.publishers if len(p.sent) > 2 and all(s.plant is None for s in p.sent)]
    if not untouched:
        return False
    publisher = rng.choice(untouched)
    first = rng.randrange(1, len(publisher.sent))
    begin, sequence = publisher.sent[first], 0
    begin.old, begin.renumbered_round = begin.batch, begin.round + 1
    for sent in publisher.sent[first:]:
        sent.plant = plant.number
        sent.round = max(sent.round, begin.renumbered_round) if sent is not begin else sent.round
        sent.appended = [max(sent.round, begin.renumbered_round)]
        sent.batch = replace(sent.batch, epoch=1, first=sequence)
        sequence += sent.batch.count
        plant.touched |= set(lane.identities(sent.batch))
    plant.planted_ms = time_of(begin.round)
    if twice:
        begin.old_appended = [begin.round]
        plant.harms.update(lane.harms(begin.old, Status.DUPLICATED, PRODUCER_HOP))
    return True


def renumbered_twice(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return renumbered(lane, rng, plant, twice=True)


def clock_off(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    publisher = rng.choice(lane.publishers)
    publisher.skew_ms = rng.choice([-CLOCK_OFF_MS, CLOCK_OFF_MS])
    for sent in publisher.sent:
        plant.touched |= set(lane.identities(sent.batch))
    return True


# --- what happens in the warehouse ---


def _of_rows(lane: Lane, rng: random.Random, plant: Plant) -> int | None:
    """An hour of the lane whose rows no plant has changed, with a batch that stays loaded."""
    sent = take(lane, rng, plant)
    if sent is None or hour_of(sent.batch.bucket_ms) in lane.rows_changed or lane.skipped:
        return None
    return hour_of(sent.batch.bucket_ms)


def rows_lost(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return _change_rows(lane, rng, plant, (-1, -1, 0), Status.LOST)


def rows_doubled(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return _change_rows(lane, rng, plant, (1, 0, 0), Status.DUPLICATED)


def dead_lettered(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return _change_rows(lane, rng, plant, (-1, -1, 1), None)


def _change_rows(
    lane: Lane, rng: random.Random, plant: Plant, change: tuple[int, int, int], status: Status | None
) -> bool:
    hour_ms = _of_rows(lane, rng, plant)
    if hour_ms is None:
        return False
    lane.rows_changed[hour_ms] = change
    if status is not None:
        plant.harms[Harm(status, LOAD_HOP, hour_ms, _rows_of(lane))] += 1
    return True


def _rows_of(lane: Lane) -> Identity:
    return Identity(lane.topic, lane.datacenter, lane.partition, NO_ID, NO_ID, NO_ID)


def skipped_by_a_load(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    if lane.skipped is not None or lane.rows_changed:
        return False
    sent = take(lane, rng, plant)
    if sent is None:
        return False
    lane.skipped = (sent, sent)
    hour_ms = hour_of(sent.batch.bucket_ms)
    plant.harms[Harm(Status.LOST, LOAD_HOP, hour_ms, _rows_of(lane))] += sent.batch.count
    return True


# --- what happens to a place ---


BATCH_KINDS: Final[dict[str, Kind]] = {
    "lost in the client": lost,
    "the last batch lost in the client": lost_at_the_end,
    "lost before it had a number": unnumbered,
    "stored twice": doubled,
    "renumbered after a lost answer": renumbered,
    "renumbered, and both stored": renumbered_twice,
    "delayed by minutes": delayed,
    "event of an earlier hour": late_event,
    "publisher's clock off": clock_off,
    "missing in the copy": missing_in_the_copy,
    "swapped in the copy": swapped_in_the_copy,
    "altered on the way to the log": altered,
    "altered in the copy": altered_in_the_copy,
    "row missing in a load": rows_lost,
    "row doubled in a load": rows_doubled,
    "dead-lettered": dead_lettered,
    "skipped by a load": skipped_by_a_load,
}
