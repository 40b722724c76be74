"""Simulated members of one group beside each other, by Kafka's group protocol; the coordinator is real.

There is one partition, so one member has it and the other waits. They leave, die, and hang: a member that
hung commits first what it had read before, in a generation that may be over. A confirmed commit must not be
gone, nothing may be skipped, and a member whose generation is over must not commit, at no coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.broker.network.links import Lost
from headrace.client.calls import Call, Schema, control_call, fetch_call, milliseconds
from headrace.wire.apis import ApiKey
from headrace.wire.batch import hop
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from simulation.sim_clients import ASK_MAX_MS, BROKERS, TOPIC, TOPIC_ID, SimClient
from simulation.sim_clock import Clock
from simulation.sim_network import Network
from simulation.sim_zookeeper import ZooKeeper

GROUP: Final = "members"
MEMBERS: Final = 2
SESSION_MS: Final = 2_000.0
REBALANCE_MS: Final = 1_500.0
JOIN_MAX_MS: Final = 6_000.0
HEARTBEAT_MS: Final = 600.0
TURN_MS: Final = 400.0
FETCH_WAIT_MS: Final = 300
HANG_MIN_MS: Final = 300.0
HANG_MAX_MS: Final = 4_000.0
LEAVES: Final = 0.01
DIES: Final = 0.01
HANGS: Final = 0.02
OWNS: Final = b"0"
NOBODY: Final = ""
NO_GENERATION: Final = -1
Take = Callable[[Any], None]


class SimMembers:
    """The group, and what is known of its offsets. `floor`: below it a member must not be told to begin.

    `turns`: how often a member took the partition; `owner`: who took it last.
    """

    def __init__(self, clock: Clock, network: Network, server: ZooKeeper) -> None:
        self.problems: list[str] = []
        self.confirmed_ms = -1.0
        self.start_address: Callable[[], int] = lambda: 0
        """Below it events have expired."""
        self.floor = self.read_to = 0
        self.floor_turn = self.turns = 0
        self.owner = NOBODY
        self.members = [SimMember(number, self, clock, network, server) for number in range(1, MEMBERS + 1)]

    def tries(self, turn: int, offset: int) -> None:
        """A member commits. Who took the partition last may have begun lower, and may be stored unseen."""
        if turn == self.turns and offset < self.floor:
            self.floor, self.floor_turn = offset, turn

    def confirm(self, turn: int, offset: int, at_ms: float) -> None:
        self.confirmed_ms = at_ms
        if (turn, offset) > (self.floor_turn, self.floor):
            self.floor_turn, self.floor = turn, offset


class SimMember(SimClient):
    """One member. It has one request on its way at a time."""

    def __init__(
        self, number: int, group: SimMembers, clock: Clock, network: Network, server: ZooKeeper
    ) -> None:
        super().__init__(f"member-{number}", clock, network, server)
        self._group = group
        self._coordinator: int | None = None
        self._member_id = NOBODY
        self._is_late = False
        self._forget_generation()
        self._again(TURN_MS * number, self._turn)

    def _forget_generation(self) -> None:
        self._generation = NO_GENERATION
        self._assignments: dict[str, bytes] | None = None
        self._owns: bool | None = None
        self._position: int | None = None
        self._committed = self._turn_number = 0
        self._beat_ms = -HEARTBEAT_MS

    def _forget_member(self) -> None:
        self._member_id = NOBODY
        self._forget_generation()

    # --- what it does next ---

    def _turn(self) -> None:
        if self._coordinator is None:
            self._ask(self.clock.draw.randint(1, BROKERS), _find_coordinator(), self._found)
        elif self._generation == NO_GENERATION:
            self._ask(self._coordinator, _join(self._member_id), self._joined, JOIN_MAX_MS)
        elif self._owns is None:
            call = _sync(self._generation, self._member_id, self._assignments or {})
            self._ask(self._coordinator, call, self._synced, JOIN_MAX_MS)
        elif self._is_late and self._position is not None:
            self._is_late = False
            self._commit()
        elif not self._misbehaves():
            self._work(self._coordinator)

    def _work(self, coordinator: int) -> None:
        if self.clock.now_ms - self._beat_ms >= HEARTBEAT_MS:
            self._beat_ms = self.clock.now_ms
            self._ask(coordinator, _heartbeat(self._generation, self._member_id), self._beaten)
        elif not self._owns:
            self._again(self.clock.between(0, HEARTBEAT_MS), self._turn)
        elif self._position is None:
            floor = self._group.floor
            self._ask(coordinator, _fetch_offset(), lambda response: self._resumed(floor, response))
        elif self._position > self._committed and self.clock.chance(0.6):
            self._commit()
        else:
            part = FetchPartition(0, self._position, 1 << 20)
            request = FetchRequest(FETCH_WAIT_MS, 1, 1 << 24, [FetchTopic("", TOPIC_ID, [part])])
            self._ask(self._leader, fetch_call(request, by_id=True), self._read)

    def _misbehaves(self) -> bool:
        drawn = self.clock.draw.random()
        if drawn < LEAVES:
            call = _leave(self._member_id)
            self._forget_member()
            assert self._coordinator is not None
            self._ask(self._coordinator, call, lambda _: None)
        elif drawn < LEAVES + DIES:
            self._forget_member()
            self._again(self.clock.between(HANG_MIN_MS, HANG_MAX_MS), self._turn)
        elif drawn < LEAVES + DIES + HANGS:
            self._is_late = True
            self._again(self.clock.between(HANG_MIN_MS, HANG_MAX_MS), self._turn)
        else:
            return False
        return True

    def _ask(self, broker: int, call: Call, take: Take, timeout_ms: float = ASK_MAX_MS) -> None:
        def done(response: Any) -> None:
            if isinstance(response, Lost):
                self._look()
                self._coordinator = None
            else:
                take(response)
            self._again(self.clock.between(0, TURN_MS), self._turn)

        self._links[broker].ask(call, done, timeout_ms)

    # --- answers ---

    def _found(self, response: Any) -> None:
        if response.error_code == ErrorCode.NONE:
            self._coordinator = int(response.node_id)

    def _is_refused(self, code: int) -> bool:
        """Whether the coordinator did not do what it was asked. Then begins where that error leads."""
        if code == ErrorCode.NONE:
            return False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget_member()
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS):
            self._forget_generation()
        elif code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._coordinator = None
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass  # ZooKeeper does not answer it: it is asked again
        else:
            self._group.problems.append(f"{self.name} got {ErrorCode(code).name} at {self._now}")
        return True

    @property
    def _now(self) -> str:
        return f"{self.clock.now_ms:.0f} ms from broker {self._coordinator}"

    def _joined(self, response: Any) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
        elif not self._is_refused(response.error_code):
            self._member_id, self._generation = response.member_id, response.generation_id
            if response.leader == response.member_id:
                chosen = self.clock.draw.choice([each.member_id for each in response.members])
                self._assignments = {chosen: OWNS}

    def _synced(self, response: Any) -> None:
        if not self._is_refused(response.error_code):
            self._owns = response.assignment == OWNS

    def _beaten(self, response: Any) -> None:
        code = response.error_code
        is_unsaid = self._position is not None and self._position > self._committed
        if code == ErrorCode.REBALANCE_IN_PROGRESS and is_unsaid and self.clock.chance(0.7):
            return  # it commits first, and hears of the rebalance again
        self._is_refused(code)

    def _resumed(self, floor: int, response: Any) -> None:
        if self._is_refused(response.error_code):
            return
        offsets = [part.committed_offset for topic in response.topics for part in topic.partitions]
        offset = max(0, offsets[0] if offsets else 0)
        group = self._group
        if offset < floor:
            group.problems.append(f"{self.name} begins at {offset} at {self._now}; {floor} was confirmed")
        if offset > group.read_to:
            group.problems.append(f"{self.name} begins at {offset} at {self._now}; read is {group.read_to}")
        group.turns += 1
        group.owner = self._member_id
        self._turn_number, self._position, self._committed = group.turns, offset, offset

    def _commit(self) -> None:
        assert self._position is not None and self._coordinator is not None
        group, turn, offset = self._group, self._turn_number, self._position
        group.tries(turn, offset)
        is_over = turn < group.turns and group.owner != self._member_id

        def committed(response: Any) -> None:
            if self._is_refused(response.topics[0].partitions[0].error_code):
                return
            self._committed = max(self._committed, offset)
            group.confirm(turn, offset, self.clock.now_ms)
            if is_over:
                group.problems.append(
                    f"{self.name} committed {offset} at {self._now}, and another member had begun before"
                )

        self._ask(self._coordinator, _commit(self._generation, self._member_id, offset), committed)

    def _go_to_the_start(self) -> None:
        """If what comes next has expired."""
        start = self._group.start_address()
        if self._position is not None and self._position < start:
            self._position = start
            self._group.read_to = max(self._group.read_to, start)

    def _read(self, response: Any) -> None:
        result = response.topics[0].partitions[0] if response.topics else None
        if result is not None and result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._go_to_the_start()
        if response.error_code or result is None or result.error_code != ErrorCode.NONE:
            self._look()
            return
        if self._position is None:
            return
        try:
            for _, header in hop(bytes(result.records or b"")):
                self._position = header.next_offset
        except CorruptBatchError:
            self._look()
        self._group.read_to = max(self._group.read_to, self._position)


# --- requests ---


def _find_coordinator() -> Call:
    return control_call(
        ApiKey.FIND_COORDINATOR, lambda schema: schema.make("FindCoordinatorRequest", key=GROUP, key_type=0)
    )


def _join(member_id: str) -> Call:
    def build(schema: Schema) -> Any:
        return schema.make(
            "JoinGroupRequest",
            group_id=GROUP,
            session_timeout=milliseconds(SESSION_MS),
            rebalance_timeout=milliseconds(REBALANCE_MS),
            member_id=member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=(schema.make("JoinGroupRequestProtocol", name="one", metadata=b""),),
        )

    return control_call(ApiKey.JOIN_GROUP, build)


def _sync(generation: int, member_id: str, assignments: dict[str, bytes]) -> Call:
    def build(schema: Schema) -> Any:
        made = [
            schema.make("SyncGroupRequestAssignment", member_id=each, assignment=assignment)
            for each, assignment in assignments.items()
        ]
        return schema.make(
            "SyncGroupRequest",
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=None,
            assignments=tuple(made),
        )

    return control_call(ApiKey.SYNC_GROUP, build)


def _heartbeat(generation: int, member_id: str) -> Call:
    def build(schema: Schema) -> Any:
        return schema.make(
            "HeartbeatRequest",
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=None,
        )

    return control_call(ApiKey.HEARTBEAT, build)


def _leave(member_id: str) -> Call:
    def build(schema: Schema) -> Any:
        member = schema.make("MemberIdentity", member_id=member_id, group_instance_id=None)
        return schema.make("LeaveGroupRequest", group_id=GROUP, members=(member,))

    return control_call(ApiKey.LEAVE_GROUP, build)


def _fetch_offset() -> Call:
    def build(schema: Schema) -> Any:
        return schema.make("OffsetFetchRequest", group_id=GROUP, topics=None, require_stable=False)

    return control_call(ApiKey.OFFSET_FETCH, build)


def _commit(generation: int, member_id: str, offset: int) -> Call:
    def build(schema: Schema) -> Any:
        part = schema.make(
            "OffsetCommitRequestPartition", partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topic = schema.make("OffsetCommitRequestTopic", name=TOPIC, partitions=(part,))
        return schema.make(
            "OffsetCommitRequest",
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=None,
            topics=(topic,),
        )

    return control_call(ApiKey.OFFSET_COMMIT, build)
