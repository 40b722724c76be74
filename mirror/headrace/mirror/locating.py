"""Locating copies: where they end, and whether their sources still match. Blocking calls; owns no state.

Before the first append after any problem, the copy's last batch is compared with the source's batch at that
address, by checksum, and its leader epoch with the source's epochs. This finds a divergence that equal
lengths, and even an equal last batch, hide. A topic that was made again under its name is another one, by its
id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from headrace.client.errors import ClientError, NetworkError
from headrace.client.lineage import NO_EPOCH
from headrace.mirror.side import Bounds, MirrorSide
from headrace.replication import gaps
from headrace.replication.gaps import AcceptedGap
from headrace.replication.pull import (
    DamagedBatchError,
    DivergedError,
    Fetched,
    LastBatch,
    MissingRangeError,
    ReplicationError,
    SourceAheadError,
    SourceBehindError,
    check_batches,
    check_epoch,
    check_tail,
)
from headrace.wire.batch import hop
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import NO_UUID

ONE_BATCH_BYTES: Final = 1  # the broker returns at least one whole batch
MENDING: Final = (
    "`headrace log check` beside the source's broker names all damage. Restore the file there, or run "
    "`headrace log set-aside`"
)

LocatingError = ReplicationError | ClientError


class RecreatedError(ReplicationError):
    """The source's topic is not the one that was copied: it was deleted, and made again under its name."""

    def __init__(self, topic: str, partition: int, copied: UUID, found: UUID) -> None:
        super().__init__(
            f"topic {topic} was deleted in the source and made again: its id is {found} now, and partition "
            f"{partition} here holds a copy of {copied}. The two are never mixed. Once the copy's data is "
            f"loaded into HDFS, delete topic {topic} here: the mirror makes it again, and copies what the "
            "source has"
        )


class SourceGapError(SourceAheadError):
    """Addresses [copy_end, source_start) can never be copied: the source no longer has them."""

    def __init__(self, copy_end: int, source_start: int) -> None:
        self.copy_end = copy_end
        self.source_start = source_start
        super().__init__(
            f"the source begins at {source_start}; addresses {copy_end} to {source_start} were deleted by "
            "its retention before they were copied"
        )


class SourceDamagedError(ReplicationError):
    """Addresses [copy_end, source_start) are not copied: in the source a batch there is damaged, or it was
    set aside."""

    def __init__(self, copy_end: int, source_start: int, problem: str) -> None:
        self.copy_end = copy_end
        self.source_start = source_start
        super().__init__(problem)


class Located(NamedTuple):
    """The address at which copying continues, the source's end, the accepted gaps before `address`, the ids
    of the source's topic and of the target's, whether the target has nothing yet, and the leader epoch of the
    batch that ends at `address`, if it is known.
    """

    address: int
    source_end: int
    passed_gaps: tuple[AcceptedGap, ...] = ()
    topic_id: UUID = NO_UUID
    target_id: UUID = NO_UUID
    is_empty: bool = False
    leader_epoch: int = NO_EPOCH


class _PartitionSource:
    """The `replication.pull.Source` of one partition, for `check_tail`."""

    def __init__(self, side: MirrorSide, topic: str, partition: int, bounds: Bounds) -> None:
        self._side = side
        self._topic = topic
        self._partition = partition
        self.bounds = bounds

    def fetch(self, address: int) -> Fetched:
        if not self.bounds.start <= address < self.bounds.end:
            return Fetched(b"", *self.bounds)
        return self._side.fetch(self._topic, self._partition, address, ONE_BATCH_BYTES)

    def readable_after(self, address: int) -> int | None:
        return self._side.readable_after(self._topic, self._partition, address, self.bounds.end)


def locate(
    source: MirrorSide,
    target: MirrorSide,
    topic: str,
    pairs: dict[int, int],
    suspects: dict[int, int] | None = None,
    copied_ids: Mapping[int, UUID] | None = None,
) -> dict[int, Located | LocatingError]:
    """Locates the copies of `pairs` (source partition → target partition), or returns why that failed.

    `suspects`: by source partition, the address of a batch that was bad when it was fetched; it is read once
    more. `copied_ids`: by target partition, the id of the source's topic that it holds. `ReplicationError`:
    source and copy do not match, or the batch is still bad. Raises `ClientError` if a whole side does not
    respond, and `NotAMirrorError` if the target's topic is no copy.
    """
    topic_id, _ = ids = source.topic_id(topic), target.topic_id(topic)
    # The target first: if another mirror of this source appends meanwhile, the source still ends behind it.
    targets = target.bounds(topic, sorted(pairs.values()))
    sources = source.bounds(topic, sorted(pairs))
    accepted = target.accepted_gaps(topic)
    found: dict[int, Located | LocatingError] = {}
    lasts: dict[int, LastBatch] = {}
    for partition, target_partition in pairs.items():
        held = sources.get(partition) or _without_leader(f"{topic}-{partition} in the source")
        copy = targets.get(target_partition) or _without_leader(f"{topic}-{target_partition} in the target")
        if isinstance(held, ClientError):
            found[partition] = held
            continue
        if isinstance(copy, ClientError):
            found[partition] = copy
            continue
        reader = _PartitionSource(source, topic, partition, held)
        try:
            copied_id = (copied_ids or {}).get(target_partition, topic_id)
            if copied_id != topic_id and copy.end > 0:
                raise RecreatedError(topic, target_partition, copied_id, topic_id)
            address = _decide(reader.bounds, copy, target_partition, accepted)
            passed_gaps = gaps.passed(accepted, target_partition, address)
            located = Located(address, reader.bounds.end, passed_gaps, *ids, copy.end == 0)
            found[partition] = located
            if copy.start < copy.end:
                last = _last_batch(target, topic, target_partition, copy)
                if last is not None:
                    check_tail(reader, last)
                    lasts[partition] = last
                    found[partition] = _behind(located, last)
            if suspects is not None and suspects.get(partition) == address:
                _check_again(reader, address)
        except MissingRangeError as error:
            gap_start = copy.end or reader.bounds.start
            found[partition] = SourceDamagedError(gap_start, error.end_address, str(error))
        except DamagedBatchError as error:
            found[partition] = _halted_by(error, reader, copy)
        except (ReplicationError, ClientError) as error:
            found[partition] = error
    return found | _check_epochs(source, topic, lasts)


def _behind(located: Located, last: LastBatch) -> Located:
    """Adds the leader epoch of the copy's last batch, unless a gap lies between."""
    is_next = last.end_address == located.address
    return located._replace(leader_epoch=last.leader_epoch) if is_next else located


def _without_leader(where: str) -> NetworkError:
    return NetworkError(f"{where} has no leader: its broker is down, or its log is offline")


def _halted_by(error: DamagedBatchError, source: _PartitionSource, copy: Bounds) -> LocatingError:
    """Returns why a copy halts at a batch that the source has, and cannot give: between which addresses, if
    anything says where the log can be read again.
    """
    gap_start = copy.end or source.bounds.start
    if error.address < gap_start:
        return DivergedError(
            f"{error}: the copy holds it, and cannot be compared with the source. {MENDING}, and the copy "
            "continues by itself"
        )
    try:
        resume = error.end_address or source.readable_after(error.address)
    except ClientError as problem:
        return problem
    if resume is None:
        return DivergedError(f"{error}; nothing says where the next batch begins. {MENDING}")
    return SourceDamagedError(gap_start, resume, str(DamagedBatchError(error.address, resume, error.problem)))


def _check_epochs(
    source: MirrorSide, topic: str, lasts: Mapping[int, LastBatch]
) -> dict[int, Located | LocatingError]:
    """Returns what is wrong with copies whose last batches have other leader epochs than the source."""
    asked = {partition: last.leader_epoch for partition, last in lasts.items() if last.leader_epoch >= 0}
    ends = source.epoch_ends(topic, asked)
    wrong: dict[int, Located | LocatingError] = {}
    for partition in asked:
        end = ends.get(partition) or NetworkError(
            f"the leader of {topic}-{partition} in the source has moved"
        )
        if isinstance(end, ClientError):
            wrong[partition] = end
            continue
        try:
            check_epoch(end, lasts[partition])
        except ReplicationError as error:
            wrong[partition] = SourceBehindError(str(error)) if end.epoch < 0 else error
    return wrong


def _check_again(source: _PartitionSource, address: int) -> None:
    """Reads what was bad or missing at `address` once more. Raises `ClientError`, `DivergedError`."""
    if address >= source.bounds.end:
        return
    fetched = source.fetch(address)
    if not len(fetched.batches) and address < fetched.end_address:
        raise MissingRangeError(address, fetched.end_address)
    try:
        check_batches(fetched.batches, address)
    except MissingRangeError as missing:
        if missing.end_address >= source.bounds.end:
            raise NetworkError(f"the source changed while address {address} was looked up") from None
        # A batch's own offset is not under its checksum: believed only if the source finds the batch there.
        behind = source.fetch(missing.end_address)
        try:
            check_batches(behind.batches, missing.end_address)
        except DivergedError as error:
            raise DivergedError(f"the source's batch for address {address} is misplaced: {error}") from None
        if not len(behind.batches):
            raise DivergedError(
                f"the source's batch for address {address} says that it lies at {missing.end_address}, and "
                "nothing is there"
            ) from None
        raise


def _last_batch(target: MirrorSide, topic: str, partition: int, bounds: Bounds) -> LastBatch | None:
    """Returns the last batch of a copy: the one that its last address lies in. None if it was set aside.

    Raises `ClientError`, `DivergedError`.
    """
    try:
        fetched = target.fetch(topic, partition, bounds.end - 1, ONE_BATCH_BYTES)
        if not len(fetched.batches) and fetched.end_address == bounds.end:
            return None
        for _, header in hop(fetched.batches):
            if header.next_offset == bounds.end:
                return LastBatch(header.address, bounds.end, header.crc, header.partition_leader_epoch)
    except CorruptBatchError as error:
        raise DivergedError(f"the last batch of the copy in partition {partition} is bad: {error}") from None
    except DamagedBatchError as error:
        raise DivergedError(
            f"the last batch of the copy in partition {partition} cannot be read: the log there is damaged "
            f"before address {error.address + 1}, and nothing says where that batch begins. Stop the "
            "broker, and restore the log's files there, or run `headrace log set-aside`"
        ) from None
    raise NetworkError(f"the copy of {topic} in partition {partition} changed while it was being located")


def _decide(source: Bounds, copy: Bounds, partition: int, accepted: tuple[AcceptedGap, ...]) -> int:
    """Returns where copying continues; `partition` is its number at the target. Raises `ReplicationError`."""
    if copy.end == 0:
        return _behind_bad_batches(source.start, source, partition, accepted)
    if source.end < copy.end:
        raise SourceBehindError(
            f"the source ends at {source.end}, before the copy's end {copy.end}: it lost bytes that the copy "
            "has, or the topic was recreated; find out which side is right, and delete the "
            "topic on the other side"
        )
    if source.start <= copy.end:
        return _behind_bad_batches(copy.end, source, partition, accepted)
    if AcceptedGap(partition, copy.end, source.start) in accepted:
        return source.start
    raise SourceGapError(copy.end, source.start)


def _behind_bad_batches(
    address: int, source: Bounds, partition: int, accepted: tuple[AcceptedGap, ...]
) -> int:
    """Returns `address`, or the end of the gap there: a bad batch that the source has, and nobody wants."""
    ends = [
        gap.to_address
        for gap in accepted
        if gap.partition == partition and gap.from_address == address and gap.to_address <= source.end
    ]
    return max(ends, default=address)
