"""Where an auditor counts on: behind its last heartbeat, or where somebody asked it to count again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from headrace.audit.counting.counted_logs import CountedLogs
from headrace.audit.counting.partition_counter import CountedPartition, PartitionCounter
from headrace.audit.counting.standing import CountedTally, Mark, Marks, Standings, marks_of
from headrace.audit.counting.turns import Turns
from headrace.audit.topic.logs_read import named_id
from headrace.audit.topic.reader import AuditReader
from headrace.audit.topic.records import GapRecord, HeartbeatRecord, RangeTally, ReceivedRecord
from headrace.audit.topic.recounts import SAID_AGAIN, RecountRecord, is_asked_for
from headrace.client import Admin
from headrace.client.admin import EARLIEST, LATEST
from headrace.client.errors import ClientError
from headrace.process.clock import now_ms
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

LOOK_BACK_MS_FIRST: Final = 10 * 60_000
LOOK_BACK_FACTOR: Final = 12
LOOK_BACKS_MAX: Final = 3  # 10 minutes, 2 hours, a day; then from the beginning
READ_BACK_POLL_S: Final = 1.0


class _Found(NamedTuple):
    heartbeats: list[HeartbeatRecord]
    tallies: list[CountedTally]
    turns: Turns


def resume(
    reader: AuditReader,
    datacenter: str,
    learn: Callable[[ReceivedRecord], None],
    is_stopping: Callable[[], bool],
    present: Iterable[TopicPartition] = (),
) -> Marks:
    """Returns how far the datacenter's auditor has counted, looking back further and further.

    `present`: the partitions that are to be counted. Heartbeats leave those out whose leader is gone
    (`audit.counting.known_ends`), for however long: of these it looks back a day. `learn` gets all records
    that are read meanwhile. Raises what `AuditReader` raises.
    """
    start_ms, look_back_ms = now_ms(), LOOK_BACK_MS_FIRST
    marks, missing = Marks(), set(present)
    for attempt in range(LOOK_BACKS_MAX + 1):
        timestamp_ms = start_ms - look_back_ms if attempt < LOOK_BACKS_MAX else 0
        reader.seek_to_timestamp(timestamp_ms)
        only = missing if marks else None  # the others are known: a day of all of them takes much memory
        found = _read_back(reader, datacenter, learn, is_stopping, only)
        marks.take(marks_of(found.heartbeats, found.tallies, found.turns.of_beats), only)
        missing = {key for key in missing if not marks.of(key)}
        if marks and (not missing or attempt >= LOOK_BACKS_MAX - 1):
            logger.info("resuming where the last heartbeat ended")
            return marks
        look_back_ms *= LOOK_BACK_FACTOR
    logger.info("no heartbeat in the audit topic: counting from the beginning")
    return marks


def _read_back(
    reader: AuditReader,
    datacenter: str,
    learn: Callable[[ReceivedRecord], None],
    is_stopping: Callable[[], bool],
    only: Collection[TopicPartition] | None,
) -> _Found:
    """Reads the audit topic from its position to its end; returns what this auditor said there.

    `only`: the partitions that are looked for; None: all.
    """
    ends = {key: end for key, end in reader.ends().items() if end}
    found = _Found([], [], Turns())
    while ends and not is_stopping():
        polled = reader.poll(READ_BACK_POLL_S)
        for received in polled.records:
            if received.datacenter == datacenter:
                _keep(received, found, only)
            learn(received)
        if not polled.positions:
            break
        ends = {key: end for key, end in ends.items() if polled.positions.get(key, 0) < end}
    return found


def _keep(received: ReceivedRecord, found: _Found, only: Collection[TopicPartition] | None) -> None:
    record = received.record
    if isinstance(record, HeartbeatRecord):
        found.turns.note_beat(received.log, record)
        if only is not None:
            wanted = (each for each in record.positions if (each.topic, each.log_partition) in only)
            record = replace(record, positions=tuple(wanted))
        found.heartbeats.append(record)
    elif isinstance(record, RangeTally):
        key = (record.topic, record.log_partition)
        turn = found.turns.turn(received.log, received.time_ms)
        if only is None or key in only:
            tally = CountedTally(
                received.time_ms, key, record.to_address, record.topic_id, record.from_address, turn
            )
            found.tallies.append(tally)


class Begun(NamedTuple):
    """Where counting of a partition begins or goes on, and which of its counts its log does not hold."""

    partition: CountedPartition
    mark: Mark
    recounts: list[RecountRecord]


def begun_where_counts_hold(
    admin: Admin, standings: Standings, fresh: Collection[CountedPartition], topic_ids: Mapping[str, UUID]
) -> dict[TopicPartition, Begun]:
    """Looks where the counts of these partitions hold. Those are left out of which it is not known now, and
    those of topics that are made again meanwhile: their logs are read by name, and may be either topic's.

    Raises `ClientError`.
    """
    if not fresh:
        return {}
    begun: dict[TopicPartition, Begun] = {}
    starts = log_starts(admin, fresh)
    for partition in fresh:
        topic, number = partition.topic, partition.log_partition
        if number in starts.get(topic, ()):
            try:
                found = standings.begin(partition, starts[topic][number], named_id(topic_ids[topic]))
            except ClientError as error:
                logger.warning("%s is not counted yet: %s", partition.name, error)
                continue
            begun[topic, number] = Begun(partition, *found)
    now = {name: info.topic_id for name, info in admin.topics().items()}
    return {key: each for key, each in begun.items() if now.get(key[0]) == topic_ids[key[0]]}


def log_starts(admin: Admin, partitions: Iterable[CountedPartition]) -> dict[str, dict[int, int]]:
    """Returns topic → partition → start address, without those that cannot say it now.

    Does not wait for those without a leader: all others would not be counted meanwhile. Raises `ClientError`.
    """
    known = admin.topics()
    led: dict[str, list[int]] = {}
    for partition in partitions:
        topic, number = partition.topic, partition.log_partition
        info = known[topic].partitions.get(number) if topic in known else None
        if info is None or info.leader < 0:
            logger.warning("%s is not counted yet: it has no leader", partition.name)
        else:
            led.setdefault(topic, []).append(number)
    starts: dict[str, dict[int, int]] = {}
    for topic, numbers in led.items():
        try:
            found = admin.list_offsets(topic, EARLIEST, partitions=numbers)
        except ClientError as error:
            logger.warning("%s is not counted yet: %s", topic, error)
            continue
        starts[topic] = {number: each.offset for number, each in found.items()}
    return starts


def deleted_part(admin: Admin, counter: PartitionCounter) -> tuple[int, list[GapRecord]]:
    """Returns where a log begins now that no longer has the address counted to, and the gap, if there is one.

    Raises `ClientError`.
    """
    partition, address = counter.partition, counter.counted_to
    topic, number = partition.topic, partition.log_partition
    start = admin.list_offsets(topic, EARLIEST, partitions=[number])[number].offset
    if address < start:
        reason = "retention deleted them before the auditor counted them"
        logger.error("%s: addresses %d to %d: %s", partition.name, address, start, reason)
        return start, partition.gaps(address, start, reason)
    end = admin.list_offsets(topic, LATEST, partitions=[number])[number].offset
    logger.error(
        "%s ends at %d but was counted to %d; counting from its beginning", partition.name, end, address
    )
    return start, []


def count_again(
    received: ReceivedRecord,
    counters: Mapping[TopicPartition, PartitionCounter],
    standings: Standings,
    logs: CountedLogs,
) -> None:
    """Goes back where a record of the audit topic asks for it: the store forgets these counts."""
    asked = received.record
    if not isinstance(asked, RecountRecord) or not is_asked_for(asked.cause):
        return
    key = (asked.topic, asked.log_partition)
    counter = counters.get(key)
    if counter is None or asked.from_address >= counter.counted_to:
        return
    source = counter.partition.source
    is_same_topic = "" in (asked.topic_id, source.topic_id) or asked.topic_id == source.topic_id
    is_meant = asked.tier in counter.partition.tiers and is_same_topic
    if is_meant and (asked.datacenter, asked.partition) == source[:2]:
        logger.info(
            "%s is counted again from %d: %s", counter.partition.name, asked.from_address, asked.cause
        )
        standings.taken_back.note(key, asked.from_address)
        standings.marks.go_back(key, asked.from_address)
        counter.go_back(asked.from_address, None)
        logs.seek(*key, asked.from_address)


def take_back_again(
    admin: Admin,
    audit_topic_id: UUID | None,
    counters: Mapping[TopicPartition, PartitionCounter],
    standings: Standings,
    logs: CountedLogs,
) -> list[RecountRecord]:
    """If the audit topic was made again, takes back again what was taken back, and goes back to count it:
    the auditor that folds that topic may not have read the first recount.

    `audit_topic_id`: of the present one; None: there is none. Raises `ClientError`; nothing has changed then.
    """
    known, starts, records = standings.taken_back, dict[TopicPartition, int](), list[RecountRecord]()
    if known.is_in_another_topic(audit_topic_id):
        wanted = known.addresses.keys() & counters.keys()
        for topic in {topic for topic, _ in wanted}:
            numbers = [number for name, number in wanted if name == topic]
            found = admin.list_offsets(topic, EARLIEST, partitions=numbers)
            starts |= {(topic, number): found[number].offset for number in numbers}
    known.said_in(audit_topic_id)
    for key, start in starts.items():
        counter, address = counters[key], max(known.addresses[key], start)
        if address > counter.counted_to:
            continue
        # Also of a log that ends there: the store may know more of it.
        records += counter.partition.recounts(address, counter.counted_to, SAID_AGAIN)
        standings.marks.go_back(key, address)
        if address < counter.counted_to:
            counter.go_back(address, None)
            logs.seek(*key, address)
    return records
