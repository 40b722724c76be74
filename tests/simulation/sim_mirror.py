"""A simulated mirror: the real decisions of `mirror.copying` and `mirror.locating` on the simulated network.

Its target is a log of its own, which never fails. What it has copied must be in the source for ever. Calls
that block in the real mirror let the world go on meanwhile.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from headrace.broker.network.links import Lost
from headrace.client.calls import EARLIEST, LATEST, Call, fetch_call, leader_epochs_call, list_offsets_call
from headrace.client.errors import BrokerError, ClientError, NetworkError
from headrace.log.epochs import EpochEnd
from headrace.log.partition import PartitionLog
from headrace.mirror.copying import CopyState, PartitionCopy
from headrace.mirror.lanes import MOVED
from headrace.mirror.locating import Located, LocatingError, SourceGapError, locate
from headrace.mirror.side import Bounds
from headrace.replication.gaps import AcceptedGap
from headrace.replication.pull import REFUSED, DamagedBatchError, Fetched, ReplicationError, SourceBehindError
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from simulation.sim_clients import ASK_MAX_MS, TOPIC, TOPIC_ID, SimClient
from simulation.sim_clock import Clock
from simulation.sim_network import Network
from simulation.sim_zookeeper import ZooKeeper

CALL_MAX_MS: Final = 10_000.0
TURN_MS: Final = 40.0
COPY_ID: Final = UUID(int=8)
FETCH_WAIT_MS: Final = 500
FETCH_MAX_BYTES: Final = 1 << 20
RESTART: Final = 0.002
"""How often a turn begins with a mirror that knows nothing but its copy's end."""


class _Source(SimClient):
    """The source, as `locate` sees it."""

    def call(self, call: Call, deadline_ms: float) -> Any:
        """Raises `NetworkError`."""
        found: list[Any] = []
        self._links[self._leader].ask(call, found.append, ASK_MAX_MS)
        self.clock.run_while(lambda: not found, deadline_ms)
        if not found or isinstance(found[0], Lost):
            self._look()
            raise NetworkError(f"broker {self._leader} does not answer")
        return found[0]

    def _offset(self, which: int) -> int:
        """Asks until there is an answer, as the real client. Raises `ClientError`."""
        deadline_ms = self.clock.now_ms + CALL_MAX_MS
        problem: ClientError = NetworkError("nobody was asked")
        while self.clock.now_ms < deadline_ms:
            try:
                response = self.call(list_offsets_call({TOPIC: {0: which}}), deadline_ms)
                result = response.topics[0].partitions[0]
                if result.error_code == ErrorCode.NONE:
                    return int(result.offset)
                problem = BrokerError(result.error_code, "list offsets")
            except NetworkError as error:
                problem = error
            self._look()
            self.clock.run_while(lambda: True, self.clock.now_ms + 100.0)
        raise problem

    def topic_id(self, _: str) -> UUID:
        return TOPIC_ID

    def bounds(self, _: str, partitions: list[int]) -> dict[int, Bounds]:
        start, end = self._offset(EARLIEST), self._offset(LATEST)
        return {each: Bounds(start, end) for each in partitions}

    def epoch_ends(self, topic: str, epochs: Mapping[int, int]) -> dict[int, EpochEnd]:
        if not epochs:
            return {}
        response = self.call(leader_epochs_call({topic: dict(epochs)}), self.clock.now_ms + CALL_MAX_MS)
        result = response.topics[0].partitions[0]
        if result.error_code != ErrorCode.NONE:
            self._look()
            return {}
        return {result.partition: EpochEnd(result.leader_epoch, result.end_offset)}

    def fetch(self, _: str, partition: int, address: int, max_bytes: int) -> Fetched:
        part = FetchPartition(partition, address, max_bytes)
        request = FetchRequest(0, 0, max_bytes, [FetchTopic("", TOPIC_ID, [part])])
        response = self.call(fetch_call(request, by_id=True), self.clock.now_ms + CALL_MAX_MS)
        result = response.topics[0].partitions[0]
        code = ErrorCode(result.error_code)
        if code is ErrorCode.CORRUPT_MESSAGE:
            raise DamagedBatchError(address, None, REFUSED)
        if code is not ErrorCode.NONE:
            self._look()
            raise BrokerError(code, f"fetch at {address}")
        return Fetched(result.records or b"", result.log_start_offset, result.high_watermark)

    def readable_after(self, *_: object) -> int | None:
        return None


class _Target:
    """The copy, as `locate` sees it."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def topic_id(self, _: str) -> UUID:
        return COPY_ID

    def bounds(self, _: str, partitions: list[int]) -> dict[int, Bounds]:
        return {each: Bounds(self._log.start_address, self._log.end_address) for each in partitions}

    def accepted_gaps(self, _: str) -> tuple[AcceptedGap, ...]:
        return ()

    def fetch(self, _topic: str, _partition: int, address: int, max_bytes: int) -> Fetched:
        data = b"".join(each.read() for each in self._log.slices(address, max_bytes))
        return Fetched(data, self._log.start_address, self._log.end_address)


class SimMirror(_Source):
    """Copies the partition. `last_ms`: when it got bytes last; `halts`: why it stopped for good."""

    def __init__(self, folder: Path, clock: Clock, network: Network, server: ZooKeeper) -> None:
        super().__init__("mirror", clock, network, server)
        self._folder = folder
        self.log = PartitionLog(folder)
        self.halts: list[str] = []
        self.last_ms = -1.0
        self._begin()
        self._again(TURN_MS, self._turn)

    def _begin(self) -> None:
        self.copy = PartitionCopy(TOPIC, 0, 0, draw=self.clock.draw.random)

    def recheck(self) -> None:
        """Somebody has mended the source."""
        self.copy.recheck()

    @property
    def _now_s(self) -> float:
        return self.clock.now_ms / 1000

    def _turn(self) -> None:
        if self.clock.chance(RESTART):
            self._begin()
        copy = self.copy
        if copy.needs_locating(self._now_s):
            self._locate(copy)
        address = copy.next_fetch_address()
        if address is None:
            self._again(TURN_MS, self._turn)
            return
        part = FetchPartition(0, address, FETCH_MAX_BYTES, last_fetched_epoch=copy.fetched_epoch)
        request = FetchRequest(FETCH_WAIT_MS, 1, FETCH_MAX_BYTES, [FetchTopic("", TOPIC_ID, [part])])
        generation = copy.generation

        def done(response: Any) -> None:
            if self.copy is copy:
                self._fetched(copy, generation, address, response)
            self._again(self.clock.between(0, TURN_MS), self._turn)

        self._links[self._leader].ask(fetch_call(request, by_id=True), done, ASK_MAX_MS)

    def _fetched(self, copy: PartitionCopy, generation: int, address: int, response: Any) -> None:
        if isinstance(response, Lost) or response.error_code or not response.topics:
            self._look()
            return
        result = response.topics[0].partitions[0]
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE and result.diverging_epoch is not None:
            copy.has_parted(generation, self._now_s)
        elif code is ErrorCode.NONE:
            records = result.records or b""
            fetched = Fetched(records, result.log_start_offset, result.high_watermark)
            copy.fetched(generation, address, fetched, self._now_s, is_all_empty=not records)
        elif code in MOVED:
            self._look()
        elif code is ErrorCode.CORRUPT_MESSAGE:
            copy.refused_as_damaged(generation, address, self._now_s)
        else:
            copy.back_off(f"the source answered {code.name} at address {address}", self._now_s)
        while copy.wants_append():
            chunk = copy.next_append()
            self.log.append_verbatim(chunk.data)
            self.log.flush()
            self.last_ms = self.clock.now_ms
            copy.appended(chunk, self._now_s)

    def _locate(self, copy: PartitionCopy) -> None:
        source: Any = self
        target: Any = _Target(self.log)
        suspects = {} if copy.suspect is None else {0: copy.suspect}
        try:
            found: Located | LocatingError = locate(source, target, TOPIC, {0: 0}, suspects)[0]
        except ClientError as error:
            found = error
        if isinstance(found, Located):
            copy.located(*found)
        elif isinstance(found, SourceBehindError):
            copy.source_is_behind(str(found), self._now_s)
            if self.is_halted:
                self.halts.append(f"{found} ({self.clock.now_ms:.0f} ms, broker {self._leader})")
        elif isinstance(found, SourceGapError) and found.source_start <= self.start_address():
            self._begin_anew()  # as an operator may: what lies between has expired
        elif isinstance(found, ReplicationError):
            self.halts.append(f"{found} ({self.clock.now_ms:.0f} ms, broker {self._leader})")
            copy.halt(str(found), self._now_s)
        else:
            copy.back_off(str(found), self._now_s)

    def _begin_anew(self) -> None:
        self.log.close()
        shutil.rmtree(self._folder)
        self.log = PartitionLog(self._folder)
        self._begin()

    @property
    def is_halted(self) -> bool:
        return self.copy.state is CopyState.HALTED
