"""How far the counts of a log still hold: earlier heartbeats, checked against what the log holds now.

Each heartbeat says of each partition up to which address it is counted, and names the batch that ends there
by its address, leader epoch and checksum. A log whose batch there is another one, or is gone, went back: it
was cut, and may have grown again. Counting then goes on at the newest earlier place that the log still has,
and what was counted behind it is taken back (`audit.topic.recounts`).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from headrace.audit.batches.raw_reader import RawReader
from headrace.audit.counting.partition_counter import (
    CountedContent,
    CountedPartition,
    LastBatch,
    PartitionCounter,
)
from headrace.audit.counting.taken_back import TakenBack
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord
from headrace.audit.topic.recounts import AUDITOR_ENDED, COPY_MADE_AGAIN, RecountRecord
from headrace.client.errors import ClientError
from headrace.wire.errors import ErrorCode
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

MARKS_MAX: Final = 64
"""How many places of one partition are kept; of the older half only every second one, again and again."""


class Mark(NamedTuple):
    """A place up to which counts are published; `last`: the batch that ends there, if it was counted.

    `topic_id`: of the counted log; `source_topic_id`: of the topic in which the events were published.
    """

    counted_to: int
    last: LastBatch | None
    topic_id: str = ""
    source_topic_id: str = ""
    content: CountedContent | None = None


class CountedTally(NamedTuple):
    """A tally in the audit topic: when it was said, of which partition, and up to which address it counts.

    `source_topic_id`: as in `Mark`. `from_address`: where it begins; None: not below the newest mark.
    `turn`: of the clock that said when (`audit.counting.turns`).
    """

    said_ms: int
    key: TopicPartition
    to_address: int
    source_topic_id: str = ""
    from_address: int | None = None
    turn: int = 0


class Standing(NamedTuple):
    """Where counting goes on. `problem`: why not at the newest mark; empty if the log still holds that."""

    mark: Mark
    problem: str = ""


class NotReadableYetError(ClientError):
    """The partition's leader has the batch, and does not show it to consumers yet."""


class TopicMadeAgainError(ClientError):
    """The topic was deleted and made again under its name: its logs are other ones."""


class Marks:
    """The marks of all partitions, newest last."""

    def __init__(self) -> None:
        self._marks: dict[TopicPartition, list[Mark]] = {}
        self.went_back: Counter[TopicPartition] = Counter()
        """How often each partition's counts were taken back."""
        self.published_to: dict[TopicPartition, tuple[int, str]] = {}
        """Up to which address tallies were published since the newest heartbeat, which no mark vouches for;
        and the id of the topic in which the events were published.
        """
        self.published_from: dict[TopicPartition, int] = {}
        """Where the first of those tallies begins: below the newest mark, if the log lacked that one when
        they were counted.
        """

    def __bool__(self) -> bool:
        return bool(self._marks)

    def note(self, key: TopicPartition, mark: Mark) -> None:
        """Adds a mark, unless it is the newest one already."""
        marks = self._marks.setdefault(key, [])
        if marks and marks[-1] == mark:
            return
        marks.append(mark)
        if len(marks) > MARKS_MAX:
            del marks[1 : MARKS_MAX // 2 : 2]

    def of(self, key: TopicPartition) -> list[Mark]:
        """Returns the partition's marks, newest last."""
        return list(self._marks.get(key, ()))

    def counted_to(self, key: TopicPartition) -> int:
        """Returns the address of the newest mark; 0 without one."""
        marks = self._marks.get(key)
        return marks[-1].counted_to if marks else 0

    def go_back(self, key: TopicPartition, counted_to: int) -> None:
        """Forgets the marks behind an address."""
        self.went_back[key] += 1
        self._marks[key] = [mark for mark in self._marks.get(key, ()) if mark.counted_to <= counted_to]

    def take(self, other: Marks, keys: Collection[TopicPartition] | None = None) -> None:
        """Takes what other marks say of these partitions, by default of all, in the place of its own."""
        for key in other._marks.keys() | other.published_to.keys() if keys is None else keys:
            self.forget(key)
            if key in other._marks:
                self._marks[key] = other._marks[key]
            if key in other.published_to:
                self.published_to[key] = other.published_to[key]
            if key in other.published_from:
                self.published_from[key] = other.published_from[key]

    def forget(self, key: TopicPartition) -> None:
        self._marks.pop(key, None)
        self.published_to.pop(key, None)
        self.published_from.pop(key, None)


class Standings:
    """Checks the counts of all partitions, and takes back those that their logs no longer hold."""

    def __init__(self, reader: RawReader) -> None:
        self._reader = reader
        self.marks = Marks()
        self.taken_back = TakenBack()

    def note(self, counter: PartitionCounter, topic_id: str) -> None:
        """Notes how far a partition is counted, once that is published."""
        source_id = counter.partition.source.topic_id
        mark = Mark(counter.counted_to, counter.last, topic_id, source_id, counter.content)
        self.marks.note(_key(counter.partition), mark)

    def forget(self, partition: CountedPartition) -> None:
        """Forgets a partition that is gone. Of a copy the marks stay: it may be made again."""
        if DATACENTER_TIER in partition.tiers:
            self.marks.forget(_key(partition))
            self.taken_back.forget(_key(partition))

    def begin(
        self, partition: CountedPartition, start_address: int, topic_id: str
    ) -> tuple[Mark, list[RecountRecord]]:
        """Returns where counting begins or goes on. Raises `ClientError`."""
        key = _key(partition)
        known = self.marks.of(key)
        counted_to = known[-1].counted_to if known else 0
        published_to, source_id = self.marks.published_to.get(key, (0, ""))
        published_from = self.marks.published_from.get(key, counted_to)
        if not _same(source_id, partition.source.topic_id):
            published_from = counted_to
        # A tally that lies on both sides of where counting goes on would be taken back as a whole.
        usable = [mark for mark in known if mark.counted_to <= published_from]
        standing = find_standing(self._reader, key, usable, start_address, topic_id)
        is_same_topic = not known or _same(known[-1].topic_id, topic_id)
        if not is_same_topic:
            if _is_other_copy(partition, known[-1]):
                standing = standing._replace(problem=COPY_MADE_AGAIN)
            self.marks.forget(key)
        is_same_source = is_same_topic and _same(source_id, partition.source.topic_id)
        is_ahead = published_to > max(counted_to, standing.mark.counted_to)
        if is_same_source and (is_ahead or published_from < counted_to):
            end = self._reader.end(*key)
            is_gone = end is not None and end < published_to
            problem = f"the log ends at {end}" if is_gone else AUDITOR_ENDED
            standing = standing._replace(problem=standing.problem or problem)
            counted_to = max(counted_to, published_to)
        # Not before: as long as a broker cannot answer, this is what is known of those tallies.
        self.marks.published_to.pop(key, None)
        self.marks.published_from.pop(key, None)
        return standing.mark, self._taken_back(partition, standing, counted_to)

    def check(self, counter: PartitionCounter, start_address: int, topic_id: str) -> list[RecountRecord]:
        """Makes the counter go back if its log did; returns the records that say so. Raises `ClientError`."""
        partition, counted_to = counter.partition, counter.counted_to
        key = _key(partition)
        known = self.marks.of(key)
        now = Mark(counted_to, counter.last, known[-1].topic_id if known else topic_id)
        standing = find_standing(self._reader, key, [*known, now], start_address, topic_id)
        if standing.problem:
            counter.go_back(standing.mark.counted_to, standing.mark.last, standing.mark.content)
        return self._taken_back(partition, standing, counted_to)

    def _taken_back(
        self, partition: CountedPartition, standing: Standing, counted_to: int
    ) -> list[RecountRecord]:
        if not standing.problem:
            return []
        address = standing.mark.counted_to
        logger.error(
            "%s: counted to %d, but %s; counting again from %d",
            partition.name,
            counted_to,
            standing.problem,
            address,
        )
        self.marks.go_back(_key(partition), address)
        self.taken_back.note(_key(partition), address)
        return partition.recounts(address, counted_to, standing.problem)


def _key(partition: CountedPartition) -> TopicPartition:
    return partition.topic, partition.log_partition


def _same(one: str, other: str) -> bool:
    """Whether two ids of topics may be the same."""
    return "" in (one, other) or one == other


def _is_other_copy(partition: CountedPartition, mark: Mark) -> bool:
    """Whether a mark is of an earlier copy of the same source: what that one held is not in this one."""
    source_id = partition.source.topic_id
    return DATACENTER_TIER not in partition.tiers and source_id == mark.source_topic_id != ""


def marks_of(
    heartbeats: Iterable[HeartbeatRecord],
    tallies: Iterable[CountedTally] = (),
    turns: Mapping[tuple[str, int], int] | None = None,
) -> Marks:
    """Returns the marks of complete heartbeats. A lower address than before means that the log went back.

    `tallies`: those of the same auditors. Behind the last heartbeat that names their partition they show
    what none could note. `turns`: (tier, beat) → the turn of the clock that gave it; default: the first.
    """
    turns = turns or {}
    by_beat: dict[tuple[int, int, str], dict[int, HeartbeatRecord]] = {}
    for record in heartbeats:
        order = (turns.get((record.tier, record.beat), 0), record.beat, record.tier)
        by_beat.setdefault(order, {})[record.part] = record
    said = deque(sorted(tallies, key=lambda tally: (tally.turn, tally.said_ms)))
    unnoted: defaultdict[TopicPartition, list[CountedTally]] = defaultdict(list)
    marks = Marks()
    for (turn, beat, _), parts in sorted(by_beat.items(), key=lambda entry: entry[0][:2]):
        if len(parts) == next(iter(parts.values())).parts:
            while said and (said[0].turn, said[0].said_ms) <= (turn, beat):
                # Of what a mark vouches for, it was counted again from there on: another log may have been
                # there meanwhile, even if the log is now as it was for the mark.
                tally = said.popleft()
                unnoted[tally.key].append(tally)
                if tally.from_address is not None and marks.counted_to(tally.key) > tally.from_address:
                    marks.go_back(tally.key, tally.from_address)
            for key, mark in _marks_in(parts.values()):
                marks.go_back(key, mark.counted_to)
                marks.note(key, mark)
                unnoted.pop(key, None)  # a heartbeat may leave a partition out
    for tally in [*chain.from_iterable(unnoted.values()), *said]:
        key, source_id, begin = tally.key, tally.source_topic_id, tally.from_address
        known_to, known_id = marks.published_to.get(key, (0, source_id))
        if known_id != source_id:
            known_to = 0  # the topic was made again
            marks.published_from.pop(key, None)
        if begin is not None:
            marks.published_from[key] = min(begin, marks.published_from.get(key, begin))
        marks.published_to[key] = max(tally.to_address, known_to), source_id
    return marks


def _marks_in(parts: Iterable[HeartbeatRecord]) -> Iterator[tuple[TopicPartition, Mark]]:
    for record in parts:
        for at in record.positions:
            last = None if at.last_address < 0 else LastBatch(at.last_address, at.last_crc, at.last_epoch)
            known = at.content is not None and at.content_from >= 0
            content = CountedContent(at.content_from, at.content or 0) if known else None
            mark = Mark(at.counted_to_address, last, at.topic_id, at.source_topic_id, content)
            yield (at.topic, at.log_partition), mark


def find_standing(
    reader: RawReader, key: TopicPartition, marks: Iterable[Mark], start_address: int, topic_id: str
) -> Standing:
    """Returns the newest mark that still holds, or the log's start. `marks`: newest last.

    A mark of another topic of the same name does not count. One whose batch retention has deleted is
    believed, as is one that names no batch and lies before the log's end. Raises `ClientError` if the broker
    cannot say.
    """
    problem = ""
    for mark in reversed(list(marks)):
        if mark.topic_id and topic_id and mark.topic_id != topic_id:
            break
        found = _problem_with(reader, key, mark, start_address)
        if not found:
            return Standing(mark, problem)
        problem = problem or found
    return Standing(Mark(start_address, None, topic_id), problem)


def _problem_with(reader: RawReader, key: TopicPartition, mark: Mark, start_address: int) -> str:
    """Returns why the log no longer holds what was counted up to a mark; empty if it does."""
    last = mark.last
    if last is None:
        end = reader.end(*key)
        if end is None:
            raise NotReadableYetError(f"the end of {key[0]}-{key[1]} is not known")
        return "" if mark.counted_to <= end else f"the log ends at {end}"
    if last.address < start_address:
        return ""
    if last.leader_epoch >= 0:
        epoch, end = reader.epoch_end(*key, last.leader_epoch)
        if epoch != last.leader_epoch:
            return f"the log has nothing of leader epoch {last.leader_epoch} any more"
        if end < mark.counted_to:
            return f"leader epoch {epoch} ends at {end} in the log"
    read = reader.read(*key, last.address, 1)
    if read.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return f"the log does not reach address {last.address}"
    if read.error is not ErrorCode.NONE:
        return ""  # damage is another finding
    header, place = read.header, read.place
    if header is None:
        if last.leader_epoch < 0:
            return f"the log ends at {read.high_watermark}"
        raise NotReadableYetError(f"{key[0]}-{key[1]} does not show address {last.address} yet")
    if place == last.address and (header.crc, header.partition_leader_epoch) == last[1:]:
        return ""
    if not header.is_stored_at(place):
        return ""  # damage is another finding
    found = f"leader epoch {header.partition_leader_epoch} with CRC {header.crc:#010x} at {place}"
    counted = f"epoch {last.leader_epoch} with CRC {last.crc:#010x}"
    return f"at {last.address} the log has a batch of {found}, not that of {counted}"
