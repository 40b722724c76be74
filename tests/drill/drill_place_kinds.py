"""The kinds of failures that a drill plants in a whole lane of a simulated world, truth first.

Logs are cut, overtaken by retention or made again; publishers die; auditors and their records are lost.
"""

from __future__ import annotations

import random
from typing import Final

from drill.drill_batch_kinds import Kind, unnumbered
from drill.drill_logs import Sent
from drill.drill_take import LAST, take, time_of
from drill.drill_truth import Plant
from drill.drill_world import Lane, World
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Status


def _until(lane: Lane, round_: int) -> list[Sent]:
    """The batches up to this round, in the order of the log."""
    return [sent for sent in lane.sent if sent.round <= round_]


def _touch_all(lane: Lane, plant: Plant) -> None:
    for sent in lane.sent:
        plant.touched |= set(lane.identities(sent.batch))


def _cut(lane: Lane, rng: random.Random, plant: Plant, victims: list[Sent], round_: int) -> None:
    """The log loses these batches, its last ones, in this round."""
    new_leader = rng.random() < 0.5

    def move(world: World, lane: Lane) -> None:
        address = lane.addresses[id(victims[0])]
        lane.is_halted = lane.copy.end > address
        lane.log.cut(address, new_leader=new_leader)
        world.interrupt(lane)

    lane.moves[round_] = move
    plant.planted_ms = time_of(round_)
    for victim in victims:
        plant.harms.update(lane.harms(victim.batch, Status.LOST, PRODUCER_HOP))
    _touch_all(lane, plant)


def cut_before_counted(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    rounds = sorted({sent.round for sent in lane.sent})
    round_ = rng.choice(rounds)
    members = [sent for sent in lane.sent if sent.round == round_]
    _cut(lane, rng, plant, members[rng.randrange(len(members)) :], round_)
    return True


def cut_after_counted(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    """The mirror was behind: the copy follows what the log has become."""
    round_ = rng.choice(sorted({sent.round for sent in lane.sent}))
    members = [sent for sent in lane.sent if sent.round == round_]
    lane.mirrored = lambda now: now != round_
    _cut(lane, rng, plant, members[rng.randrange(len(members)) :], round_ + 1)
    # What the log took in the round of the cut is behind it, and went with it.
    for sent in (each for each in lane.sent if each.round == round_ + 1):
        plant.harms.update(lane.harms(sent.batch, Status.LOST, PRODUCER_HOP))
    return True


def cut_after_copied(lane: Lane, rng: random.Random, plant: Plant, *, grows: bool = False) -> bool:
    """The copy has what the log lost, and halts."""
    round_ = rng.randint(1, LAST - 1)
    before = _until(lane, round_)
    if not before:
        return False
    if not grows:
        for publisher in lane.publishers:
            publisher.sent = [sent for sent in publisher.sent if sent.round <= round_]
    victims = before[-rng.randint(1, min(4, len(before))) :]
    _cut(lane, rng, plant, victims, round_ + 1)
    for sent in (each for each in lane.sent if each.round > round_):
        if sent.round == round_ + 1:
            plant.harms.update(lane.harms(sent.batch, Status.LOST, PRODUCER_HOP))
        else:
            plant.allowed.update(lane.harms(sent.batch, Status.LOST, MIRROR_HOP))
            plant.silenced.add(lane.hour(sent))
    return True


def cut_and_grown_again(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return cut_after_copied(lane, rng, plant, grows=True)


def deleted_before_copied(lane: Lane, rng: random.Random, plant: Plant, *, accepted: bool = False) -> bool:
    """Retention overtakes the mirror, which halts; or an operator accepts the gap."""
    round_ = rng.randint(3, LAST)
    copied, waiting = _until(lane, 1), _until(lane, round_ - 1)
    victims = waiting[len(copied) :]
    if not copied or len(victims) < 2:
        return False
    victims = victims[: rng.randint(1, len(victims) - 1)]
    kept = [sent for sent in lane.sent if sent.round > 1 and sent not in victims]
    lane.mirrored = lambda now: now < 2 or now >= round_

    def move(world: World, lane: Lane) -> None:
        address = lane.addresses[id(kept[0])]
        start = lane.copy.end
        lane.log.delete_before(address)
        lane.is_halted = not accepted
        world.say_gap(lane, start, address, accepted=accepted)

    lane.moves[round_] = move
    plant.planted_ms = time_of(round_)
    for victim in victims:
        plant.harms.update(lane.harms(victim.batch, Status.LOST, MIRROR_HOP))
    if not accepted:
        plant.silenced |= {lane.hour(sent) for sent in kept}
    _touch_all(lane, plant)
    return True


def gap_accepted(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return deleted_before_copied(lane, rng, plant, accepted=True)


def deleted_before_counted(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    """Nobody can know whether the log held them: the hour is not complete, and nothing is lost."""
    round_ = rng.randint(2, LAST)
    before = _until(lane, round_ - 1)
    if len(before) < 2:
        return False
    victims = before[: rng.randint(1, len(before) - 1)]
    address_of = before[len(victims)]

    def move(world: World, lane: Lane) -> None:
        lane.log.delete_before(lane.addresses[id(address_of)])
        world.blind(lane, on=False)

    lane.moves[0] = lambda world, lane: world.blind(lane, on=True)
    lane.moves[round_] = move
    plant.silenced |= {lane.hour(victim) for victim in victims}
    _touch_all(lane, plant)
    return True


def tally_lost(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    sent = take(lane, rng, plant)
    if sent is None:
        return False
    lane.dropped_tally_of = sent
    plant.silenced.add(lane.hour(sent))
    _touch_all(lane, plant)
    return True


def reports_lost(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    publisher = rng.choice(lane.publishers)
    publisher.is_heard = False
    plant.silenced |= {lane.hour(sent) for sent in publisher.sent}
    _touch_all(lane, plant)
    return True


def killed(lane: Lane, rng: random.Random, plant: Plant, *, succeeded: bool = False) -> bool:
    """A publisher dies with events that it was handed and did not report; nobody, or its successor, does."""
    publisher = rng.choice(lane.publishers)
    rounds = sorted({sent.round for sent in publisher.sent})
    if len(rounds) < 2:
        return False
    last = rng.randrange(1, len(rounds))
    publisher.dies, publisher.succeeded = rounds[last] - 1, succeeded
    publisher.sent = [sent for sent in publisher.sent if sent.round <= rounds[last]]
    unsent = [sent for sent in publisher.sent if sent.round == rounds[last] and rng.random() < 0.6]
    for sent in unsent:
        sent.appended = []
        if succeeded:
            plant.harms.update(lane.harms(sent.batch, Status.LOST, PRODUCER_HOP))
    plant.planted_ms = time_of(rounds[last])
    _touch_all(lane, plant)
    if succeeded:
        return bool(unsent) and unnumbered(lane, rng, plant)
    plant.silenced |= {lane.hour(sent) for sent in publisher.sent if sent.round < rounds[last]}
    return True


def killed_and_succeeded(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    return killed(lane, rng, plant, succeeded=True)


def recreated(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    """The topic is deleted and made again, in both clusters: what the first one held is no loss."""
    round_ = rng.randint(1, LAST - 1)

    def move(_world: World, lane: Lane) -> None:
        for log in (lane.log, lane.copy):
            log.batches, log.start, log.end, log.epoch, log.topic_id = [], 0, 0, 0, "second"

    lane.moves[round_] = move
    lane.mirrored = lambda now: now != round_
    lane.is_loaded = False
    plant.silenced |= {lane.hour(sent) for sent in lane.sent}
    _touch_all(lane, plant)
    return True


def auditors_restarted(lane: Lane, rng: random.Random, plant: Plant) -> bool:
    for round_ in rng.sample(range(1, LAST + 2), 3):
        lane.moves[round_] = lambda world, lane: world.restart_auditors(lane)
    _touch_all(lane, plant)
    return True


PLACE_KINDS: Final[dict[str, Kind]] = {
    "tail cut before it was counted": cut_before_counted,
    "tail cut after it was counted": cut_after_counted,
    "tail cut after it was copied": cut_after_copied,
    "tail cut, and grown again": cut_and_grown_again,
    "deleted by retention before the mirror": deleted_before_copied,
    "deleted by retention, gap accepted": gap_accepted,
    "deleted by retention before the auditor": deleted_before_counted,
    "auditor's tally lost": tally_lost,
    "publisher's reports lost": reports_lost,
    "publisher killed": killed,
    "publisher killed and succeeded": killed_and_succeeded,
    "topic made again": recreated,
    "auditors restarted": auditors_restarted,
}
