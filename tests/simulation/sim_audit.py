"""The audit of a world: real counting while faults come, real verdicts in the end, beside what is true.

An auditor counts the partition as its leader shows it, through the real handlers, and dies now and then. In
the end publishers report what they were handed, a copy and a load of all that is left are reported, and the
report must call lost exactly what no log holds any more. Every other hour is complete, or unknown by exactly
the records that no publisher reported: a batch that an unclean election cut off was sent again by another
number, and comes back with an older copy of a disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from drill.drill_logs import SimAuditor, SimLog, Stored
from drill.drill_truth import Harm, Identity, harms_of, hour_of
from fix_audit_world import WAREHOUSE, received
from headrace.audit.batches.raw_reader import RawBytes
from headrace.audit.counting.partition_counter import CountedPartition, SourcePartition
from headrace.audit.findings import PRODUCER_HOP, Status
from headrace.audit.report.report import report
from headrace.audit.store.columns import metadata
from headrace.audit.store.store import AuditStore
from headrace.audit.store.tables import meta
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.load_report import LoadedPartition, LoadReport
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER, HandoverTally, ProducerReport
from headrace.client.calls import EARLIEST, LATEST, Call, fetch_call, leader_epochs_call, list_offsets_call
from headrace.client.errors import BrokerError, ClientError
from headrace.wire.batch import hop, verify
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from simulation.sim_clients import TOPIC, TOPIC_ID, Handed, SimClient, SimProducer
from simulation.sim_clock import WALL_MS, Clock
from simulation.sim_network import Host, Network
from simulation.sim_product_clients import ProductProducer
from simulation.sim_zookeeper import ZooKeeper

DATACENTER: Final = "simulated"
SOURCE: Final = SourcePartition(DATACENTER, 0, str(TOPIC_ID))
ROUND_MS: Final = 700.0
RESTART: Final = 0.03
DIES: Final = 0.05
"""How often an auditor dies between its tallies and the heartbeat that vouches for them."""
READ_MAX_BYTES: Final = 1 << 24
LATER_MS: Final = 24 * HOUR_MS
LAST_ROUNDS: Final = 5
SHOWN_MAX: Final = 4


class _SourceLog(SimClient):
    """The log as its leader shows it, for counting. Raises `ClientError` if nobody answers as the leader."""

    topic_id = str(TOPIC_ID)

    def __init__(self, clock: Clock, network: Network, server: ZooKeeper) -> None:
        super().__init__("auditor", clock, network, server)
        self._network = network
        self._host: Host | None = None
        self.is_interrupted = False
        """Whether another process answers than before, or one did not."""
        self._end: int | None = None

    def _ask(self, call: Call) -> Any:
        host = self._network.hosts.get(self._leader)
        try:
            body = self._network.ask_now(self.name, self._leader, call)
        except ClientError:
            self._lose()
            raise
        if host is not self._host:
            self._host, self.is_interrupted = host, True
        return body

    def _lose(self) -> None:
        self.is_interrupted = True
        self._look()

    def _result(self, call: Call) -> Any:
        body = self._ask(call)
        result = body.topics[0].partitions[0] if body.topics else body
        if result.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            self._lose()
            raise BrokerError(result.error_code, f"broker {self._leader}")
        return result

    def _offset(self, which: int) -> int:
        return int(self._result(list_offsets_call({TOPIC: {0: which}})).offset)

    @property
    def start(self) -> int:
        return self._offset(EARLIEST)

    @property
    def end(self) -> int:
        if self._end is None:
            self._end = self._offset(LATEST)
        return self._end

    def look_again(self) -> None:
        """A round begins: in one round the end is asked for once."""
        self._end = None

    def _fetch(self, address: int, max_bytes: int) -> Any:
        part = FetchPartition(0, address, max_bytes)
        return self._result(
            fetch_call(
                FetchRequest(0, 0, max_bytes, [FetchTopic("", TOPIC_ID, [part])], wants_addresses=True),
                by_id=True,
            )
        )

    def since(self, address: int) -> list[Stored]:
        """Returns the batches from there on, up to the first damaged one."""
        assert self.end >= 0  # who cannot tell the end afterwards would lose what was counted
        records = bytes(self._fetch(address, READ_MAX_BYTES).records or b"")
        found: list[Stored] = []
        try:
            for at, header in hop(records):
                verify(records, at, header)
                if not header.is_stored_at(address):
                    break
                data = records[at : at + header.size_bytes]
                found.append(Stored(address, data, header.partition_leader_epoch))
                address += header.size_bytes
        except CorruptBatchError:
            self._lose()
        return found

    def read(self, address: int, max_bytes: int) -> RawBytes:
        result = self._fetch(address, max_bytes)
        records = memoryview(bytes(result.records or b""))
        return RawBytes(ErrorCode(result.error_code), records, result.high_watermark, result.address)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        result = self._result(leader_epochs_call({TOPIC: {0: epoch}}))
        return int(result.leader_epoch), int(result.end_offset)


class _Reader:
    """Stands for the auditor's `RawReader`."""

    def __init__(self, log: _SourceLog) -> None:
        self._log = log

    def end(self, _topic: str, _partition: int) -> int:
        return self._log.end

    def epoch_end(self, _topic: str, _partition: int, epoch: int) -> tuple[int, int]:
        return self._log.epoch_end(epoch)

    def read(self, _topic: str, _partition: int, address: int, max_bytes: int = 1) -> RawBytes:
        return self._log.read(address, max_bytes)


class SimAudit:
    """Counts while the world runs; `judge` compares the report with the truth."""

    def __init__(self, clock: Clock, network: Network, server: ZooKeeper) -> None:
        self._clock = clock
        self._log = _SourceLog(clock, network, server)
        self._said: list[Any] = []
        counted: Any = (CountedPartition(TOPIC, 0, SOURCE, (DATACENTER_TIER,)), self._log)
        self._auditor = SimAuditor([counted], clock.draw, [], [], reader=_Reader(self._log))
        self._is_over = False
        self._later()

    def _later(self) -> None:
        self._clock.after(self._clock.between(0, 2 * ROUND_MS), self._log.life, self._round)

    @property
    def _now_ms(self) -> int:
        return WALL_MS + int(self._clock.now_ms)

    def _round(self) -> None:
        if not self._is_over:
            if self._clock.chance(RESTART):
                self._auditor.restart()
            self._count(dies=self._clock.chance(DIES))
            self._later()

    def _count(self, *, dies: bool = False) -> str:
        """Counts what is new; returns why that failed."""
        if self._log.is_interrupted:
            self._auditor.interrupted.add((TOPIC, 0))
            self._log.is_interrupted = False
        self._log.look_again()
        try:
            records = self._auditor.round(self._now_ms, dies_before_heartbeat=dies)
        except ClientError as error:
            return str(error)
        self._say(records)
        return ""

    def _say(self, records: Iterable[object], service: str = "auditor") -> None:
        self._said += [
            received(each, time_ms=self._now_ms, datacenter=DATACENTER, service=service) for each in records
        ]

    def finish(self) -> list[str]:
        """Counts to the end, while the brokers live. Returns what keeps it from that."""
        self._is_over = True
        problem = ""
        for _ in range(LAST_ROUNDS):
            self._clock.run_until(self._clock.now_ms + ROUND_MS)
            problem = self._count()
            if not problem and not self._log.is_interrupted:
                return []
        return [f"the auditor did not count to the end: {problem or 'it was interrupted'}"]

    def judge(self, producers: Sequence[SimProducer | ProductProducer], content: bytes) -> list[str]:
        """Returns where the report and the truth differ. `content`: the log below the high watermark."""
        copy = SimLog()
        copy.topic_id = str(TOPIC_ID)
        held: Counter[tuple[int, int, int]] = Counter()
        reported = {each.place for one in producers for each in one.handed}
        unreported: Counter[int] = Counter()
        for at, header in hop(content):
            data = content[at : at + header.size_bytes]
            copy.append_stored(Stored(at, data, header.partition_leader_epoch))
            place = header.producer_id, header.producer_epoch, header.base_sequence
            held[place] += 1
            if place not in reported:
                unreported[hour_of(header.base_timestamp_ms)] += header.record_count
        self._say_of_copy(copy)
        for producer in producers:
            self._say([_report_of(producer)], producer.name)
        lost = Counter(_harm(each) for one in producers for each in one.handed if not held[each.place])
        hours = {hour_of(each.time_ms) for one in producers for each in one.handed}
        return self._compare(lost, hours | unreported.keys(), unreported)

    def _say_of_copy(self, copy: SimLog) -> None:
        partition = CountedPartition(TOPIC, 0, SOURCE, (ANALYSIS_TIER,))
        counting = SimAuditor([(partition, copy)], self._clock.draw, [], [])
        self._say(counting.round(self._now_ms))
        loaded = LoadedPartition(0, 0, copy.end, tuple(copy.hours(0, copy.end)))
        self._say([LoadReport(WAREHOUSE, TOPIC, 1, self._now_ms, (loaded,))], "warehouse")

    def _compare(self, lost: Counter[Harm], hours: set[int], unreported: Counter[int]) -> list[str]:
        store = _empty_store()
        store.fold(self._said)
        verdicts = list(report(store, now_ms=self._now_ms + LATER_MS).verdicts)
        found = harms_of(verdicts)
        problems = [f"the audit calls lost what is there: {each}" for each in (found - lost)]
        problems += [f"the audit does not name what is lost: {each}" for each in (lost - found)]
        status = {each.hour_ms: each for each in verdicts}
        broken = {harm.hour_ms for harm in lost}
        for hour_ms in sorted(hours):
            verdict = status.get(hour_ms)
            at_best = Status.UNKNOWN if unreported[hour_ms] else Status.COMPLETE
            expected = Status.LOST if hour_ms in broken else at_best
            unknown = 0 if verdict is None else verdict.count(Status.UNKNOWN)
            if verdict is None or verdict.status is not expected or unknown != unreported[hour_ms]:
                said = "nothing" if verdict is None else f"{verdict.status}: {verdict.findings[:2]}"
                problems.append(
                    f"hour {hour_ms} is {expected}, {unreported[hour_ms]} of its records were not reported, "
                    f"and the audit says {said}"
                )
        return problems[:SHOWN_MAX]


@lru_cache(maxsize=1)
def _store() -> AuditStore:
    """One for all worlds: each new one would create its tables, and compile its queries, again."""
    return AuditStore("sqlite://")


def _empty_store() -> AuditStore:
    store = _store()
    with store.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            if table is not meta:
                connection.execute(table.delete())
    return store


def _harm(handed: Handed) -> Harm:
    identity = Identity(TOPIC, DATACENTER, 0, *handed.place)
    return Harm(Status.LOST, PRODUCER_HOP, hour_of(handed.time_ms), identity)


def _report_of(producer: SimProducer | ProductProducer) -> ProducerReport:
    """Returns what a publisher reports in the end of all that it was handed."""
    hours: dict[int, list[Handed]] = {}
    for each in producer.handed:
        hours.setdefault(hour_of(each.time_ms), []).append(each)
    tallies = [
        HandoverTally(
            part,
            TOPIC,
            hour_ms,
            len(members),
            True,
            tuple((0, *each.place, each.place[2]) for each in members),
            tuple(each.content for each in members),
        )
        for part, (hour_ms, members) in enumerate(sorted(hours.items()))
    ]
    return ProducerReport(producer.name, WALL_MS, 1, True, tuple(tallies))
