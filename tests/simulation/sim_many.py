"""A topic of several partitions beside the first one: their leaders are on all brokers, followers fetch
several of them at once, and single ones are moved.

Its producer has one batch on its way to each partition, often several in one request; its reader asks one
broker after the other for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.broker.network.links import Lost
from headrace.client.calls import fetch_call, produce_call
from headrace.coordination import documents, znodes
from headrace.coordination.partition_state import parse_topic
from headrace.coordination.topics import TopicRegistry
from headrace.wire.batch import hop, verify
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.wire.records import Record, encode_batch
from simulation.sim_clients import ASK_MAX_MS, BROKERS, OF_THE_PAST, RETRIABLE, SimClient
from simulation.sim_clock import WALL_MS
from simulation.sim_logs import Content, content_of
from simulation.sim_moves import Moves
from simulation.sim_session import SimSession

if TYPE_CHECKING:
    from simulation.sim_world import World

NAME: Final = "many"
TOPIC_ID: Final = UUID(int=2_000)
SHARE: Final = 0.15
"""How many worlds have this topic."""
PARTITIONS: Final = 5
REPLICAS_MIN: Final = 2
IDS_FROM: Final = 900_000
PAUSE_MS: Final = 700.0
READ_PAUSE_MS: Final = 500.0
AGAIN: Final = 0.03
"""How often the reader begins again."""
FETCH_WAIT_MS: Final = 200
PRODUCE_MAX_MS: Final = 1_500
ASTRAY: Final = 0.1
"""How often a request goes to any broker."""
MOVES_TIMES: Final = 2


class _Lane:
    """What its producer and its reader know of one partition. `acknowledged`: offsets by sequence."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sequence = 0
        self.batch: bytes | None = None
        self.is_asking = False
        self.acknowledged: dict[int, int] = {}
        self.last_ms = -1.0
        self.position = 0
        self.seen: dict[int, bytes] = {}


class SimMany(SimClient):
    """Makes the topic, produces into it, reads it, and has its partitions moved."""

    def __init__(self, world: World) -> None:
        super().__init__("many", world.clock, world.network, world.zookeeper)
        self._world = world
        self._lanes = [_Lane(number) for number in range(PARTITIONS)]
        self._is_ending = False
        session = SimSession(world.zookeeper, world.clock, self.life, "creator")
        replicas = {
            number: tuple((number + place) % BROKERS + 1 for place in range(BROKERS))
            for number in range(PARTITIONS)
        }
        TopicRegistry(session).create(NAME, TOPIC_ID, replicas, {"min.insync.replicas": "2"})
        self._again(PAUSE_MS, self._tick)
        self._again(READ_PAUSE_MS, self._read)

    def _state(self, number: int) -> dict[str, Any]:
        node = self._world.zookeeper.nodes[znodes.partition_state(NAME, number)]
        return documents.decode("state", node.data)

    def _replicas(self, number: int) -> list[int]:
        path = znodes.topic(NAME)
        _, partitions = parse_topic(path, self._world.zookeeper.nodes[path].data)
        return list(partitions[number].replicas)

    def _leads(self, broker: int, lane: _Lane) -> bool:
        return bool(self._state(lane.number)["leader"] == broker)

    # --- its producer ---

    def _tick(self) -> None:
        if self._is_ending:
            return
        self._again(self.clock.between(0, PAUSE_MS), self._tick)
        idle = [lane for lane in self._lanes if not lane.is_asking]
        by_broker: dict[int, list[_Lane]] = {}
        for lane in self.clock.draw.sample(idle, self.clock.draw.randint(0, len(idle))):
            leader = int(self._state(lane.number)["leader"])
            is_astray = leader not in self._links or self.clock.chance(ASTRAY)
            broker = self.clock.draw.randint(1, BROKERS) if is_astray else leader
            by_broker.setdefault(broker, []).append(lane)
        for broker, lanes in by_broker.items():
            self._send(broker, lanes)

    def _send(self, broker: int, lanes: Sequence[_Lane]) -> None:
        parts = []
        for lane in lanes:
            lane.is_asking = True
            if lane.batch is None:
                value = f"{lane.number} {lane.sequence} ".encode() + b"x" * self.clock.draw.randint(0, 40)
                lane.batch = encode_batch(
                    [Record(0, WALL_MS, None, value)],
                    producer_id=IDS_FROM + lane.number,
                    producer_epoch=0,
                    base_sequence=lane.sequence,
                )
            parts.append(ProducePartition(lane.number, bytearray(lane.batch)))
        request = ProduceRequest(None, -1, PRODUCE_MAX_MS, [ProduceTopic(NAME, NO_UUID, parts)])
        self._links[broker].ask(produce_call(request), partial(self._answered, broker, lanes), ASK_MAX_MS)

    def _answered(self, broker: int, lanes: Sequence[_Lane], response: Any) -> None:
        for lane in lanes:
            lane.is_asking = False
        if isinstance(response, Lost):
            return
        results = {each.partition: each for each in response.topics[0].partitions}
        for lane in lanes:
            result = results[lane.number]
            code = ErrorCode(result.error_code)
            if code is ErrorCode.NONE:
                lane.acknowledged[lane.sequence] = result.base_offset
                lane.last_ms = self.clock.now_ms
                lane.sequence, lane.batch = lane.sequence + 1, None
            elif code not in RETRIABLE and (code not in OF_THE_PAST or self._leads(broker, lane)):
                self._problem(
                    lane, f"sequence {lane.sequence} got {code.name} {result.error_message}", broker
                )

    def _problem(self, lane: _Lane, what: str, broker: int) -> None:
        self.problems.append(
            f"{NAME}-{lane.number}: {what} from broker {broker} at {self.clock.now_ms:.0f} ms"
        )

    # --- its reader ---

    def _read(self) -> None:
        broker = self.clock.draw.randint(1, BROKERS)
        if self.clock.chance(AGAIN):
            for lane in self._lanes:
                lane.position = 0
        parts = [FetchPartition(lane.number, lane.position, 1 << 16) for lane in self._lanes]
        request = FetchRequest(FETCH_WAIT_MS, 1, 1 << 20, [FetchTopic("", TOPIC_ID, parts)])

        def done(response: Any) -> None:
            self._again(self.clock.between(0, READ_PAUSE_MS), self._read)
            if not isinstance(response, Lost) and not response.error_code:
                for topic in response.topics:
                    for result in topic.partitions:
                        self._take(broker, self._lanes[result.partition], result)

        self._links[broker].ask(fetch_call(request, by_id=True), done, ASK_MAX_MS)

    def _take(self, broker: int, lane: _Lane, result: Any) -> None:
        code = ErrorCode(result.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._leads(broker, lane):
            self._problem(lane, f"the reader at {lane.position} got {code.name}", broker)
        if code is not ErrorCode.NONE:
            return
        records = bytes(result.records or b"")
        try:
            for at, header in hop(records):
                verify(records, at, header)
                if not header.is_stored_at(lane.position):
                    return  # a bit of its offset has rotted
                batch = records[at : at + header.size_bytes]
                if lane.seen.setdefault(lane.position, batch) != batch:
                    self._problem(lane, f"another batch at {lane.position} than before", broker)
                lane.position += header.size_bytes
        except CorruptBatchError:
            return

    # --- its partitions are moved ---

    def move(self) -> None:
        """A partition gets other replicas, or the same in another order."""
        broker = self._world.faults.living()
        if broker is None or broker.life.is_stopped or broker.is_leaving or self._is_ending:
            return
        draw = self.clock.draw
        number = draw.randrange(PARTITIONS)
        targets = draw.sample(range(1, BROKERS + 1), draw.randint(REPLICAS_MIN, BROKERS))
        self._world.faults.count("move-of-many")
        self._world.note(f"replicas of {NAME}-{number} are to be {targets}")
        Moves.ask(broker, NAME, {number: targets})

    # --- the end ---

    def end(self) -> None:
        self._is_ending = True

    def late(self, since_ms: float) -> list[str]:
        """Returns which partitions have taken nothing since, or have no leader."""
        return [
            f"{NAME}-{lane.number} takes nothing, its state is {self._state(lane.number)}"
            for lane in self._lanes
            if lane.last_ms <= since_ms
        ]

    def is_whole(self) -> bool:
        """Whether all replicas of each partition are in sync and know the same high watermark."""
        return all(self._is_whole(lane.number) for lane in self._lanes)

    def _is_whole(self, number: int) -> bool:
        replicas, in_sync = self._replicas(number), self._state(number)["isr"]
        ends = {self._world.brokers[each].high_watermark(NAME, number) for each in replicas}
        return set(replicas) == set(in_sync) and len(ends) == 1

    def judge(self, *, is_lossy: bool) -> list[str]:
        """Returns what is wrong with the logs of the closed brokers. `is_lossy`: whether bytes of a disk were
        lost for good, and some of this topic may be gone.
        """
        found = list(self.problems)
        for lane in self._lanes:
            logs = {each: self._content(each, lane.number) for each in self._replicas(lane.number)}
            if len(set(logs.values())) > 1:
                found.append(f"{NAME}-{lane.number}: the replicas {sorted(logs)} differ")
            for broker, log in logs.items():
                where = f"broker {broker}, {NAME}-{lane.number}"
                found.extend(f"{where}: {each}" for each in _problems(lane, log, is_lossy=is_lossy))
        return found

    def _content(self, broker: int, number: int) -> Content:
        folder: Path = self._world.folder_of(broker) / f"{NAME}-{number}"
        return content_of(folder)


def _problems(lane: _Lane, log: Content, *, is_lossy: bool) -> Iterable[str]:
    held: dict[int, list[int]] = {}
    for _, header in hop(log.data):
        held.setdefault(header.base_sequence, []).append(header.base_offset)
    if list(held) != sorted(held):
        yield f"its sequences are {list(held)}"
    for sequence, offset in lane.acknowledged.items():
        offsets = held.get(sequence, [])
        if offsets != [offset] and (len(offsets) > 1 or not is_lossy):
            yield f"sequence {sequence} was acknowledged at offset {offset}; the log holds it at {offsets}"
    for address, batch in lane.seen.items():
        if not is_lossy and log.between(address, address + len(batch)) != batch:
            yield f"what the reader saw at address {address} is gone"
