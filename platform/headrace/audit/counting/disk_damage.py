"""Damage that brokers find when they read their disks again, after it was counted: asks for it, and says it.

Counting reads a batch once, soon after it was stored. What rots later only the brokers' scrubs see. A range
is published like any damaged batch, for all tiers of its partition; so is the news that it is whole again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from headrace.audit.batches.damage import Damage, damage_of, walk
from headrace.audit.batches.raw_reader import RawReader
from headrace.audit.counting.partition_counter import PartitionCounter
from headrace.audit.topic.records import CorruptRecord
from headrace.client import Admin
from headrace.client.errors import ClientError, UnsupportedApiError
from headrace.wire.damaged_ranges import DamagedRange, parse
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

ASK_S: Final = 10.0
ASK_TIMEOUT_MS: Final = 3_000  # counting waits meanwhile
RANGES_PER_ASK_MAX: Final = 100  # each costs a Fetch; the next ask takes the next ones
KEPT_MAX: Final = 20_000  # ranges that were said; beyond, all are said again

Key = tuple[str, int]


class DiskDamage:
    """Asks all brokers of a cluster. One thread uses it."""

    def __init__(self, bootstrap: str, client_id: str, raw: RawReader) -> None:
        self._admin = Admin(bootstrap, client_id=client_id, timeout_ms=ASK_TIMEOUT_MS)
        self._raw = raw
        self._said: dict[tuple[Key, int, int], bool] = {}

    def close(self) -> None:
        self._admin.close()

    def news(self, counters: Mapping[Key, PartitionCounter]) -> list[CorruptRecord]:
        """Returns records about what was found, or mended, in addresses that are counted.

        Raises `ClientError` if no broker answers.
        """
        if len(self._said) > KEPT_MAX:
            self._said.clear()
        records: list[CorruptRecord] = []
        looks = 0
        for found in self._ask():
            key = (found.topic, found.partition)
            counter = counters.get(key)
            said = (key, found.start, found.end)
            end = max(found.end, found.start + 1)  # a file that cannot be read has no end
            if counter is None or end > counter.counted_to or self._said.get(said) is found.is_mended:
                continue
            if looks == RANGES_PER_ASK_MAX:
                break
            looks += 1
            damage = self._look(found, end)
            if not found.is_mended:
                place = f"{found.topic}-{found.partition}: addresses {found.start} to {end}"
                logger.error("%s are corrupt on a broker's disk: %s", place, found.cause)
            records += counter.partition.corrupt(damage)
            self._said[said] = found.is_mended
        return records

    def _ask(self) -> Iterator[DamagedRange]:
        """Yields what the brokers know; of a range that was mended and is damaged again, the damage."""
        ranges: list[DamagedRange] = []
        try:
            brokers = self._admin.describe_cluster().brokers
        except UnsupportedApiError:
            return  # brokers of an older Kafka, which have no scrub either
        for broker_id in brokers:
            try:
                entries = self._admin.describe_broker_configs(broker_id)
            except ClientError as error:
                logger.info("broker %d does not say what its scrub found: %s", broker_id, error)
                continue
            parsed = (parse(entry.name, entry.value) for entry in entries.values())
            ranges += [each for each in parsed if each is not None]
        damaged = {each[:4] for each in ranges if not each.is_mended}
        yield from (each for each in ranges if not each.is_mended or each[:4] not in damaged)

    def _look(self, found: DamagedRange, end: int) -> Damage:
        """Returns the range as a damage, with what its batch's header says if it is one batch.

        Its cause is "" if it is mended.
        """
        cause = "" if found.is_mended else f"on the broker's disk, after it was counted: {found.cause}"
        unknown = Damage(found.start, end, cause, in_tally=True)
        try:
            read = self._raw.read(found.topic, found.partition, found.start, end - found.start)
        except ClientError:  # perhaps its log is offline, and has no leader
            return unknown
        step = next(walk(read.buffer, found.start), None) if read.error is ErrorCode.NONE else None
        if step is None or step.header is None or step.header.next_offset != end:
            return unknown
        return damage_of(step.header, cause, count_is_known=True, in_tally=True)
