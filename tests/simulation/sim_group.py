"""A simulated member of a group: it reads, commits what it has read, dies, and goes on where it committed.

Only one such client is alive at a time, and it commits as a client that assigns partitions itself. A commit
that was confirmed must never be gone, and nothing be skipped.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from headrace.broker.network.links import Lost
from headrace.client.calls import Call, Schema, control_call, fetch_call
from headrace.wire.apis import ApiKey
from headrace.wire.batch import hop
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from simulation.sim_clients import ASK_MAX_MS, BROKERS, TOPIC, TOPIC_ID, SimClient
from simulation.sim_clock import Clock
from simulation.sim_network import Network
from simulation.sim_zookeeper import ZooKeeper

GROUP: Final = "g"
TURN_MS: Final = 500.0
FETCH_WAIT_MS: Final = 300
DEATH: Final = 0.15
"""How often a member dies after a commit."""
NOTHING: Final = -1


def _find_coordinator() -> Call:
    return control_call(
        ApiKey.FIND_COORDINATOR, lambda schema: schema.make("FindCoordinatorRequest", key=GROUP, key_type=0)
    )


def _fetch_offset() -> Call:
    def build(schema: Schema) -> Any:
        return schema.make("OffsetFetchRequest", group_id=GROUP, topics=None, require_stable=False)

    return control_call(ApiKey.OFFSET_FETCH, build)


def _commit(offset: int) -> Call:
    def build(schema: Schema) -> Any:
        part = schema.make(
            "OffsetCommitRequestPartition", partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topic = schema.make("OffsetCommitRequestTopic", name=TOPIC, partitions=(part,))
        return schema.make(
            "OffsetCommitRequest",
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=(topic,),
        )

    return control_call(ApiKey.OFFSET_COMMIT, build)


class SimGroup(SimClient):
    """One member after the other. `confirmed`: the greatest offset whose commit was answered."""

    def __init__(self, clock: Clock, network: Network, server: ZooKeeper) -> None:
        super().__init__("group", clock, network, server)
        self.confirmed = NOTHING
        self.confirmed_ms = NOTHING * 1.0
        self._tried = NOTHING
        self._read_to = 0  # by any member
        self._position: int | None = None
        self._coordinator: int | None = None
        self._again(TURN_MS, self._turn)

    def _ask(self, broker: int, call: Call, take: Any) -> None:
        def done(response: Any) -> None:
            if isinstance(response, Lost) or take(response) is False:
                self._coordinator = None
                self._look()
            self._again(self.clock.between(0, TURN_MS), self._turn)

        self._links[broker].ask(call, done, ASK_MAX_MS)

    def _turn(self) -> None:
        if self._coordinator is None:
            self._ask(self.clock.draw.randint(1, BROKERS), _find_coordinator(), self._found)
        elif self._position is None:
            self._ask(self._coordinator, _fetch_offset(), self._resume)
        elif self._position > max(self._tried, 0) and self.clock.chance(0.7):
            self._tried = self._position
            self._ask(self._coordinator, _commit(self._position), partial(self._committed, self._position))
        else:
            part = FetchPartition(0, self._position, 1 << 20)
            request = FetchRequest(FETCH_WAIT_MS, 1, 1 << 24, [FetchTopic("", TOPIC_ID, [part])])
            self._ask(self._leader, fetch_call(request, by_id=True), self._read)

    def _found(self, response: Any) -> bool:
        if response.error_code != ErrorCode.NONE:
            return False
        self._coordinator = int(response.node_id)
        return True

    def _resume(self, response: Any) -> bool:
        if response.error_code != ErrorCode.NONE:
            return False
        offsets = [part.committed_offset for topic in response.topics for part in topic.partitions]
        offset = offsets[0] if offsets else NOTHING
        where = f"from broker {self._coordinator} at {self.clock.now_ms:.0f} ms"
        if offset < self.confirmed:
            self.problems.append(
                f"the group's offset is {offset} {where}, but {self.confirmed} was confirmed at"
                f" {self.confirmed_ms:.0f} ms"
            )
        if offset > self._read_to:
            self.problems.append(
                f"the group's offset is {offset} {where}, but it has read to {self._read_to}"
            )
        self._position = max(0, offset)
        self._tried = self._position
        return True

    def _committed(self, offset: int, response: Any) -> bool:
        code = response.topics[0].partitions[0].error_code
        if code != ErrorCode.NONE:
            self._tried = NOTHING
            return False
        if offset > self.confirmed:
            self.confirmed, self.confirmed_ms = offset, self.clock.now_ms
        if self.clock.chance(DEATH):
            self._position = self._coordinator = None
        return True

    def _read(self, response: Any) -> bool:
        result = response.topics[0].partitions[0] if response.topics else None
        assert self._position is not None
        is_expired = self._position < self.start_address()
        if result is not None and result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and is_expired:
            self._position = self.start_address()
            self._read_to = max(self._read_to, self._position)
            return True
        if response.error_code or result is None or result.error_code != ErrorCode.NONE:
            return False
        try:
            for _, header in hop(bytes(result.records or b"")):
                self._position = header.next_offset
        except CorruptBatchError:
            return False
        self._read_to = max(self._read_to, self._position)
        return True
