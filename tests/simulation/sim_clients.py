"""Simulated clients: an idempotent producer with acks=all and a reader, by the real wire format.

They are the judge's witnesses: small on purpose, and not the product's clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.broker.network.links import Lost
from headrace.client.calls import fetch_call, produce_call
from headrace.coordination import documents, znodes
from headrace.wire.batch import hop, verify
from headrace.wire.content import content_of
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.wire.records import Record, encode_batch
from simulation.sim_clock import WALL_MS, Clock, Life
from simulation.sim_network import Link, Network
from simulation.sim_zookeeper import ZooKeeper

TOPIC: Final = "t"
TOPIC_ID: Final = UUID(int=7)
ASK_MAX_MS: Final = 2_000.0
PAUSE_MS: Final = 60.0
HURRY_PAUSE_MS: Final = 80.0
READ_PAUSE_MS: Final = 100.0
RETRY_MS: Final = (10.0, 300.0)
FETCH_WAIT_MS: Final = 800
STATES_KEPT: Final = 64
HOUR_MS: Final = 3_600_000
HOURS_FROM_MS: Final = WALL_MS - WALL_MS % HOUR_MS - 10 * HOUR_MS
HOUR_LASTS_MS: Final = 6_000.0
HOURS_MAX: Final = 8
"""Events of an hour are produced in six seconds: a world has several hours."""
BROKERS: Final = 3


def event_ms(clock: Clock) -> int:
    """Returns the time of an event that happens now."""
    if clock.has_true_events:
        return WALL_MS + int(clock.now_ms)
    return HOURS_FROM_MS + HOUR_MS * min(HOURS_MAX, int(clock.now_ms / HOUR_LASTS_MS))


RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)


OF_THE_PAST: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.OFFSET_OUT_OF_RANGE})
"""What a leader answers that was deposed, and does not know. Clients that know of a later epoch do not ask it
(KIP-320); these ask any broker now and then.
"""


ANSWERS: Final = frozenset({ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE})
"""What says how far a log goes."""


class Acknowledged(NamedTuple):
    """`epoch`: the producer's. `broker`: which one acknowledged it."""

    producer: int
    sequence: int
    offset: int
    at_ms: float
    epoch: int
    broker: int


class Handed(NamedTuple):
    """A record that a producer was handed: its producer id, epoch and sequence; its time, and its content."""

    place: tuple[int, int, int]
    time_ms: int
    content: int


class SimClient:
    """A client of the partition, which looks for its leader."""

    def __init__(self, name: str, clock: Clock, network: Network, server: ZooKeeper) -> None:
        self.name = name
        self.clock = clock
        self.life = Life(name)
        self.problems: list[str] = []
        self.may_lose = False
        """Whether the topic allows unclean elections: what was acknowledged or read may be gone then."""
        self.start_address: Callable[[], int] = lambda: 0
        """Below it events have expired."""
        self._server = server
        self._links = {number: Link(network, name, self.life, number) for number in range(1, BROKERS + 1)}
        self._leader = 1

    def _look(self) -> None:
        """Learns who leads, perhaps late; otherwise tries any broker."""
        leader = self._led()[0] if self.clock.chance(0.8) else -1
        self._leader = leader if leader in self._links else self.clock.draw.randint(1, BROKERS)

    def _led(self) -> tuple[int, int]:
        """Returns who leads in which epoch; -1 if nobody does."""
        node = self._server.nodes.get(znodes.partition_state(TOPIC, 0))
        if node is None:
            return -1, -1
        return _leader_in(node.data)

    def _is_led_by(self, broker: int) -> bool:
        return self._led()[0] == broker

    def _again(self, delay_ms: float, call: Callable[[], None]) -> None:
        self.clock.after(delay_ms, self.life, call)


@lru_cache(maxsize=STATES_KEPT)
def _leader_in(data: bytes) -> tuple[int, int]:
    state = documents.decode("state", data)
    return int(state["leader"]), int(state["leader_epoch"])


class SimProducer(SimClient):
    """Sends numbered records, one batch at a time; one that is not acknowledged is sent again as it was.

    `handed`: all of them. It pauses in between, and hurries for a moment when something happens.
    """

    def __init__(
        self, number: int, clock: Clock, network: Network, server: ZooKeeper, pause_ms: float
    ) -> None:
        super().__init__(f"producer-{number}", clock, network, server)
        self.number = number
        self._pause_ms = pause_ms
        self.acknowledged: list[Acknowledged] = []
        self.handed: list[Handed] = []
        self._hurries_until_ms = 0.0
        self._pauses = 0
        self._is_pausing = False
        self.on_acknowledged: Callable[[], None] = lambda: None
        self.is_ending = False
        self.last_answer = "nothing"
        self._sequence = self._epoch = 0
        self._pause()

    def _pause(self) -> None:
        hurries = self.clock.now_ms < self._hurries_until_ms
        self._pauses += 1
        number, self._is_pausing = self._pauses, True
        pause_ms = min(HURRY_PAUSE_MS, self._pause_ms) if hurries else self._pause_ms
        self._again(self.clock.between(0, pause_ms), lambda: self._ends_pause(number))

    def _ends_pause(self, number: int) -> None:
        if self._is_pausing and number == self._pauses:
            self._is_pausing = False
            if not self.is_ending:
                self._send()

    def hurry(self, duration_ms: float) -> None:
        """Sends much for a moment: what happens then is hard on a partition that gets something."""
        self._hurries_until_ms = self.clock.now_ms + duration_ms
        if self._is_pausing:
            self._pause()

    @property
    def last_ms(self) -> float:
        return self.acknowledged[-1].at_ms if self.acknowledged else -1.0

    def _send(self) -> None:
        value = f"{self.number} {self._sequence} ".encode() + b"x" * self.clock.draw.randint(0, 40)
        time_ms = event_ms(self.clock)
        batch = encode_batch(
            [Record(0, time_ms, None, value)],
            producer_id=self.number,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )
        place = self.number, self._epoch, self._sequence
        self.handed.append(Handed(place, time_ms, content_of(batch)))
        self._ask(batch)

    def _ask(self, batch: bytes) -> None:
        request = ProduceRequest(
            None, -1, 1_500, [ProduceTopic(TOPIC, NO_UUID, [ProducePartition(0, bytearray(batch))])]
        )

        def again() -> None:
            self._look()
            self._ask(batch)

        def done(response: Any) -> None:
            if isinstance(response, Lost):
                self.last_answer = f"{response.problem} by broker {self._leader}"
                self._again(self.clock.between(*RETRY_MS), again)
                return
            result = response.topics[0].partitions[0]
            code = ErrorCode(result.error_code)
            self.last_answer = f"{code.name} {result.error_message} from broker {self._leader}"
            if code is ErrorCode.NONE:
                at_ms = self.clock.now_ms
                self.acknowledged.append(
                    Acknowledged(
                        self.number, self._sequence, result.base_offset, at_ms, self._epoch, self._leader
                    )
                )
                self._sequence += 1
                self.on_acknowledged()
                if not self.is_ending:
                    self._pause()
            elif self.may_lose and code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                # The leader has lost what came before, or never had it: a client goes on in a new epoch.
                self._epoch, self._sequence = self._epoch + 1, 0
                self._look()
                self._again(self.clock.between(*RETRY_MS), self._send)
            elif code in RETRIABLE or (code in OF_THE_PAST and not self._is_led_by(self._leader)):
                self._again(self.clock.between(*RETRY_MS), again)
            else:
                self.problems.append(
                    f"{self.name}: sequence {self._sequence} got {code.name} {result.error_message}"
                    f" from broker {self._leader} at {self.clock.now_ms:.0f} ms"
                )

        self._links[self._leader].ask(produce_call(request), done, ASK_MAX_MS)


class SimReader(SimClient):
    """Reads from the beginning. What it saw once must stay: it begins again from time to time.

    `names_epochs`: whether its fetches name the leader's epoch (KIP-320). Then nobody but the leader of that
    epoch may answer; so it asks the former leader, too, when it learns of a new one. `rack`: if it names one,
    followers answer, too (KIP-392), and are asked now and then.
    """

    def __init__(
        self, clock: Clock, network: Network, server: ZooKeeper, *, names_epochs: bool = False, rack: str = ""
    ) -> None:
        super().__init__("reader", clock, network, server)
        self._names_epochs = names_epochs
        self._rack = rack
        self._epoch = -1
        self._leaders: dict[int, int] = {}
        self.seen: dict[int, bytes] = {}
        self.position = 0
        self.damaged = 0
        self.last_ms = -1.0
        self._again(PAUSE_MS, self._ask)

    def _look(self) -> None:
        super()._look()
        if self._names_epochs:
            self._learn()

    def _learn(self) -> None:
        leader, epoch = self._led()
        if leader in self._links:
            self._epoch = epoch
            self._leaders[epoch] = leader

    def _suspect(self) -> None:
        """Learns who leads now, and asks the one before, which may not know."""
        before = self._epoch
        self._learn()
        if self._epoch != before:
            is_curious = self._leader != self._leaders[self._epoch] and self.clock.chance(0.7)
            self._leader = self._leader if is_curious else self._leaders[self._epoch]

    def _ask(self) -> None:
        if self._names_epochs and self.clock.chance(0.3):
            self._suspect()
        if self._rack and self.clock.chance(0.1):
            self._leader = self.clock.draw.randint(1, BROKERS)
        part = FetchPartition(0, self.position, 1 << 20, self._epoch)
        topics = [FetchTopic("", TOPIC_ID, [part])]
        request = FetchRequest(FETCH_WAIT_MS, 1, 1 << 24, topics, rack_id=self._rack)
        self._links[self._leader].ask(fetch_call(request, by_id=True), self._answered, ASK_MAX_MS)

    def _answered(self, response: Any) -> None:
        if isinstance(response, Lost) or response.error_code or not response.topics:
            self._look()
            self._again(self.clock.between(*RETRY_MS), self._ask)
            return
        result = response.topics[0].partitions[0]
        code = ErrorCode(result.error_code)
        if code in ANSWERS and self._leaders.get(self._epoch, self._leader) != self._leader:
            self.problems.append(
                f"broker {self._leader} answered {code.name} to a fetch that names epoch {self._epoch} of"
                f" broker {self._leaders[self._epoch]} at {self.clock.now_ms:.0f} ms"
            )
        if code is not ErrorCode.NONE:
            if code is ErrorCode.CORRUPT_MESSAGE:
                self.damaged += 1
            elif code is ErrorCode.OFFSET_OUT_OF_RANGE and self._may_begin_again():
                self.position = self.start_address()
            elif code not in RETRIABLE and (code not in OF_THE_PAST or self._is_led_by(self._leader)):
                self.problems.append(
                    f"the reader got {code.name} at address {self.position} from broker {self._leader}"
                    f" at {self.clock.now_ms:.0f} ms"
                )
            self._look()
            self._again(self.clock.between(*RETRY_MS), self._ask)
            return
        self._take(bytes(result.records or b""))
        if self.clock.chance(0.01):
            self.position = 0
        self._again(self.clock.between(0, READ_PAUSE_MS), self._ask)

    def _may_begin_again(self) -> bool:
        return self.may_lose or self.position < self.start_address()

    def _take(self, records: bytes) -> None:
        try:
            self._take_batches(records)
        except CorruptBatchError:
            self.damaged += 1
            self._look()

    def _take_batches(self, records: bytes) -> None:
        """Raises `CorruptBatchError`."""
        for at, header in hop(records):
            verify(records, at, header)
            if not header.is_stored_at(self.position):
                raise CorruptBatchError(f"a batch for address {self.position} says that it is elsewhere")
            batch = records[at : at + header.size_bytes]
            if self.may_lose:
                self.seen[self.position] = batch
            before = self.seen.setdefault(self.position, batch)
            if before != batch:
                self.problems.append(
                    f"the reader saw another batch at address {self.position} than before, from broker"
                    f" {self._leader} at {self.clock.now_ms:.0f} ms"
                )
            self.position += header.size_bytes
            self.last_ms = self.clock.now_ms
