"""Which bytes of a partition's folder are a whole log up to an address: for a backup, beside its broker.

Changes nothing and takes no claim. A broker may append, roll and delete old segments meanwhile: what it
appends lies behind the end, and the reader of the segments finds the deleted ones missing.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headrace.log import checkpoint, gaps, identity
from headrace.log.check import durable_end
from headrace.log.errors import LogError
from headrace.log.examine import Examiner
from headrace.log.files import OpenFile
from headrace.log.names import (
    CHECKPOINT,
    GAPS,
    IDENTITY,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    SET_ASIDE_PLAN,
    address_of,
    file_name,
)


class SegmentPart(NamedTuple):
    """The first `length_bytes` of a segment's file. `is_sealed`: it will never be longer."""

    base: int
    length_bytes: int
    is_sealed: bool

    @property
    def name(self) -> str:
        return file_name(self.base, SEGMENT_SUFFIX)

    @property
    def end(self) -> int:
        return self.base + self.length_bytes


class LogSnapshot(NamedTuple):
    """A whole log up to `end`. `small_files`: contents by name, as they were when the end was determined.

    `indexes`: names of the files that belong to sealed segments. `problem`: what is damaged; then the bytes
    are those that are there.
    """

    directory: Path
    topic_id: str
    segments: tuple[SegmentPart, ...]
    indexes: tuple[str, ...]
    small_files: dict[str, bytes]
    problem: str | None

    @property
    def start(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0


def topic_id_of(directory: Path) -> str:
    """Returns the id of the topic whose log this is. Raises `LogError`, `OSError`."""
    path = directory / IDENTITY
    return _topic_id(directory, {IDENTITY: path.read_bytes()} if path.exists() else {})


def take(directory: Path, flushed: int | None) -> LogSnapshot:
    """Returns what a backup of this folder must hold. `flushed`: the end that the broker told; None if it
    does not have this log open: then the files decide, as at its next start.

    Raises `LogError` if the folder is no log, `OSError`.
    """
    small: dict[str, bytes] = {}
    for name in (IDENTITY, CHECKPOINT, GAPS, SET_ASIDE_PLAN):
        path = directory / name
        if path.exists():
            small[name] = path.read_bytes()
    topic_id = _topic_id(directory, small)
    if SET_ASIDE_PLAN in small:
        raise LogError(f"{directory}: a `set-aside` was interrupted there: repeat it, then the backup")
    saved = checkpoint.decode(small.get(CHECKPOINT, b""), directory / CHECKPOINT)
    problem = None if saved is not None else f"{directory / CHECKPOINT}: it is missing or damaged"
    names = [path.name for path in directory.iterdir()]
    bases = sorted(base for name in names if (base := address_of(name, SEGMENT_SUFFIX)) is not None)
    if flushed is None:
        end, damage = _end_by_files(directory, bases)
        problem = problem or damage
    else:
        # The checkpoint was read later than the broker told its end, perhaps; it says what was flushed, too.
        end = flushed if saved is None else max(flushed, saved.recovery_point)
    segments, found = _segments(directory, bases, end)
    sealed = {file_name(each.base, INDEX_SUFFIX) for each in segments[:-1]}
    indexes = tuple(sorted(sealed & set(names)))
    return LogSnapshot(directory, topic_id, segments, indexes, small, problem or found)


def _topic_id(directory: Path, small: dict[str, bytes]) -> str:
    try:
        return identity.decode(small[IDENTITY]).topic_id
    except (KeyError, ValueError):
        raise LogError(
            f"{directory / IDENTITY} does not hold a topic's id: nobody knows whose log this is"
        ) from None


def _segments(directory: Path, bases: list[int], end: int) -> tuple[tuple[SegmentPart, ...], str | None]:
    """Returns the parts below `end`, and what is missing of them."""
    accepted = gaps.load(directory)
    parts: list[SegmentPart] = []
    for base in bases:
        if base > end:
            break
        try:
            size_bytes = (directory / file_name(base, SEGMENT_SUFFIX)).stat().st_size
        except FileNotFoundError:
            parts.clear()  # retention, which begins with the oldest
            continue
        parts.append(SegmentPart(base, min(size_bytes, end - base), is_sealed=base != bases[-1]))
    for part, following in pairwise(parts):
        if not gaps.allows(accepted, part.end, following.base):
            return tuple(
                parts
            ), f"{directory / part.name}: it ends at {part.end}, the next begins at {following.base}"
    if parts and parts[-1].end < end and not gaps.allows(accepted, parts[-1].end, end):
        return tuple(parts), f"{directory}: the log ends at {parts[-1].end}, but {end} was flushed"
    return tuple(parts), None


def _end_by_files(directory: Path, bases: list[int]) -> tuple[int, str | None]:
    """Returns the end of the last whole batch, and what of the bytes that were durable is damaged."""
    durable = durable_end(directory)
    end = bases[0] if bases else 0
    for base in bases:
        file = OpenFile(directory / file_name(base, SEGMENT_SUFFIX), os.O_RDONLY)
        end = base + os.fstat(file.fd).st_size
        if end <= durable:
            continue
        bad = Examiner(lambda size, at, fd=file.fd: os.pread(fd, size, at), base, end).run()
        if not bad:
            continue
        if bad[0].start >= durable:
            return bad[0].start, None
        return end, f"{file.path}: addresses [{bad[0].start}, {bad[0].end}): {bad[0].cause}"
    return max(end, durable), None
