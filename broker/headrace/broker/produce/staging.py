"""From a partition's records in a Produce request to batches staged in its log, or a refusal.

Owns what depends on the partition: its sequences, and the addresses that a mirror's copy takes. `validation`
checks the batch alone.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from headrace.broker.errors import Refused
from headrace.broker.partition import Partition
from headrace.broker.produce import validation
from headrace.broker.produce.opening import Opened, needs_opening
from headrace.broker.produce.validation import Batches
from headrace.broker.state import BrokerState
from headrace.log.errors import LogStorageError
from headrace.log.producers import SequenceVerdict, check_sequence
from headrace.log.staging import COPY_BELOW_BYTES
from headrace.replication.gaps import SETTING, AcceptedGap
from headrace.wire.batch import BatchHeader
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

NOT_STAMPED: Final = -1


class Staged(NamedTuple):
    """`stamped_ms`: the time that the batch got, with LogAppendTime; `NOT_STAMPED` for its producer's own, or
    a duplicate, whose first copy has another one.
    """

    base_offset: int
    records: int
    stamped_ms: int = NOT_STAMPED


def stage(
    state: BrokerState, partition: Partition, batches: Batches, opened: Opened | None, *, may_keep: bool
) -> Staged:
    """`opened`: what was found in the batch; `may_keep`: the batches may be kept and written to.

    A duplicate has its first copy's base offset and stages nothing. Raises `Refused`.
    """
    if problem := partition.failure or state.append_refusal:
        # Clients retry after this error: a disk gets room again.
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, problem)
    try:
        if partition.config.mirror:
            return _stage_verbatim(partition, batches, may_keep=may_keep)
        return _stage_one(state, partition, batches, opened, may_keep=may_keep)
    except LogStorageError as error:
        # Rolling to a new segment failed: this batch is not staged, those before it are written or lost.
        state.partitions.complete_writes(partition)
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None


def _stage_one(
    state: BrokerState, partition: Partition, batches: Batches, opened: Opened | None, *, may_keep: bool
) -> Staged:
    if len(batches) != 1:
        raise Refused(
            ErrorCode.INVALID_RECORD, f"{len(batches)} batches for {partition.name}: exactly one is allowed"
        )
    config = partition.config
    batch, header = batches[0]
    validation.check_header(header, config)
    if header.producer_id >= 0:
        base_offset = _check_sequence(partition, header)
        if base_offset >= 0:
            return Staged(base_offset, 0)
    if opened is None and needs_opening(header, config):
        raise Refused(
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"{partition.name} was opened, or got other settings, while the batch arrived: send it again",
        )
    now_ms = state.clock_ms()
    stored, stored_header = validation.to_store(batch, header, config, now_ms, opened)
    if stored is batch and not may_keep and len(batch) >= COPY_BELOW_BYTES:
        stored = memoryview(bytearray(batch))
    base_offset = partition.log.stage(stored, stored_header)
    return Staged(base_offset, header.record_count, now_ms if config.log_append_time else NOT_STAMPED)


def _check_sequence(partition: Partition, header: BatchHeader) -> int:
    """Returns the first copy's base offset for a duplicate, -1 for a batch to store. Raises `Refused`."""
    entry = partition.log.producers.get(header.producer_id)
    checked = check_sequence(entry, header.producer_epoch, header.base_sequence, header.last_sequence)
    if checked.verdict is SequenceVerdict.ACCEPT:
        return -1
    if checked.verdict is SequenceVerdict.DUPLICATE:
        return checked.base_offset
    producer = f"{partition.name}: producer {header.producer_id} epoch {header.producer_epoch}"
    if checked.verdict is SequenceVerdict.FENCED:
        raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"{producer} is fenced by a newer epoch")
    raise Refused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"{producer} sent sequence {header.base_sequence}, expected {checked.expected_sequence}",
    )


def _stage_verbatim(partition: Partition, batches: Batches, *, may_keep: bool) -> Staged:
    """Stages a mirror's batches: they must carry exactly the addresses they get here."""
    log = partition.log
    first = batches[0][1]
    base = expected = first.address
    for _, header in batches:
        if not header.is_stored_at(header.address):
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{partition.name} is a mirror's copy (headrace.mirror=true): ordinary producers are refused",
            )
        if header.address != expected:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.name}: batches are not contiguous at {expected}"
            )
        expected += header.size_bytes
    if base != log.staged_end_address and not log.is_pristine:
        _pass_gap(partition, base)
    log.rebase(base)
    count = 0
    for batch, header in batches:
        kept = batch if may_keep or len(batch) < COPY_BELOW_BYTES else memoryview(bytearray(batch))
        log.stage(kept, header, verbatim=True)
        count += header.record_count
    return Staged(first.base_offset, count)


def _pass_gap(partition: Partition, base: int) -> None:
    """Restarts a copy at `base` if exactly that gap was accepted. Raises `Refused`, `LogStorageError`."""
    log = partition.log
    end = log.staged_end_address
    if AcceptedGap(partition.index, end, base) not in partition.config.accepted_gaps:
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.name} ends at {end}, the batch is for {base}: request its end and continue there",
        )
    start = log.start_address
    log.restart(base)
    logger.warning(
        "%s: addresses %d to %d dropped, the log restarts at %d: the gap was accepted (%s)",
        partition.name,
        start,
        end,
        base,
        SETTING,
    )
