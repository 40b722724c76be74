"""A second topic of a world, deleted and made again under its name, and a producer that names it by its id.

Each record says in which life of the topic it was sent. What was acknowledged in the present life must be on
every replica; what was acknowledged in an earlier one must be gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.broker.network.links import Lost
from headrace.client.calls import produce_call
from headrace.coordination import documents, znodes
from headrace.coordination.errors import CoordinationError, TopicNotRegisteredError
from headrace.coordination.topics import TopicRegistry
from headrace.wire.batch import hop
from headrace.wire.errors import ErrorCode
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.wire.records import Record, decode_columns, encode_batch
from simulation.sim_clients import ASK_MAX_MS, BROKERS, SimClient
from simulation.sim_clock import WALL_MS, Clock, Life
from simulation.sim_network import Network
from simulation.sim_session import SimSession
from simulation.sim_zookeeper import ZooKeeper

NAME: Final = "remade"
IDS_FROM: Final = 1_000
LIVES_MS: Final = (500.0, 6_000.0)
ABSENT_MS: Final = (0.0, 0.0, 50.0, 1_500.0)
"""How long there is no such topic, at most: often it is made again at once."""
PAUSE_MS: Final = (10.0, 400.0)
RETRY_MS: Final = 200.0
PRODUCE_MAX_MS: Final = 1_500


class _Sent(NamedTuple):
    """`life`: which one of the topic it was sent in."""

    life: int
    number: int


class SimRemade(SimClient):
    """Makes the topic, deletes it, makes it again, and produces into it. No batch is sent twice."""

    def __init__(self, clock: Clock, network: Network, server: ZooKeeper) -> None:
        super().__init__("remade", clock, network, server)
        session = SimSession(server, clock, Life("creator-of-the-remade"), "creator")
        self._registry = TopicRegistry(session)
        self._life = 0
        self._exists = self._is_settled = self._is_ending = False
        self._numbers = 0
        self._acknowledged: dict[_Sent, tuple[int, int]] = {}
        """The life of the topic in which the acknowledgement came, and the offset."""
        self.last_ms = -1.0
        self._again(0.0, self._act)
        self._again(clock.between(*PAUSE_MS), self._send)

    # --- the topic ---

    @property
    def topic_id(self) -> UUID:
        return UUID(int=IDS_FROM + self._life)

    def _act(self) -> None:
        if self._exists and self._is_settled:
            return
        try:
            if self._exists:
                self._delete()
            else:
                self._create()
        except CoordinationError:
            self._again(RETRY_MS, self._act)  # it may have been done

    def _create(self) -> None:
        replicas = list(range(1, BROKERS + 1))
        # The same replicas in each life: then a state of one life looks like that of another.
        config = {"min.insync.replicas": "2"}
        self._registry.create(NAME, self.topic_id, {0: tuple(replicas)}, config)
        self._exists = True
        self._again(self.clock.between(*LIVES_MS), self._act)

    def _delete(self) -> None:
        with suppress(TopicNotRegisteredError):  # an earlier attempt did it
            self._registry.delete(NAME, self.topic_id)
        self._exists = False
        self._life += 1
        self._again(self.clock.between(0.0, self.clock.draw.choice(ABSENT_MS)), self._act)

    def settle(self) -> None:
        """The topic stays as it is from now on, or as soon as it exists."""
        self._is_settled = True

    def end(self) -> None:
        """Sends nothing more."""
        self._is_ending = True

    def is_whole(self, high_watermarks: set[int]) -> bool:
        """Whether all replicas are in sync, and know the same high watermark."""
        state = self._state()
        return state is not None and len(state["isr"]) == BROKERS and len(high_watermarks) == 1

    def _state(self) -> dict[str, Any] | None:
        node = self._server.nodes.get(znodes.partition_state(NAME, 0))
        return None if node is None else documents.decode("state", node.data)

    def _led(self) -> tuple[int, int]:
        state = self._state()
        return (-1, -1) if state is None else (int(state["leader"]), int(state["leader_epoch"]))

    # --- its producer ---

    def _send(self) -> None:
        if self._is_ending:
            return
        self._again(self.clock.between(*PAUSE_MS), self._send)
        if not self._exists:
            return
        self._look()
        self._numbers += 1
        sent = _Sent(self._life, self._numbers)
        value = f"{sent.life} {sent.number} ".encode() + b"x" * self.clock.draw.randint(0, 40)
        batch = encode_batch([Record(0, WALL_MS, None, value)])
        part = ProducePartition(0, bytearray(batch))
        request = ProduceRequest(None, -1, PRODUCE_MAX_MS, [ProduceTopic("", self.topic_id, [part])])
        call = produce_call(request, by_id=True)
        self._links[self._leader].ask(call, partial(self._answered, sent), ASK_MAX_MS)

    def _answered(self, sent: _Sent, response: Any) -> None:
        if isinstance(response, Lost):
            return
        result = response.topics[0].partitions[0]
        if result.error_code == ErrorCode.NONE:
            self._acknowledged[sent] = self._life, result.base_offset
            if self._exists and sent.life == self._life:
                self.last_ms = self.clock.now_ms

    # --- the judgement ---

    def judge(self, logs: Mapping[int, bytes], *, is_lossy: bool) -> list[str]:
        """Returns what is wrong with the logs in the end. `is_lossy`: whether bytes of a disk were lost
        for good, and some of this topic may be gone.
        """
        return [
            f"broker {number}, topic {NAME}: {problem}"
            for number, content in logs.items()
            for problem in self._problems(content, is_lossy=is_lossy)
        ]

    def _problems(self, content: bytes, *, is_lossy: bool) -> list[str]:
        held: dict[_Sent, int] = {}
        problems = []
        for at, header in hop(content):
            (value,) = decode_columns(content[at : at + header.size_bytes]).values
            in_life, number, _ = (value or b"").split(b" ", 2)
            sent = _Sent(int(in_life), int(number))
            if sent in held:
                problems.append(f"record {sent.number} is there twice, and was sent once")
            held[sent] = header.base_offset
        for sent, (life, offset) in self._acknowledged.items():
            if life < self._life and sent in held:
                problems.append(f"record {sent.number} was acknowledged in life {life}, which was deleted")
            elif sent.life == life == self._life and held.get(sent) != offset and not is_lossy:
                problems.append(
                    f"record {sent.number} was acknowledged at offset {offset} in life {life}, the present"
                    f" one; the log holds it at {held.get(sent, 'none')}"
                )
        return problems[:4]
