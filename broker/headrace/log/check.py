"""Reads all of a partition's folder and says what is not as it should be. Changes nothing, needs no lock.

A broker may be running: its last segment grows and retention deletes the first ones meanwhile, which is no
finding. Bytes behind the last whole batch of the last segment are none either, unless the checkpoint says
that they were durable: the next start cuts them off.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log import checkpoint, gaps, identity, index
from headrace.log.errors import LogError
from headrace.log.examine import BadRange, Examiner
from headrace.log.files import OpenFile
from headrace.log.gaps import Gap
from headrace.log.names import (
    ASIDE_SUFFIX,
    CUT_SUFFIX,
    IDENTITY,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    SET_ASIDE_PLAN,
    address_of,
    file_name,
    is_ours,
    is_temporary,
)
from headrace.log.producers import ProducerStates
from headrace.log.starts import KnownStarts
from headrace.wire.batch import BatchHeader

MISSING: Final = "the file is missing"


class Finding(NamedTuple):
    """Damage: the file, the addresses [start, end), and the cause."""

    file: str
    start: int
    end: int
    cause: str


class CheckedSegment(NamedTuple):
    """A segment file: its addresses, and the ranges of it that are bad."""

    base: int
    end: int
    bad: list[BadRange]


class Report(NamedTuple):
    """What a partition's folder holds. `notes` are worth a look, but no damage; `durable`: the address below
    which everything was flushed, as far as is known; `is_certain`: False if the checkpoint is lost.
    """

    directory: Path
    segments: list[CheckedSegment]
    findings: list[Finding]
    notes: list[str]
    producers: ProducerStates
    gaps: tuple[Gap, ...]
    durable: int
    is_certain: bool
    batches: int
    records: int

    @property
    def size_bytes(self) -> int:
        return sum(each.end - each.base for each in self.segments)


def check_partition(directory: Path) -> Report:
    """Reads everything. Raises `OSError` if the folder cannot be read."""
    durable_before = durable_end(directory)  # before sizes are read: a running broker appends
    names = sorted(path.name for path in directory.iterdir())
    bases = [base for name in names if (base := address_of(name, SEGMENT_SUFFIX)) is not None]
    findings: list[Finding] = []
    notes: list[str] = []
    accepted, saved = _read_lists(directory, findings, has_segments=bool(bases))
    unproven = checkpoint.starts_in(directory)
    producers = ProducerStates()
    segments: list[CheckedSegment] = []
    batches = records = 0

    def on_batch(header: BatchHeader) -> None:
        producers.note(header, header.base_offset)

    for base in bases:
        path = directory / file_name(base, SEGMENT_SUFFIX)
        try:
            file = OpenFile(path, os.O_RDONLY)
            end = base + os.fstat(file.fd).st_size
        except FileNotFoundError:
            continue  # retention deleted it
        starts = _index_starts(directory, base, end, file, findings)
        if starts is not None and base == bases[-1] and not _is_followed(directory, base):
            cause = "the last segment, which followed this one, is missing"
            findings.append(Finding(path.name, end, end, cause))
        examiner = Examiner(
            lambda size, at, fd=file.fd: os.pread(fd, size, at), base, end, starts, on_batch, unproven
        )
        segments.append(CheckedSegment(base, end, examiner.run()))
        batches += examiner.good_batches
        records += examiner.good_records
    durable = durable_before
    _judge(segments, durable, accepted, saved is None, findings, notes)
    _other_files(directory, names, bases, findings, notes)
    return Report(
        directory,
        segments,
        findings,
        notes,
        producers,
        accepted,
        durable,
        saved is not None,
        batches,
        records,
    )


def _read_lists(
    directory: Path, findings: list[Finding], *, has_segments: bool
) -> tuple[tuple[Gap, ...], checkpoint.Checkpoint | None]:
    """Returns the accepted gaps and the checkpoint; looks at the file that says whose log it is, too."""
    accepted: tuple[Gap, ...] = ()
    saved = None
    try:
        accepted = gaps.load(directory)
    except LogError as error:
        findings.append(Finding("gaps.json", 0, 0, str(error)))
    try:
        saved = checkpoint.load(directory)
    except LogError as error:
        findings.append(Finding(checkpoint.FILE_NAME, 0, 0, str(error)))
    if saved is None and has_segments:
        findings.append(Finding(checkpoint.FILE_NAME, 0, 0, "it is missing or damaged"))
    try:
        identity.decode((directory / IDENTITY).read_bytes())
    except FileNotFoundError:
        pass  # a folder that was copied without it is read all the same; its broker would not open it
    except ValueError as error:
        findings.append(Finding(IDENTITY, 0, 0, str(error)))
    return accepted, saved


def _index_starts(
    directory: Path, base: int, end: int, file: OpenFile, findings: list[Finding]
) -> KnownStarts | None:
    """Returns the starts in the segment's index; notes what does not fit."""
    found = index.load(directory, base)
    if found is None:
        return None
    name = file_name(base, SEGMENT_SUFFIX)
    if found.end_address != end:
        findings.append(
            Finding(name, end, found.end_address, f"the file ends at {end}, its index at {found.end_address}")
        )
    elif found.first_crc != index.first_crc_of(file):
        findings.append(Finding(name, base, end, "its first batch is another one than when it was indexed"))
    return found.starts


def _is_followed(directory: Path, base: int) -> bool:
    """Whether there is a later segment by now."""
    return any((address_of(path.name, SEGMENT_SUFFIX) or 0) > base for path in directory.iterdir())


def durable_end(directory: Path) -> int:
    """Returns the address below which everything was flushed, as far as checkpoint, indexes and the note of
    `log.flushed` know; 0 if they are lost.
    """
    try:
        durable = checkpoint.durable_address(directory)
    except LogError:
        durable = 0
    for path in directory.iterdir():
        base = address_of(path.name, INDEX_SUFFIX)
        if base is not None and (found := index.load(directory, base)) is not None:
            durable = max(durable, found.end_address)
    return durable


def _judge(
    segments: list[CheckedSegment],
    durable: int,
    accepted: tuple[Gap, ...],
    is_lost: bool,
    findings: list[Finding],
    notes: list[str],
) -> None:
    """Tells damage from what the next start cuts off, and checks that the segments follow one another."""
    last_base = segments[-1].base if segments else -1
    for segment in segments:
        name = file_name(segment.base, SEGMENT_SUFFIX)
        for bad in segment.bad:
            is_tail = segment.base == last_base and bad.end == segment.end
            if is_tail and bad.start >= durable and not is_lost:
                notes.append(
                    f"{name}: {bad.end - bad.start} bytes from address {bad.start} on are no whole batch "
                    f"({bad.cause}); they were never flushed completely, or are being written"
                )
            else:
                findings.append(Finding(name, bad.start, bad.end, bad.cause))
    for segment, following in pairwise(segments):
        if not gaps.allows(accepted, segment.end, following.base):
            name = file_name(segment.base, SEGMENT_SUFFIX)
            cause = f"the file ends at {segment.end}, the next segment begins at {following.base}"
            findings.append(Finding(name, segment.end, following.base, cause))
    end = segments[-1].end if segments else 0
    if end < durable:
        cause = f"the log ends at {end}, but everything below {durable} was durable"
        findings.append(
            Finding(file_name(last_base, SEGMENT_SUFFIX) if segments else "", end, durable, cause)
        )
    notes.extend(f"accepted gap: addresses [{gap.start}, {gap.end}), {gap.cause}" for gap in accepted)


def _other_files(
    directory: Path, names: list[str], bases: list[int], findings: list[Finding], notes: list[str]
) -> None:
    for name in names:
        base = address_of(name, INDEX_SUFFIX)
        if base is not None and base not in bases:
            # Retention removes an index before its segment.
            if (found := index.load(directory, base)) is not None:
                lost = file_name(base, SEGMENT_SUFFIX)
                findings.append(Finding(lost, base, found.end_address, MISSING))
        elif name == SET_ASIDE_PLAN:
            findings.append(Finding(name, 0, 0, "a `set-aside` was interrupted: repeat it"))
        elif CUT_SUFFIX in name or ASIDE_SUFFIX in name:
            try:
                size_bytes = (directory / name).stat().st_size
            except FileNotFoundError:
                continue
            what = "cut off by a start" if CUT_SUFFIX in name else "moved aside by an administrator"
            notes.append(f"{name}: {size_bytes} bytes, {what}")
        elif not is_ours(name) and not is_temporary(name):
            notes.append(f"{name!a}: not a file of a log")
