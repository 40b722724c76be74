"""Simulated clients: an idempotent producer with acks=all and a reader, by the real wire format.

They are the judge's witnesses: small on purpose, and not the product's clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.broker.network.peers import Lost
from headrace.client.calls import fetch_call, produce_call
from headrace.coordination import documents, znodes
from headrace.wire.batch import hop, verify
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.wire.records import Record, encode_batch
from simulation.sim_clock import Clock, Life
from simulation.sim_network import Link, Network
from simulation.sim_zookeeper import ZooKeeper

TOPIC: Final = "t"
TOPIC_ID: Final = UUID(int=7)
ASK_MAX_MS: Final = 2_000.0
PAUSE_MS: Final = 60.0
FETCH_WAIT_MS: Final = 400
BROKERS: Final = 3
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


class Acknowledged(NamedTuple):
    """`epoch`: the producer's. `broker`: which one acknowledged it."""

    producer: int
    sequence: int
    offset: int
    at_ms: float
    epoch: int
    broker: int


class SimClient:
    """A client of the partition, which looks for its leader."""

    def __init__(self, name: str, clock: Clock, network: Network, server: ZooKeeper) -> None:
        self.name = name
        self.clock = clock
        self.life = Life(name)
        self.problems: list[str] = []
        self.may_lose = False
        """Whether the topic allows unclean elections: what was acknowledged or read may be gone then."""
        self._server = server
        self._links = {
            number: Link(network, name, self.life, lambda call: call(), number)
            for number in range(1, BROKERS + 1)
        }
        self._leader = 1

    def _look(self) -> None:
        """Learns who leads, perhaps late; otherwise tries any broker."""
        known = self.clock.chance(0.8)
        leader = next((each for each in self._links if known and self._is_led_by(each)), None)
        self._leader = leader or self.clock.draw.randint(1, BROKERS)

    def _is_led_by(self, broker: int) -> bool:
        node = self._server.nodes.get(znodes.partition_state(TOPIC, 0))
        return node is not None and int(documents.decode("state", node.data)["leader"]) == broker

    def _again(self, delay_ms: float, call: Callable[[], None]) -> None:
        self.clock.after(delay_ms, self.life, call)


class SimProducer(SimClient):
    """Sends numbered records, one batch at a time; one that is not acknowledged is sent again as it was."""

    def __init__(
        self, number: int, clock: Clock, network: Network, server: ZooKeeper, pause_ms: float
    ) -> None:
        super().__init__(f"producer-{number}", clock, network, server)
        self.number = number
        self._pause_ms = pause_ms
        self.acknowledged: list[Acknowledged] = []
        self.on_acknowledged: Callable[[], None] = lambda: None
        self.is_ending = False
        self.last_answer = "nothing"
        self._sequence = self._epoch = 0
        self._again(clock.between(0, self._pause_ms), self._send)

    @property
    def last_ms(self) -> float:
        return self.acknowledged[-1].at_ms if self.acknowledged else -1.0

    def _send(self) -> None:
        value = f"{self.number} {self._sequence} ".encode() + b"x" * self.clock.draw.randint(0, 40)
        batch = encode_batch(
            [Record(0, 1_000, None, value)],
            producer_id=self.number,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )
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
                self._again(self.clock.between(10, 200), again)
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
                    self._again(self.clock.between(0, self._pause_ms), self._send)
            elif self.may_lose and code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                # The leader has lost what came before, or never had it: a client goes on in a new epoch.
                self._epoch, self._sequence = self._epoch + 1, 0
                self._look()
                self._again(self.clock.between(10, 200), self._send)
            elif code in RETRIABLE or (code in OF_THE_PAST and not self._is_led_by(self._leader)):
                self._again(self.clock.between(10, 200), again)
            else:
                self.problems.append(
                    f"{self.name}: sequence {self._sequence} got {code.name} {result.error_message}"
                    f" from broker {self._leader} at {self.clock.now_ms:.0f} ms"
                )

        self._links[self._leader].ask(produce_call(request), done, ASK_MAX_MS)


class SimReader(SimClient):
    """Reads from the beginning. What it saw once must stay: it begins again from time to time."""

    def __init__(self, clock: Clock, network: Network, server: ZooKeeper) -> None:
        super().__init__("reader", clock, network, server)
        self.seen: dict[int, bytes] = {}
        self.position = 0
        self.damaged = 0
        self.last_ms = -1.0
        self._again(PAUSE_MS, self._ask)

    def _ask(self) -> None:
        part = FetchPartition(0, self.position, 1 << 20)
        request = FetchRequest(FETCH_WAIT_MS, 1, 1 << 24, [FetchTopic("", TOPIC_ID, [part])])
        self._links[self._leader].ask(fetch_call(request, by_id=True), self._answered, ASK_MAX_MS)

    def _answered(self, response: Any) -> None:
        if isinstance(response, Lost) or response.error_code or not response.topics:
            self._look()
            self._again(self.clock.between(10, 200), self._ask)
            return
        result = response.topics[0].partitions[0]
        code = ErrorCode(result.error_code)
        if code is not ErrorCode.NONE:
            if code is ErrorCode.CORRUPT_MESSAGE:
                self.damaged += 1
            elif code is ErrorCode.OFFSET_OUT_OF_RANGE and self.may_lose:
                self.position = 0
            elif code not in RETRIABLE and (code not in OF_THE_PAST or self._is_led_by(self._leader)):
                self.problems.append(
                    f"the reader got {code.name} at address {self.position} from broker {self._leader}"
                    f" at {self.clock.now_ms:.0f} ms"
                )
            self._look()
            self._again(self.clock.between(10, 200), self._ask)
            return
        self._take(bytes(result.records or b""))
        if self.clock.chance(0.01):
            self.position = 0
        self._again(self.clock.between(0, 30), self._ask)

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
