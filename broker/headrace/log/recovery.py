"""Opens a partition's files after a stop, clean or not, and decides what is kept and what is cut off.

What was durable is known from the checkpoint (its recovery point), from the indexes of sealed segments, and
from the note of what was flushed since (`log.flushed`).
Below that nothing is ever cut, moved or deleted: damage there is a `LogDamagedError`. From the recovery point
on the stored address, the length and the CRC of every batch are checked. The first bad batch above what was
durable, and all after it, were never flushed completely, so never acknowledged with acks=all nor shown to a
consumer: they are cut off, into `.cut` files. If the checkpoint is lost, nobody knows what was durable, and a
bad batch anywhere is damage.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log import checkpoint, flushed, gaps, index
from headrace.log.checkpoint import BegunSegment, Checkpoint
from headrace.log.cutting import CutFile, cut, cut_files
from headrace.log.epochs import LeaderEpochs
from headrace.log.epochs_below import epochs_below
from headrace.log.errors import OldLogFormatError, damaged
from headrace.log.flush import FlushJob
from headrace.log.gaps import Gap
from headrace.log.names import (
    ASIDE_SUFFIX,
    CHECKPOINT,
    CUT_SUFFIX,
    GAPS,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    SET_ASIDE_PLAN,
    address_of,
    file_name,
    is_ours,
    is_temporary,
)
from headrace.log.producers import ProducerStates
from headrace.log.segment import Segment
from headrace.log.segments import SegmentList
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, read_header, verify
from headrace.wire.errors import WireError

logger = logging.getLogger(__name__)

READ_BYTES: Final = 4 * 1024 * 1024
NAMED_MAX: Final = 10  # foreign files named in one warning


class Opened(NamedTuple):
    """The segments of a directory, in order, the producers' state at their end, the leaders' epochs, what was
    cut off, and the log's lineage.
    """

    segments: list[Segment]
    producers: ProducerStates
    epochs: LeaderEpochs
    cut_files: list[CutFile]
    lineage: int
    checkpointed_address: int


class Files(NamedTuple):
    """A partition's segments in order, and the base addresses of all indexes."""

    segments: list[Segment]
    indexes: frozenset[int]


class Evidence(NamedTuple):
    """What is known of the log before its bytes are read.

    `checkpoint`: where checking begins. `durable`: everything below was flushed. `is_certain`: what lies
    above `durable` was perhaps not; else the checkpoint is lost, and it may have been.
    """

    checkpoint: Checkpoint
    durable: int
    is_certain: bool


def open_log(directory: Path, clock: Callable[[], int]) -> Opened:
    """Opens the segments, cuts off incomplete batches, and returns once all is durable; creates the first
    segment in an empty directory. `clock`: wall clock in ms. Raises `LogDamagedError`, `OldLogFormatError`,
    `OSError`; then no file stays open.
    """
    files = find_files(directory)
    accepted = gaps.load(directory)
    if (directory / SET_ASIDE_PLAN).exists():
        raise damaged(directory / SET_ASIDE_PLAN, 0, "a `set-aside` was interrupted: repeat it")
    if not files.segments:
        return _create(directory, files, clock)
    with _closed_on_failure(files.segments):
        return _recovered(directory, files, accepted)


@contextmanager
def _closed_on_failure(segments: Sequence[Segment]) -> Iterator[None]:
    """Closes the files of segments if the log cannot be opened. The error's traceback refers to them, and
    may be kept: the log would seem to have a writer (`broker.replicas.offline`).
    """
    opened = tuple(segments)
    try:
        yield
    except BaseException:
        for segment in opened:
            if (file := segment.in_use()) is not None:
                file.close()
        raise


def _recovered(directory: Path, files: Files, accepted: Sequence[Gap]) -> Opened:
    segments = files.segments
    known = evidence(directory, files)
    check_chain(segments, known.durable, accepted)
    producers = checkpoint.producers_in(known.checkpoint, segments[0].base_address)
    for segment in segments[:-1]:
        if segment.base_address in known.checkpoint.max_timestamps_ms:
            segment.note_max_timestamp(known.checkpoint.max_timestamps_ms[segment.base_address])
    _hand_out_starts(directory, files)
    point = max(known.checkpoint.recovery_point, segments[0].base_address)
    for segment in segments:
        if segment.end_address > point:
            segment.file.drop_page_cache(max(0, point - segment.base_address))
    epochs = epochs_below(segments, point, known.checkpoint.epochs)

    def on_batch(header: BatchHeader) -> None:
        producers.note(header, header.base_offset)
        epochs.note(header.partition_leader_epoch, header.address)

    kept = recover(directory, segments, known, accepted, on_batch)
    _date(kept, known.checkpoint.begun)
    end = kept[-1].end_address
    unflushed = tuple(segment.file for segment in kept if segment.end_address > point)
    is_news = not known.is_certain or len(kept) < len(segments)
    saved = None
    if is_news:
        saved = Checkpoint(
            end,
            tuple(producers),
            saved_ms=producers.clock_ms(),
            epochs=epochs.starts(),
            starts=SegmentList(kept).sparse_starts(),
            lineage=known.checkpoint.lineage,
            begun=BegunSegment(kept[-1].base_address, kept[-1].created_ms),
        )
    FlushJob(directory, unflushed, directory_too=True, upto_address=end, checkpoint=saved).run()
    if not known.is_certain:
        logger.warning("%s: all %d bytes were checked; a new checkpoint was written", directory, end - point)
    checkpointed_address = known.checkpoint.recovery_point if saved is None else end
    lineage = known.checkpoint.lineage
    return Opened(kept, producers, epochs, cut_files(directory), lineage, checkpointed_address)


def _date(segments: Sequence[Segment], begun: BegunSegment | None) -> None:
    """Tells segments when they were begun, as far as that is known: else a broker that is restarted more
    often than once in `segment.ms` would never roll a small one, and nothing in it would expire.
    """
    for before, segment in pairwise(segments):
        segment.created_ms = min(segment.created_ms, before.last_append_ms)
    active = segments[-1]
    if begun is not None and begun.base_address == active.base_address:
        active.created_ms = min(active.created_ms, begun.at_ms)


def _hand_out_starts(directory: Path, files: Files) -> None:
    """Gives the segments that have no index their starts in the checkpoints."""
    starts = checkpoint.starts_in(directory)
    for segment in files.segments:
        if segment.base_address not in files.indexes:
            base, end = segment.base_address, segment.end_address
            segment.unproven = tuple(each for each in starts if base < each < end)


def _create(directory: Path, files: Files, clock: Callable[[], int]) -> Opened:
    """Begins a log at address 0, unless something says that there was one already."""
    saved = checkpoint.load(directory)
    left = [path.name for suffix in (CUT_SUFFIX, ASIDE_SUFFIX) for path in directory.glob(f"*{suffix}*")]
    if (
        (saved is not None and saved.recovery_point > 0)
        or checkpoint.load_previous(directory) is not None
        or (saved is None and (directory / CHECKPOINT).exists())
        or files.indexes
        or left
        or (directory / GAPS).exists()
    ):
        end = saved.recovery_point if saved is not None else 0
        first = directory / file_name(0, SEGMENT_SUFFIX)
        raise damaged(first, end, "the log's other files are here, but none of its segments")
    if saved is None:
        saved = Checkpoint(0, lineage=flushed.new_lineage())
        checkpoint.save_only(directory, saved)
    segment = Segment(directory, 0, create_at_ms=clock())
    with _closed_on_failure([segment]):
        FlushJob(directory, (), directory_too=True, upto_address=0).run()
    return Opened([segment], ProducerStates(), LeaderEpochs(), [], saved.lineage, 0)


def find_files(directory: Path) -> Files:
    """Returns the segments and indexes of a directory; removes temporary files of a crash, warns of foreign
    files. Raises `LogDamagedError` for a segment that is no file.
    """
    bases, indexes, foreign = [], set(), []
    for path in directory.iterdir():
        name = path.name
        if is_temporary(name):
            path.unlink(missing_ok=True)  # the broker may just be removing it, too
        elif (base := address_of(name, SEGMENT_SUFFIX)) is not None:
            bases.append(base)
        elif (indexed := address_of(name, INDEX_SUFFIX)) is not None:
            indexes.add(indexed)
        elif not is_ours(name):
            foreign.append(name)
    if foreign:
        logger.warning(
            "%s: files that do not belong here are left alone: %s",
            directory,
            ", ".join(ascii(name) for name in sorted(foreign)[:NAMED_MAX]),
        )
    for base in bases:
        path = directory / file_name(base, SEGMENT_SUFFIX)
        if not stat.S_ISREG(path.stat().st_mode):
            raise damaged(path, base, "this is not a file")
    return Files([Segment(directory, base) for base in sorted(bases)], frozenset(indexes))


def evidence(directory: Path, files: Files) -> Evidence:
    """Returns what checkpoint, its copy and indexes say. Raises `LogDamagedError` if they say that a segment
    is missing.
    """
    segments = files.segments
    saved = checkpoint.load(directory)
    first = segments[0].base_address
    known = saved
    if known is None:
        known = checkpoint.load_previous(directory) or Checkpoint(first)
        is_new = len(segments) == 1 and not segments[0].size_bytes and not files.indexes
        if not is_new:
            logger.warning(
                "%s: the checkpoint is lost or damaged: the log is checked from address %d on, and opened "
                "only if all of it is whole",
                directory,
                max(first, known.recovery_point),
            )
    durable = max(first, known.recovery_point, flushed.load(directory, known.lineage))
    by_base = {segment.base_address: segment for segment in segments}
    ends = {each.base_address: following.base_address for each, following in pairwise(segments)}
    for base in sorted(files.indexes):
        segment = by_base.get(base)
        if saved is not None and base in ends and ends[base] <= durable:
            continue  # the checkpoint says enough: `check_chain` compares the file's size
        found = index.load(directory, base)
        if found is None:
            # Damaged itself; it was written once its segment was flushed, up to where the next one begins.
            durable = max(durable, ends.get(base, durable))
            continue
        path = directory / file_name(base, SEGMENT_SUFFIX)
        if segment is None:
            raise damaged(path, base, f"the segment is missing, its index reaches to {found.end_address}")
        if segment is segments[-1]:
            raise damaged(path, found.end_address, "the log's last segment, which followed here, is missing")
        durable = max(durable, found.end_address)
    return Evidence(known, durable, saved is not None)


def check_chain(segments: Sequence[Segment], durable: int, accepted: Sequence[Gap]) -> None:
    """Raises `LogDamagedError` if bytes below `durable` are missing, or there are too many."""
    for segment, following in pairwise(segments):
        if following.base_address <= durable and not gaps.allows(
            accepted, segment.end_address, following.base_address
        ):
            raise damaged(
                segment.path,
                segment.end_address,
                f"the file ends here, the next segment begins at {following.base_address}",
            )
    last = segments[-1]
    if last.end_address < durable:
        raise damaged(
            last.path, last.end_address, f"the log ends here, but everything below {durable} was durable"
        )


def recover(
    directory: Path,
    segments: list[Segment],
    known: Evidence,
    accepted: Sequence[Gap],
    on_batch: Callable[[BatchHeader], None],
) -> list[Segment]:
    """Returns the segments to keep, the last one cut after the last good batch.

    Calls `on_batch` with the header of every good batch, in order. Raises `LogDamagedError` if a batch that
    was durable, or may have been, is bad.
    """
    point = known.checkpoint.recovery_point
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_address if at + 1 < len(segments) else None
        good_end, problem = segment.end_address, None
        if segment.end_address > point:
            good_end, problem = check_batches(segment, max(segment.base_address, point), on_batch)
        if problem is None and following is not None and not gaps.allows(accepted, good_end, following):
            problem = f"the next segment begins at {following}"
        if problem is None:
            continue
        if good_end < known.durable:
            raise damaged(segment.path, good_end, f"{problem}; everything below {known.durable} was durable")
        if not known.is_certain:
            raise damaged(
                segment.path,
                good_end,
                f"{problem}; the checkpoint is lost, so nobody knows whether these bytes were durable",
            )
        cut(directory, segments, at, good_end, problem)
        return segments[: at + 1]
    return segments


def check_batches(
    segment: Segment, address: int, on_batch: Callable[[BatchHeader], None]
) -> tuple[int, str | None]:
    """Returns the end of the last good batch, and the problem of the next one (`None` if all are good).

    Raises `OldLogFormatError` before anything is cut.
    """
    file_end = segment.end_address
    window, window_address = memoryview(b""), address
    while address < file_end:
        at = address - window_address
        needed = HEADER_SIZE_BYTES
        try:
            if len(window) - at < needed:
                window, window_address, at = _read(segment, address, READ_BYTES), address, 0
            header = read_header(window, at)
            needed = header.size_bytes
            if address + needed > file_end:
                return address, f"its {needed} bytes are incomplete"
            if len(window) - at < needed:
                window, window_address, at = _read(segment, address, max(READ_BYTES, needed)), address, 0
            if not header.is_stored_at(address):
                if _is_old(header, address):
                    raise OldLogFormatError(segment.path.parent, f"the batch at address {address}")
                return address, f"its offsets are {header.base_offset} + {header.last_offset_delta}"
            verify(window, at, header)
        except WireError as error:
            return address, str(error)
        on_batch(header)
        segment.note_checked(address, needed, header.max_timestamp_ms)
        address += needed
    return address, None


def _is_old(header: BatchHeader, address: int) -> bool:
    """Whether the batch has the offsets that headrace stored until November 2026."""
    return header.base_offset == address and header.last_offset_delta == header.size_bytes - 1


def _read(segment: Segment, address: int, size_bytes: int) -> memoryview:
    return memoryview(os.pread(segment.file.fd, size_bytes, address - segment.base_address))
