"""Damage that brokers find when they read their disks again, after it was counted: asks for it, and says it.

Counting reads a batch once, soon after it was stored. What rots later only the brokers' scrubs see. A range
is published like any damaged batch, for all tiers of its partition; so is the news that it is whole again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.audit.batches.damage import ON_DISK, Damage, damage_of, walk
from headrace.audit.batches.raw_reader import RawReader
from headrace.audit.counting.partition_counter import PartitionCounter
from headrace.audit.topic.records import CorruptRecord
from headrace.client import Admin
from headrace.client.cluster import TopicInfo
from headrace.client.errors import ClientError, UnsupportedApiError
from headrace.wire.damaged_ranges import DamagedRange, parse
from headrace.wire.errors import ErrorCode
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

ASK_S: Final = 10.0
ASK_TIMEOUT_MS: Final = 3_000  # counting waits meanwhile
RANGES_PER_ASK_MAX: Final = 100  # each costs a Fetch; the next ask takes the next ones
KEPT_MAX: Final = 20_000  # ranges that were said; beyond, all are said again


class _Place(NamedTuple):
    """Addresses [start, end) of a partition."""

    topic: str
    partition: int
    start: int
    end: int


class DiskDamage:
    """Asks all brokers of a cluster. One thread uses it."""

    def __init__(self, bootstrap: str, client_id: str, raw: RawReader) -> None:
        self._admin = Admin(bootstrap, client_id=client_id, timeout_ms=ASK_TIMEOUT_MS)
        self._raw = raw
        self._said: dict[_Place, dict[int, str]] = {}  # the brokers whose disks are damaged there, and why
        self._went_back: dict[TopicPartition, int] = {}

    def close(self) -> None:
        self._admin.close()

    def news(
        self,
        counters: Mapping[TopicPartition, PartitionCounter],
        went_back: Mapping[TopicPartition, int] | None = None,
        topics: Mapping[str, TopicInfo] | None = None,
    ) -> list[CorruptRecord]:
        """Returns records about what was found, or mended, in addresses that are counted.

        `went_back`: how often the counts of partitions were taken back. The store then forgets what was said
        of them, so all is said again. `topics`: they tell which brokers have no replica any more. Raises
        `ClientError` if no broker answers.
        """
        self._forget_taken_back(went_back or {})
        if len(self._said) > KEPT_MAX:
            self._said.clear()
        records: list[CorruptRecord] = []
        looks = 0
        answers, silent = self._ask()
        places = _by_place(answers)
        for place, known in self._said.items():
            if _without_moved(place, known, topics or {}) != known:
                places.setdefault(place, {})
        for place, by_broker in places.items():
            key, end = (place.topic, place.partition), max(place.end, place.start + 1)
            counter = counters.get(key)  # a file that cannot be read has no end
            if counter is None or end > counter.counted_to:
                continue
            before = self._said.get(place)
            kept = {number: cause for number, cause in (before or {}).items() if number not in answers}
            damaged = kept | {number: each.cause for number, each in by_broker.items() if not each.is_mended}
            damaged = _without_moved(place, damaged, topics or {})
            if (before is not None and damaged.keys() == before.keys()) or (not damaged and silent):
                continue
            if looks == RANGES_PER_ASK_MAX:
                break
            looks += 1
            cause = _cause(damaged)
            if cause:
                logger.error("%s-%d: addresses %d to %d are corrupt %s", *key, place.start, end, cause)
            records += counter.partition.corrupt(self._look(place, end, cause))
            self._said[place] = damaged
        return records

    def _forget_taken_back(self, went_back: Mapping[TopicPartition, int]) -> None:
        again = {key for key, times in went_back.items() if times != self._went_back.get(key, 0)}
        self._went_back = dict(went_back)
        if again:
            self._said = {place: said for place, said in self._said.items() if place[:2] not in again}

    def _ask(self) -> tuple[dict[int, list[DamagedRange]], set[int]]:
        """Returns what each broker knows, and which brokers do not answer."""
        answers: dict[int, list[DamagedRange]] = {}
        try:
            brokers = set(self._admin.describe_cluster().brokers)
        except UnsupportedApiError:
            return {}, set()  # brokers of an older Kafka, which have no scrub either
        for broker_id in sorted(brokers):
            try:
                entries = self._admin.describe_broker_configs(broker_id)
            except ClientError as error:
                logger.info("broker %d does not say what its scrub found: %s", broker_id, error)
                continue
            parsed = (parse(entry.name, entry.value) for entry in entries.values())
            answers[broker_id] = [each for each in parsed if each is not None]
        return answers, brokers - answers.keys()

    def _look(self, found: _Place, end: int, cause: str) -> Damage:
        """Returns the range as a damage, with what its batch's header says if it is one batch.

        `cause`: "" if it is mended.
        """
        unknown = Damage(found.start, end, cause, in_tally=True)
        try:
            read = self._raw.read(found.topic, found.partition, found.start, end - found.start)
        except ClientError:  # perhaps its log is offline, and has no leader
            return unknown
        step = next(walk(read.buffer, found.start), None) if read.error is ErrorCode.NONE else None
        if step is None or step.header is None or step.header.next_offset != end:
            return unknown
        return damage_of(step.header, cause, count_is_known=True, in_tally=True)


def _by_place(answers: Mapping[int, list[DamagedRange]]) -> dict[_Place, dict[int, DamagedRange]]:
    """Returns what brokers say of each place."""
    found: dict[_Place, dict[int, DamagedRange]] = {}
    for number, ranges in answers.items():
        for each in ranges:
            found.setdefault(_Place(*each[:4]), {})[number] = each
    return found


def _without_moved(
    place: _Place, damaged: Mapping[int, str], topics: Mapping[str, TopicInfo]
) -> dict[int, str]:
    """Returns what is damaged on brokers that still have a replica, as far as that is known."""
    topic = topics.get(place.topic)
    info = None if topic is None else topic.partitions.get(place.partition)
    return {number: cause for number, cause in damaged.items() if info is None or number in info.replicas}


def _cause(damaged: Mapping[int, str]) -> str:
    """Returns whose disks are damaged, and why; "" if no disk is."""
    if not damaged:
        return ""
    numbers = [str(number) for number in sorted(damaged)]
    whose = (
        f"s of brokers {', '.join(numbers[:-1])} and {numbers[-1]}"
        if numbers[1:]
        else f" of broker {numbers[0]}"
    )
    return f"{ON_DISK}{whose}, after it was counted: {'; '.join(dict.fromkeys(damaged.values()))}"
