"""A topic that was deleted and made again: whether its log is the one that is loaded.

Owns the comparison of a partition's log with what loads noted of it, and the decision which partitions are
loaded from their beginning. A mirror's copy that is made again holds the same bytes at the same addresses, so
loads go on in it. Another log has other bytes there, and an operator has to say that it shall be loaded.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.warehouse.manifest import LoadedRange, Manifest
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import OTHER_LOG, LogWentBackError, MadeAgain, PlanError
from headrace.warehouse.source.connection import Address
from headrace.warehouse.source.errors import SourceError
from headrace.warehouse.source.options import SourceOptions
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reading import read_batches
from headrace.wire.batch import BatchHeader

LISTED_MAX: Final = 20
"""Partitions that an error names."""

Likeness = Literal["same", "copying", "other", "unknown"]
"""How a log compares with what is loaded: it holds the last loaded batch; it ends before that, and holds an
earlier one; it holds another batch at the same address; nothing can be compared.
"""


class TopicMadeAgainError(PlanError):
    """The topic was deleted and made again, and its log is not known to be the one that is loaded."""


@dataclass(frozen=True)
class Log:
    """A partition's log as its brokers have it now: its bounds, and the leader."""

    earliest: int
    latest: int
    leader: Address


@dataclass(frozen=True)
class TopicLogs:
    """The logs of a topic now. `topic_id`: Kafka's id of it; "" if the brokers give topics none."""

    warehouse: WarehouseOptions
    topic: str
    topic_id: str
    logs: Mapping[int, Log]

    def last_crc(self, partition: int, end: int) -> int | None:
        """Returns the CRC of the batch that ends at this address; None if there is none, or it cannot be
        read.
        """
        log = self.logs.get(partition)
        if log is None or not log.earliest < end <= log.latest:
            return None
        try:
            found = self.first_batch(partition, end - 1, end)
        except SourceError:
            return None
        return found[0].crc if found and not found[1] and found[0].next_offset == end else None

    def first_batch(self, partition: int, start: int, end: int) -> tuple[BatchHeader, str] | None:
        """Returns the header of the first batch with records in [start, end), and why it cannot be read, ""
        for a sound one; None if there is none. Raises `SourceError`.
        """
        options = SourceOptions(bootstrap=self.warehouse.servers, fetch_size_bytes=1, on_corrupt="keep")
        leader = self.logs[partition].leader
        for batch in read_batches(Range(self.topic, partition, start, end), options, leader):
            return batch.header, batch.problem
        return None

    def check_begins_batch(self, partition: int, start: int, end: int) -> None:
        """Raises `LogWentBackError` if `start`, where the last load ended, lies within a batch."""
        header, problem = self.first_batch(partition, start, end) or (None, "")
        # The offsets of records are the last ones of their batch's addresses.
        if header is not None and not problem and header.address < start and header.base_offset != start:
            raise LogWentBackError(
                f"{self.topic}: partition {partition} is loaded up to address {start}, where no batch "
                f"begins: {OTHER_LOG}"
            )

    def not_loadable(self, ends: Mapping[int, int]) -> list[int]:
        """Returns the partitions of which these addresses can be no end of a load: the log ends before, or
        has no batch that begins there. Raises `SourceError`.
        """
        found: list[int] = []
        for partition, end in sorted(ends.items()):
            log = self.logs.get(partition)
            try:
                if log is not None and log.earliest < end < log.latest:
                    self.check_begins_batch(partition, end, log.latest)
            except LogWentBackError:
                found.append(partition)
                continue
            if log is None or log.latest < end:
                found.append(partition)
        return found


def likeness(logs: TopicLogs, ends: Mapping[int, int], manifests: Iterable[Manifest]) -> dict[int, Likeness]:
    """Compares the logs with what is loaded, of each partition in `ends`. Raises `SourceError`."""
    marks = noted_batches(manifests)
    return {
        partition: _likeness(logs, partition, end, marks.get(partition, {}))
        for partition, end in ends.items()
    }


def noted_batches(manifests: Iterable[Manifest]) -> dict[int, dict[int, int]]:
    """Returns partition → the address after the last batch of each load → that batch's CRC, of the logs that
    are loaded now. Pure.
    """
    found: dict[int, dict[int, int]] = {}
    for manifest, loaded in present_ranges(manifests):
        if manifest.kind == "load" and loaded.last_crc is not None:
            found.setdefault(loaded.partition, {})[loaded.to_address] = loaded.last_crc
    return found


def present_ranges(manifests: Iterable[Manifest]) -> Iterator[tuple[Manifest, LoadedRange]]:
    """Yields the ranges of all changes whose addresses are those of the logs that are loaded now. Pure."""
    known = list(manifests)
    begun = {partition: manifest.sequence for manifest in known for partition in manifest.begun}
    for manifest in known:
        for loaded in manifest.ranges:
            if manifest.sequence >= begun.get(loaded.partition, 0):
                yield manifest, loaded


def shared_hours(manifests: Iterable[Manifest]) -> set[tuple[int, int]]:
    """Returns each (partition, hour of Kafka timestamps in ms) with rows of several logs: one offset may be
    there in two rows, and nothing is wrong. Pure.
    """
    before: dict[int, set[int]] = {}
    now: dict[int, set[int]] = {}
    shared: set[tuple[int, int]] = set()
    for manifest in manifests:
        for partition in manifest.begun:
            before.setdefault(partition, set()).update(now.pop(partition, ()))
        for loaded in manifest.ranges:
            hours = {hour.hour_ms for hour in loaded.hours}
            now.setdefault(loaded.partition, set()).update(hours)
            shared.update((loaded.partition, each) for each in hours & before.get(loaded.partition, set()))
    return shared


def _likeness(logs: TopicLogs, partition: int, end: int, marks: Mapping[int, int]) -> Likeness:
    log = logs.logs.get(partition)
    if log is None:
        return "other"
    held = [address for address in marks if log.earliest < address <= log.latest]
    if not held:
        return "unknown"
    at = max(held)
    if logs.last_crc(partition, at) != marks[at]:
        return "other"
    return "copying" if log.latest < end else "same"


def begun_partitions(
    topic: str, ids: tuple[str, str], found: Mapping[int, Likeness], made_again: MadeAgain | None
) -> tuple[int, ...]:
    """Returns which loaded partitions begin anew; the others are loaded on. Pure.

    `ids`: the topic's id when it was loaded last, and now. Raises `TopicMadeAgainError` where an operator has
    to say what the log is, or what was said is not true.
    """
    before, now = ids
    what = (
        f"{topic} was deleted and made again: its id was {before} when it was loaded last, and is {now} now"
    )
    if copying := _listed(found, "copying"):
        raise TopicMadeAgainError(
            f"{what}. The log of {copying} is the one that is loaded, copied again, and has not reached the "
            "last loaded address yet. Nothing is loaded; repeat when it has"
        )
    if (others := _listed(found, "other")) and made_again != "new":
        raise TopicMadeAgainError(
            f"{what}. The log of {others} is not the one that is loaded: it has another batch there. Nothing "
            "is loaded; to load it from its beginning into the same table, repeat with --made-again new. "
            "Events that both logs hold are there twice then; `headrace audit dedupe` removes them"
        )
    if (unknown := _listed(found, "unknown")) and made_again is None:
        raise TopicMadeAgainError(
            f"{what}. Nothing shows whether the log of {unknown} is the one that is loaded: it holds no "
            "batch that a load ended with. Nothing is loaded; repeat later if it is being copied again, with "
            "--made-again new if it is another log, which is loaded from its beginning then, or with "
            "--made-again copy if it is the same one"
        )
    begins = {"other", "unknown"} if made_again == "new" else set()
    return tuple(sorted(partition for partition, kind in found.items() if kind in begins))


def _listed(found: Mapping[int, Likeness], kind: Likeness) -> str:
    numbers = [str(partition) for partition, each in sorted(found.items()) if each == kind]
    more = f" and {len(numbers) - LISTED_MAX} more" if len(numbers) > LISTED_MAX else ""
    return f"partition {', '.join(numbers[:LISTED_MAX])}{more}" if numbers else ""
