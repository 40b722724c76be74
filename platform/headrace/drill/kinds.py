"""What a drill plants at producers. Each kind writes its truth down before it does any harm.

All of it is what services do by mistake: events dropped in a client, altered, sent by somebody that reports
nothing, a service that is killed, a clock that is wrong. The last two kinds harm nothing.
`drill.file_kinds` has what is planted in the warehouse's files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from headrace.audit.findings import PRODUCER_HOP, Status
from headrace.audit.topic.drills import CANARY_TOPIC, DrillPlant
from headrace.client.exact_batches import BatchSender
from headrace.client.faults import BatchInterceptor
from headrace.client.observer import BatchIdentity
from headrace.drill.batches import Altering, Dropping, Keeping
from headrace.drill.dying import kill_a_service
from headrace.drill.errors import DrillError
from headrace.drill.place import FLUSH_WAIT_MAX_S, Place, publish
from headrace.process.clock import now_ms
from headrace.wire.batch import read_header, renumber

BATCHES: Final = 4
EVENTS_PER_BATCH: Final = 3
EVENTS: Final = BATCHES * EVENTS_PER_BATCH
"""What each publisher is handed, at least."""
UNSENT: Final = 7
CLOCK_OFF_MS: Final = 59 * 60_000
SUCCESSION_WAIT_MAX_S: Final = 60.0
POLL_S: Final = 0.1


class Hands(NamedTuple):
    """What a kind plants with. `base_ms`: the time of the events. `tell`: writes the truth down, first with
    the verdict that is due, then with the numbers that it happened to. `is_loaded`: whether the drill loads
    the canary topic, so that the warehouse sees the guids of its events.
    """

    place: Place
    state_dir: Path
    base_ms: int
    tell: Callable[[DrillPlant], None]
    is_loaded: bool = False


Kind = Callable[[Hands, DrillPlant], None]
"""Plants one failure, of the plant's service; returns once its publisher has ended."""


def dropped(hands: Hands, plant: DrillPlant, *, is_last: bool = False) -> None:
    """A client drops a batch that it has counted and numbered."""
    after = EVENTS_PER_BATCH * (BATCHES - 1 if is_last else 1)
    left = EVENTS - EVENTS_PER_BATCH
    plant = replace(plant, statuses=(Status.LOST,), record_count=EVENTS_PER_BATCH, sent_count=left)
    hands.tell(plant)
    plan = Dropping(CANARY_TOPIC, EVENTS_PER_BATCH, after, lambda batch: hands.tell(_of(plant, batch)))
    _publish(hands, plant.service, plan)
    if not plan.is_done:
        raise DrillError(f"the producer of {plant.service} dropped nothing")


def dropped_at_the_end(hands: Hands, plant: DrillPlant) -> None:
    dropped(hands, plant, is_last=True)


def altered(hands: Hands, plant: DrillPlant) -> None:
    """A batch is sent with other bytes than were counted, under a right checksum."""
    plant = replace(plant, statuses=(Status.ALTERED,), record_count=EVENTS_PER_BATCH, sent_count=EVENTS)
    hands.tell(plant)
    _publish(hands, plant.service, Altering(1, lambda batch: hands.tell(_of(plant, batch))))


def sent_by_nobody(hands: Hands, plant: DrillPlant) -> None:
    """Events are sent again under another producer id, which nobody reports; loads know their guids."""
    waiting = () if hands.is_loaded else (Status.PENDING, Status.UNKNOWN)
    plant = replace(
        plant,
        statuses=(*waiting, Status.DUPLICATED),
        record_count=EVENTS_PER_BATCH,
        sent_count=EVENTS + EVENTS_PER_BATCH,
    )
    hands.tell(plant)
    keeping = Keeping()
    _publish(hands, plant.service, keeping)
    again = bytearray(keeping.batches[-1])
    sender = BatchSender(hands.place.balancer, plant.service)
    try:
        producer_id, epoch = sender.new_producer_id()
        renumber(again, 0, producer_id, epoch, 0)
        last = read_header(again).record_count - 1
        plant = replace(plant, producer_id=producer_id, producer_epoch=epoch)
        hands.tell(replace(plant, first_sequence=0, last_sequence=last))
        sender.send(CANARY_TOPIC, 0, bytes(again))
    finally:
        sender.close()


def killed_without_a_journal(hands: Hands, plant: DrillPlant) -> None:
    """A service is killed with events that it has not sent, and nobody will ever know which."""
    hands.tell(replace(plant, statuses=(Status.PENDING, Status.UNKNOWN)))
    _kill(hands, plant.service, journal=False)


def killed_and_succeeded(hands: Hands, plant: DrillPlant) -> None:
    """A service is killed with events that it has not sent; its successor finds its journal."""
    hands.tell(replace(plant, statuses=(Status.LOST,), record_count=UNSENT))
    _kill(hands, plant.service, journal=True)
    journals = hands.state_dir / plant.service / "publishers"
    dead = set(journals.glob("*.journal"))
    with hands.place.publisher(plant.service, hands.state_dir / plant.service):
        deadline_s = time.monotonic() + SUCCESSION_WAIT_MAX_S
        while any(path.exists() for path in dead):
            if time.monotonic() > deadline_s:
                raise DrillError(f"nobody succeeded {plant.service} within {SUCCESSION_WAIT_MAX_S:g} s")
            time.sleep(POLL_S)


def clock_off(hands: Hands, plant: DrillPlant) -> None:
    """The clock of a service's host is ahead by an hour; its events have the right times."""
    note = f"the clock of service {plant.service} on "
    hands.tell(replace(plant, note=note, sent_count=EVENTS))
    _publish(hands, plant.service, None, wall_ms=lambda: now_ms() + CLOCK_OFF_MS)


def sent_twice(hands: Hands, plant: DrillPlant) -> None:
    """A batch is sent again as it was, as after a lost answer: brokers store it once. Nothing is wrong."""
    hands.tell(replace(plant, sent_count=EVENTS))
    keeping = Keeping()
    _publish(hands, plant.service, keeping)
    sender = BatchSender(hands.place.balancer, plant.service)
    try:
        sender.send(CANARY_TOPIC, 0, keeping.batches[-1])
    finally:
        sender.close()


def nothing(hands: Hands, plant: DrillPlant) -> None:
    """A service publishes, and nothing is wrong."""
    hands.tell(replace(plant, sent_count=EVENTS))
    _publish(hands, plant.service, None)


RESENT_KIND: Final = "sent again as another producer"
KINDS: Final[dict[str, Kind]] = {
    "dropped by the client": dropped,
    "dropped by the client at its end": dropped_at_the_end,
    "altered on the way to the log": altered,
    RESENT_KIND: sent_by_nobody,
    "killed without a journal": killed_without_a_journal,
    "killed, its journal found": killed_and_succeeded,
    "clock an hour ahead": clock_off,
    "sent twice, stored once": sent_twice,
    "nothing planted": nothing,
}


def new_plant(kind: str, datacenter: str, service: str, hour_ms: int) -> DrillPlant:
    """Returns a plant of which nothing is known yet."""
    return DrillPlant(kind, datacenter, service, hour_ms, PRODUCER_HOP)


def _of(plant: DrillPlant, batch: BatchIdentity) -> DrillPlant:
    return replace(
        plant,
        record_count=batch.record_count,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        first_sequence=batch.base_sequence,
        last_sequence=batch.base_sequence + batch.record_count - 1,
    )


def _publish(
    hands: Hands,
    service: str,
    interceptor: BatchInterceptor | None,
    wall_ms: Callable[[], int] = now_ms,
) -> None:
    """Publishes a few batches, and ends as a service should."""
    options = {"interceptor": interceptor}
    state_dir = hands.state_dir / service
    with hands.place.publisher(service, state_dir, producer_options=options, wall_ms=wall_ms) as publisher:
        for number in range(BATCHES):
            first = number * EVENTS_PER_BATCH
            publish(publisher, range(first, first + EVENTS_PER_BATCH), hands.base_ms)
            publisher.flush(FLUSH_WAIT_MAX_S)


def _kill(hands: Hands, service: str, *, journal: bool) -> None:
    state_dir = hands.state_dir / service
    kill_a_service(hands.place, service, state_dir, hands.base_ms, EVENTS, UNSENT, journal=journal)
