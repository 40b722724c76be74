"""What a follower does with its leader's answer: append, truncate, begin anew or ask again. Pure.

Each fetch says which leader epoch the follower's last batch is of, so that each answer says whether both logs
agree up to there (KIP-101, KIP-279, KIP-595's diverging epoch): nothing is appended before they do, and there
is no step of reconciliation beside the fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.log.epochs import LeaderEpochs
from headrace.replication.pull import DivergedError, sound_prefix
from headrace.wire.batch import BatchHeader, read_header
from headrace.wire.errors import CorruptBatchError, ErrorCode
from headrace.wire.fetch import FetchPartitionResult
from headrace.wire.primitives import Buffer

# What a leader answers while brokers learn of a new leader, each at its own time.
EXPECTED_CODES: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class OwnLog(NamedTuple):
    """The follower's log."""

    start_address: int
    end_address: int
    epochs: LeaderEpochs


class Append(NamedTuple):
    """Both logs agree up to the follower's end. `batches`: what follows, checked; perhaps nothing. `headers`:
    theirs.

    `high_watermark` and `leader_start_address`: the leader's. `problem`: why what came behind `batches` is
    not appended.
    """

    batches: Buffer
    headers: Sequence[BatchHeader]
    high_watermark: int
    leader_start_address: int
    problem: DivergedError | None


class Truncate(NamedTuple):
    """The logs part: what the follower has from `address` on is not the leader's. Then it asks again, since
    they may part before that, too.
    """

    address: int


class Restart(NamedTuple):
    """Nothing of the follower's log is in the leader's, which begins at `address`: the leader has deleted all
    up to behind the follower's end, or ends before the follower's start (an unclean election).
    """

    address: int


class PassGap(NamedTuple):
    """The leader has set aside what follows the follower's end (`headrace log set-aside`), and goes on at
    `address`.
    """

    address: int


class AskAgain(NamedTuple):
    """After a pause. `is_expected`: while a new leader is becoming known."""

    problem: str
    is_expected: bool


Step = Append | Truncate | Restart | PassGap | AskAgain


def next_step(own: OwnLog, result: FetchPartitionResult) -> Step:
    """Decides what follows from the answer to a fetch at `own.end_address` with `own.epochs.latest`."""
    code, leader_start = ErrorCode(result.error_code), result.log_start_offset
    is_empty = own.start_address == own.end_address
    if code is ErrorCode.OFFSET_OUT_OF_RANGE and (leader_start > own.end_address or is_empty):
        return Restart(leader_start)
    if code is not ErrorCode.NONE:
        return AskAgain(f"its leader answers {code.name}", code in EXPECTED_CODES)
    if result.diverging_epoch is not None:
        return _part(own, *result.diverging_epoch, leader_start)
    records = result.records
    if records is None or isinstance(records, int):
        records = b""
    headers, size_bytes, problem = sound_prefix(records, own.end_address)
    if is_empty and problem is not None and _lies_before(records, own.end_address):
        return Restart(leader_start)  # here the log begins within a batch of the leader's
    batches = memoryview(records)[:size_bytes]
    return Append(batches, headers, result.high_watermark, result.log_start_offset, problem)


def _lies_before(records: Buffer, address: int) -> bool:
    """Whether the first batch begins before that address, and ends behind it."""
    try:
        header = read_header(records, 0)
    except CorruptBatchError:
        return False
    return header.is_stored_at(header.address) and header.address < address < header.next_offset


def _part(own: OwnLog, epoch: int, end_address: int, leader_start: int) -> Step:
    """`epoch`: the largest one of the leader's, up to the follower's last; it ends there at `end_address`, or
    a gap does, if that is behind all that the follower has.
    """
    if epoch == own.epochs.latest and end_address > own.end_address:
        return PassGap(end_address)
    mine = own.epochs.end_of(epoch, own.end_address)
    if mine.epoch == epoch:
        agreed = min(mine.end_address, end_address)
    elif mine.epoch >= 0:
        agreed = mine.end_address  # the leader lacks that epoch of mine, or has less of it: it says so next
    else:
        agreed = own.start_address
    if agreed < own.start_address and epoch >= 0:
        return Restart(leader_start)
    agreed = max(own.start_address, agreed)
    if agreed >= own.end_address:
        return AskAgain(
            f"its leader says that the logs part in epoch {epoch}, which ends there at {end_address}; here "
            f"the log ends at {own.end_address}, in epoch {own.epochs.latest}",
            is_expected=False,
        )
    return Truncate(agreed)
