"""The product's own producer and consumer in a simulated world, with their network, connections and metadata.

Their threads are simulated: each round of a client is an event, at the time until which it would have waited,
or as soon as a socket is ready. The witnesses of `sim_clients` stand beside them.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import headrace.client.connection as connection_room
from headrace.client.accumulator import Accumulator
from headrace.client.consumer import Consumer
from headrace.client.errors import ClientError, CorruptRecordsError, OffsetOutOfRangeError
from headrace.client.network import Network
from headrace.client.observer import BatchIdentity, BatchObserver
from headrace.client.sender import Sender
from headrace.client.settings import ProducerSettings
from headrace.wire.batch import RECORD_COUNT_AT, hop
from headrace.wire.records import decode_columns
from simulation import sim_network
from simulation.patching import put
from simulation.sim_clients import (
    BROKERS,
    HOUR_MS,
    HURRY_PAUSE_MS,
    TOPIC,
    Acknowledged,
    Handed,
    event_ms,
)
from simulation.sim_clock import Clock, Life
from simulation.sim_sockets import SimSelector, SimSockets

API_KEY: Final = slice(4, 6)  # of a request's frame
PRODUCE: Final = b"\0\0"
BOOTSTRAP: Final = ",".join(f"10.0.0.{number}:9092" for number in range(1, BROKERS + 1))
REQUEST_MAX_MS: Final = 2_000
DELIVERY_MAX_MS: Final = 300_000
"""Longer than a world: nothing that is handed over may fail."""
UNFINISHED_MAX: Final = 20
BURST_MAX: Final = 8
BATCH_BYTES: Final = (1, 1, 300)
"""Of a batch: one record, or several."""
POLL_MS: Final = 400.0
BUFFER_BYTES: Final = 1 << 24
METADATA_AGES_MS: Final = (300_000, 250)
"""After so long a producer asks for metadata: so some see a new leader before the old one has answered."""


class Habits(NamedTuple):
    """How a producer sends.

    `pause_ms`: the longest between two bursts; `begins_at_once`: without a pause before the first one;
    `burst_max`: records handed over at once; `hurries`: whether it sends much after each fault;
    `request_max_ms`: how long it waits for an answer; `metadata_age_ms`: after so long it asks for metadata,
    None: drawn.
    """

    pause_ms: float
    begins_at_once: bool = False
    burst_max: int = BURST_MAX
    hurries: bool = True
    request_max_ms: int = REQUEST_MAX_MS
    metadata_age_ms: int | None = None


PATIENT: Final = Habits(
    2_000.0, begins_at_once=True, burst_max=1, hurries=False, request_max_ms=8_000, metadata_age_ms=250
)
"""Waits for a silent leader for longer than a session lasts, with few batches on their way to it, and soon
knows the next leader: without care, batches of one epoch are on their way to two leaders.
"""


class ProductClient:
    """Runs a client of the product on simulated time."""

    def __init__(self, name: str, clock: Clock, network: sim_network.Network) -> None:
        self.name = name
        self.clock = clock
        self.life = Life(name)
        self.problems: list[str] = []
        self.may_lose = False
        self.start_address: Callable[[], int] = lambda: 0
        self.selector = SimSelector()
        self.sockets = SimSockets(network, name, self.life, self.wake)
        self._due_ms: float | None = None
        self._rounds = 0

    def seconds(self) -> float:
        return self.clock.now_ms / 1000

    def wake(self) -> None:
        """Begins a round now."""
        self._begin_at(self.clock.now_ms)

    def _begin_at(self, at_ms: float) -> None:
        if self._due_ms is not None and self._due_ms <= at_ms:
            return
        self._due_ms = at_ms
        self._rounds += 1
        self.clock.after(at_ms - self.clock.now_ms, self.life, partial(self._due, self._rounds))

    def _due(self, number: int) -> None:
        if number != self._rounds:
            return
        self._due_ms = None
        opening = vars(connection_room)  # `put` would look for the name each time
        real, opening["open_socket"] = opening["open_socket"], self.sockets.open
        try:
            wait_ms = self.round()
        finally:
            opening["open_socket"] = real
        self._begin_at(self.clock.now_ms + (0.0 if self.selector.had_events else wait_ms))

    def round(self) -> float:
        """Does one round, and returns for how long it would have waited."""
        raise NotImplementedError


class ProductProducer(ProductClient):
    """Hands records over in bursts, and waits for no acknowledgement: several requests are in flight.

    The judge's view of it is that of `SimProducer`.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        network: sim_network.Network,
        habits: Habits,
        *,
        batch_bytes: int,
    ) -> None:
        super().__init__(f"producer-{number}", clock, network)
        self._habits = habits
        self.number = number
        self.acknowledged: list[Acknowledged] = []
        self.last_answer = "nothing"
        self.is_ending = False
        self.on_acknowledged: Any = lambda: None
        self.on_produces: Any = lambda: None
        """Called just before each Produce request is sent."""
        self.sockets.sends = self._sends
        self._hurries_until_ms = 0.0
        self._pauses = 0
        self._next = 0
        self._handed: dict[tuple[int, int, int], Handed] = {}
        self._values: dict[tuple[int, int, int], list[int]] = {}
        self._values_of: dict[bytes, list[int]] = {}
        """By the end of a batch, from its count of records on: no log changes that."""
        self._acknowledged_values: set[int] = set()
        settings = ProducerSettings.checked(
            acks="all",
            idempotent=True,
            compression="none",
            batch_size_bytes=batch_bytes,
            linger_ms=0,
            buffer_memory_bytes=BUFFER_BYTES,
            on_full="raise",
            max_block_ms=0,
            max_request_size_bytes=BUFFER_BYTES,
            delivery_timeout_ms=DELIVERY_MAX_MS,
            request_timeout_ms=habits.request_max_ms,
            retry_backoff_ms=100,
            retry_backoff_max_ms=1_000,
            max_in_flight=5,
            batch_boundary_ms=HOUR_MS,
        )
        self._accumulator = Accumulator(settings, interceptor=None, clock=self.seconds, wake=self.wake)
        with put(selectors, "DefaultSelector", lambda: self.selector):
            client_network = Network(
                BOOTSTRAP,
                client_id=self.name,
                request_timeout_ms=habits.request_max_ms,
                metadata_max_age_ms=habits.metadata_age_ms or clock.draw.choice(METADATA_AGES_MS),
                clock=self.seconds,
                draw=clock.draw.random,
            )
        client_network.add_topics([TOPIC])
        self._sender = Sender(
            self._accumulator,
            client_network,
            settings,
            observer=_Observer(self),
            interceptor=None,
            clock=self.seconds,
            draw=clock.draw.random,
            name=self.name,
        )
        if habits.begins_at_once:
            self._hand_over(self._pauses)
        else:
            self._pause()
        self.wake()

    @property
    def handed(self) -> list[Handed]:
        """What was handed over, under the numbers that it had in the end."""
        return list(self._handed.values())

    @property
    def last_ms(self) -> float:
        return self.acknowledged[-1].at_ms if self.acknowledged else -1.0

    def round(self) -> float:
        self._sender.run_round()
        return self.selector.wait_s * 1000

    def hurry(self, duration_ms: float) -> None:
        """Hands over much for a moment."""
        if self._habits.hurries:
            self._hurries_until_ms = self.clock.now_ms + duration_ms
            self._pause()

    def close(self) -> None:
        self._sender.network.close()

    def _pause(self) -> None:
        hurries = self.clock.now_ms < self._hurries_until_ms
        pause_ms = min(HURRY_PAUSE_MS, self._habits.pause_ms) if hurries else self._habits.pause_ms
        self._pauses += 1
        self.clock.after(self.clock.between(0, pause_ms), self.life, partial(self._hand_over, self._pauses))

    def _hand_over(self, number: int) -> None:
        if number != self._pauses or self.is_ending:
            return
        unfinished = self._next - len(self._acknowledged_values)
        for _ in range(min(UNFINISHED_MAX - unfinished, self.clock.draw.randint(1, self._habits.burst_max))):
            value = f"{self._next} ".encode() + b"x" * self.clock.draw.randint(0, 40)
            self._next += 1
            self._accumulator.append(TOPIC, 0, event_ms(self.clock), None, value, (), None)
        self._pause()

    def _sends(self, data: bytes) -> None:
        if data[API_KEY] == PRODUCE:
            self.on_produces()

    # --- what the sender says ---

    def encoded(self, identity: BatchIdentity, data: bytes) -> None:
        place = _place(identity)
        assert identity.content is not None
        self._handed[place] = Handed(place, identity.base_timestamp_ms, identity.content)
        self._values[place] = self._values_of[data[RECORD_COUNT_AT:]] = _numbers(data)

    def renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        assert new.content is not None
        handed = self._handed.pop(_place(old))
        place = _place(new)
        self._handed[place] = Handed(place, handed.time_ms, new.content)
        self._values[place] = self._values.pop(_place(old))

    def delivered(self, identity: BatchIdentity, base_offset: int) -> None:
        producer, epoch, sequence = _place(identity)
        at_ms, broker = self.clock.now_ms, self.sockets.heard
        self.acknowledged.append(Acknowledged(producer, sequence, base_offset, at_ms, epoch, broker))
        self._acknowledged_values.update(self._values[producer, epoch, sequence])
        self.last_answer = f"an acknowledgement from broker {broker}"
        self.on_acknowledged()

    def failed(self, identity: BatchIdentity, error: ClientError) -> None:
        self.problems.append(f"{self.name}: {identity} failed at {self.clock.now_ms:.0f} ms: {error}")

    # --- the judgement ---

    def judge_order(self, content: bytes, start: int) -> list[str]:
        """Returns where a log breaks the order of what was handed over, or lacks what was acknowledged; what
        was stored below `start` has expired.
        """
        ids = {producer for producer, _, _ in self._handed}
        last, held, problems = -1, set(), []
        for at, header in hop(content):
            if header.producer_id not in ids:
                continue
            batch = content[at : at + header.size_bytes]
            for number in self._values_of.get(batch[RECORD_COUNT_AT:]) or _numbers(batch):
                if number <= last:
                    problems.append(f"{self.name}: record {number} comes after record {last} (address {at})")
                last = max(last, number)
                held.add(number)
        expired = {
            number
            for each in self.acknowledged
            if each.offset < start
            for number in self._values[each.producer, each.epoch, each.sequence]
        }
        if lost := sorted(self._acknowledged_values - held - expired):
            problems.append(f"{self.name}: records {lost[:5]} were acknowledged, and are in no batch")
        return problems


class _Observer(BatchObserver):
    """Problems of the observer itself must not be swallowed: the product logs them only."""

    def __init__(self, producer: ProductProducer) -> None:
        self._producer = producer

    def _tell(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._producer.problems.append(f"{self._producer.name}: {call.__name__}{arguments}: {error!r}")

    def batch_encoded(self, identity: BatchIdentity, data: bytearray) -> None:
        self._tell(self._producer.encoded, identity, bytes(data))

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        self._tell(self._producer.renumbered, old, new)

    def batch_delivered(self, identity: BatchIdentity, base_offset: int) -> None:
        self._tell(self._producer.delivered, identity, base_offset)

    def batch_failed(self, identity: BatchIdentity, error: ClientError) -> None:
        self._tell(self._producer.failed, identity, error)


def _place(identity: BatchIdentity) -> tuple[int, int, int]:
    return identity.producer_id, identity.producer_epoch, identity.base_sequence


def _numbers(batch: bytes) -> list[int]:
    """Returns the numbers that begin a batch's values."""
    return [int((value or b"").partition(b" ")[0]) for value in decode_columns(batch).values]


class ProductConsumer(ProductClient):
    """Reads from the beginning, batch by batch. The judge's view of it is that of `SimReader`."""

    def __init__(self, clock: Clock, network: sim_network.Network) -> None:
        super().__init__("reader", clock, network)
        self.seen: dict[int, bytes] = {}
        self.damaged = 0
        self.last_ms = -1.0
        self._position = 0
        with put(selectors, "DefaultSelector", lambda: self.selector):
            self._consumer = Consumer(
                BOOTSTRAP,
                client_id=self.name,
                auto_offset_reset="error",
                request_timeout_ms=REQUEST_MAX_MS,
                clock=self.seconds,
                draw=clock.draw.random,
            )
        self._consumer.assign([(TOPIC, 0)])
        self.position = 0
        self.wake()

    @property
    def position(self) -> int:
        return self._position

    @position.setter
    def position(self, address: int) -> None:
        self._position = address
        self._consumer.seek(TOPIC, 0, address)

    def close(self) -> None:
        self._consumer.close()

    def round(self) -> float:
        try:
            for batches in self._consumer.poll_batches(0.0):
                self._take(batches.address, bytes(batches.buffer))
        except CorruptRecordsError:
            self.damaged += 1
            self.position = self._position
        except OffsetOutOfRangeError as error:
            start = self.start_address()
            if not self.may_lose and self._position >= start:
                self.problems.append(
                    f"the consumer at {self._position}: {error} ({self.clock.now_ms:.0f} ms)"
                )
            self.position = start
        if self.clock.chance(0.002):
            self.position = 0
        return self.clock.between(0.0, POLL_MS)

    def _take(self, address: int, records: bytes) -> None:
        if address != self._position:
            self.problems.append(f"the consumer was at address {self._position}, and got {address}")
        for at, header in hop(records):
            batch = records[at : at + header.size_bytes]
            if self.may_lose:
                self.seen[address + at] = batch
            if self.seen.setdefault(address + at, batch) != batch:
                self.problems.append(
                    f"the consumer saw another batch at address {address + at} than before"
                    f" ({self.clock.now_ms:.0f} ms)"
                )
        self._position = address + len(records)
        self.last_ms = self.clock.now_ms
