"""Counting partitions' logs range by range: tallies, gaps and heartbeats. Pure: batches in, records out.

`PartitionCounter` counts one partition; the auditor decides when it cuts a tally.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.audit.batches.damage import Damage
from headrace.audit.batches.tally import RunningTally
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    POSITIONS_PER_RECORD_MAX,
    CorruptRecord,
    GapRecord,
    HeartbeatRecord,
    PartitionPosition,
    RangeTally,
)
from headrace.audit.topic.recounts import RecountRecord
from headrace.wire.batch import HEADER, BatchHeader
from headrace.wire.content import NO_BATCHES, added
from headrace.wire.primitives import Buffer
from headrace.wire.topic_names import TopicPartition

SPANS_PER_TALLY_MAX: Final = 5_000
CORRUPT_KEPT_MAX: Final = 1_000  # damaged batches of one partition that wait to be published


class SourcePartition(NamedTuple):
    """A partition of the datacenter in which its events were published. `topic_id`: "" if it is not known."""

    datacenter: str
    partition: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class CountedPartition:
    """A partition of this cluster, the source of its events, and the tiers for which it is counted.

    In the analysis cluster a mirrored partition counts for tier analysis; a partition of that cluster's own
    topics counts for both tiers.
    """

    topic: str
    log_partition: int
    source: SourcePartition
    tiers: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.log_partition}"

    def recounts(self, from_address: int, counted_to: int, cause: str) -> list[RecountRecord]:
        """Returns the records, one per tier, that take back what was counted from `from_address` on."""
        source = self.source
        place = (source.datacenter, self.topic, source.partition, self.log_partition)
        return [
            RecountRecord(tier, *place, from_address, counted_to, cause, source.topic_id)
            for tier in self.tiers
        ]

    def gaps(self, start: int, end: int, reason: str) -> list[GapRecord]:
        """Returns the records, one per tier, of a gap [start, end) in the partition's log."""
        source = self.source
        return [
            GapRecord(
                tier,
                source.datacenter,
                self.topic,
                source.partition,
                start,
                end,
                reason,
                topic_id=source.topic_id,
            )
            for tier in self.tiers
        ]

    def corrupt(self, damage: Damage) -> list[CorruptRecord]:
        """Returns the records, one per tier, of a damaged batch in the partition's log."""
        source, values = self.source, damage._asdict()
        start, end = values.pop("start"), values.pop("end")
        place = (source.datacenter, self.topic, source.partition, self.log_partition, start, end)
        return [CorruptRecord(tier, *place, **values, topic_id=source.topic_id) for tier in self.tiers]


class CountedContent(NamedTuple):
    """What was counted from address `start` on holds (`wire.content`)."""

    start: int
    content: int


class LastBatch(NamedTuple):
    """The last batch that was counted: its place, the producer's checksum and the leader epoch."""

    address: int
    crc: int
    leader_epoch: int


class PartitionCounter:
    """The running count of one partition's log from `from_address` on.

    A tally ends before a damaged batch and whenever it has `SPANS_PER_TALLY_MAX` spans. `last`: the batch
    that ends at `from_address`, if an earlier count says so; `content`: what it counted before.
    """

    def __init__(
        self,
        partition: CountedPartition,
        from_address: int,
        bucket_ms: int,
        trusted: Callable[[str, int], bool],
        last: LastBatch | None = None,
        content: CountedContent | None = None,
    ) -> None:
        self.partition = partition
        self.from_address = from_address
        self.counted_to = from_address
        self.bucket_ms = bucket_ms
        datacenter = partition.source.datacenter
        self._trusts = trusted
        self._trusted = lambda producer_id: trusted(datacenter, producer_id)
        self._tally = RunningTally(bucket_ms, self._trusted)
        self.last = last
        """The batch that ends at `counted_to`; None after a gap or a damaged batch."""
        self._content = content or CountedContent(from_address, NO_BATCHES)
        """Of what is cut: up to `from_address`."""
        self._cut_tallies: list[RangeTally] = []
        self._corrupt: list[CorruptRecord] = []

    @property
    def is_full(self) -> bool:
        """Whether a tally is complete and should be published soon."""
        return bool(self._cut_tallies) or len(self._corrupt) >= CORRUPT_KEPT_MAX

    def feed(self, buffer: Buffer, base_address: int) -> None:
        """Counts the whole batches from `base_address` on, and stops before a header that cannot be believed.

        `counted_to` is then behind the last batch counted. The caller has checked the checksums. Raises
        `ValueError` unless the batches follow directly on what is counted.
        """
        if base_address > self.counted_to:
            raise ValueError(f"batches at {base_address}, counted to {self.counted_to}")
        if base_address < self.counted_to:
            raise ValueError(f"batches at {base_address} were counted already, up to {self.counted_to}")
        at = 0
        while at < len(buffer):
            after = self._tally.feed(buffer, base_address, at=at, spans_max=SPANS_PER_TALLY_MAX)
            self.counted_to = base_address + after
            if after == at:
                return
            at = after
            header = BatchHeader._make(HEADER.unpack_from(buffer, self._tally.last_position))
            at_address = base_address + self._tally.last_position
            self.last = LastBatch(at_address, header.crc, header.partition_leader_epoch)
            if len(self._tally) >= SPANS_PER_TALLY_MAX:
                self._cut_tallies += self._cut()

    def beside(self, address: int) -> PartitionCounter:
        """Returns another counter of the same partition, which begins at `address`."""
        return PartitionCounter(self.partition, address, self.bucket_ms, self._trusts)

    def set_aside(self, damage: Damage) -> None:
        """Continues behind a damaged batch at `counted_to`, which no tally covers."""
        self._cut_tallies += self._cut()
        self._corrupt += self.partition.corrupt(damage)
        self.skip_to(damage.end)

    def skip_to(self, address: int) -> None:
        """Continues at `address`, after a gap. Call `cut` first: what is not cut is discarded."""
        self.last = None
        self.counted_to = address
        self._content = CountedContent(address, NO_BATCHES)
        self._begin_tally()

    def go_back(self, address: int, last: LastBatch | None, content: CountedContent | None = None) -> None:
        """Counts again from `address` on, behind `last`; what is not published of later counts is dropped."""
        self._cut_tallies, self._corrupt = [], []
        self.skip_to(address)
        self.last = last
        self._content = content or self._content

    def _begin_tally(self) -> None:
        self.from_address = self.counted_to
        self._tally = RunningTally(self.bucket_ms, self._trusted)

    def cut(self) -> list[RangeTally | CorruptRecord]:
        """Returns the tallies, one per tier, of the ranges since the last cut, and the damaged batches."""
        cut: list[RangeTally | CorruptRecord] = [*self._cut_tallies, *self._cut()]
        cut += self._corrupt
        self._cut_tallies, self._corrupt = [], []
        return cut

    def _cut(self) -> list[RangeTally]:
        if self.counted_to == self.from_address:
            return []
        spans, start = self._tally.spans, self.from_address
        content = added(self._content.content, self._tally.content)
        unknown = CountedContent(self.counted_to, NO_BATCHES)
        self._content = unknown if content is None else self._content._replace(content=content)
        for damage in self._tally.damages:
            self._corrupt += self.partition.corrupt(damage)
        self._begin_tally()
        partition = self.partition
        return [
            RangeTally(
                tier=tier,
                datacenter=partition.source.datacenter,
                topic=partition.topic,
                partition=partition.source.partition,
                log_partition=partition.log_partition,
                from_address=start,
                to_address=self.counted_to,
                bucket_ms=self.bucket_ms,
                spans=spans,
                topic_id=partition.source.topic_id,
            )
            for tier in partition.tiers
        ]

    @property
    def content(self) -> CountedContent:
        """What was counted so far and is cut."""
        return self._content

    def position(self, end_address: int, topic_id: str = "") -> PartitionPosition:
        """Returns the partition's part of a heartbeat. Call `cut` first."""
        partition = self.partition
        last = self.last or LastBatch(-1, -1, -1)
        return PartitionPosition(
            partition.source.datacenter,
            partition.topic,
            partition.source.partition,
            partition.log_partition,
            self.counted_to,
            max(end_address, self.counted_to),
            topic_id,
            *last,
            partition.source.topic_id,
            self._content.start,
            self._content.content,
        )


def counted_partition(
    datacenter: str,
    topic: str,
    partition: int,
    sources: Mapping[str, list[SourcePartition]] | None,
    topic_id: str = "",
) -> CountedPartition | None:
    """Returns how a partition of this cluster is counted; None if it is a copy without a source yet.

    `sources`: mirrored topic → the source of each of its partitions; None in a cluster without mirrors.
    `topic_id`: of the topic in this cluster.
    """
    own = SourcePartition(datacenter, partition, topic_id)
    if sources is None:
        return CountedPartition(topic, partition, own, (DATACENTER_TIER,))
    if topic not in sources:
        return CountedPartition(topic, partition, own, (DATACENTER_TIER, ANALYSIS_TIER))
    if partition >= len(sources[topic]):
        return None
    return CountedPartition(topic, partition, sources[topic][partition], (ANALYSIS_TIER,))


def partitions_status(
    counters: Mapping[TopicPartition, PartitionCounter], stuck: Mapping[TopicPartition, str]
) -> list[dict[str, Any]]:
    """Returns how far each partition is counted, as plain data. `stuck`: why some cannot go on."""
    return [
        {
            "topic": topic,
            "partition": partition,
            "datacenter": counter.partition.source.datacenter,
            "counted_to": counter.counted_to,
            "reason": stuck.get((topic, partition), ""),
        }
        for (topic, partition), counter in sorted(counters.items())
    ]


# --- heartbeats ---


def heartbeat(
    beat: int, counters: Iterable[tuple[PartitionCounter, int]], topic_ids: Mapping[str, str] | None = None
) -> list[HeartbeatRecord]:
    """Returns the records of heartbeat `beat`, given the counters and the end addresses of their logs.

    `topic_ids`: topic → its id, of those that are known.
    """
    ids = topic_ids or {}
    positions: dict[str, list[PartitionPosition]] = {DATACENTER_TIER: [], ANALYSIS_TIER: []}
    for counter, end_address in counters:
        position = counter.position(end_address, ids.get(counter.partition.topic, ""))
        for tier in counter.partition.tiers:
            positions[tier].append(position)
    records = []
    for tier, all_of_tier in positions.items():
        pieces = [
            tuple(all_of_tier[at : at + POSITIONS_PER_RECORD_MAX])
            for at in range(0, len(all_of_tier), POSITIONS_PER_RECORD_MAX)
        ]
        records += [
            HeartbeatRecord(tier, beat, part, len(pieces), piece) for part, piece in enumerate(pieces)
        ]
    return records
