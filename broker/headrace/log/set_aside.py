"""Moves what is damaged in a partition's log aside, so that the partition can serve again, with a named gap.

Nothing is deleted: a damaged segment file gets the suffix `.aside` as a whole, and what is good of it is
copied into new segments first. The plan is written down before the first rename. If it is interrupted, the
log does not open, and the next `set-aside` finishes it.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from headrace.log import checkpoint, flushed, gaps
from headrace.log.check import MISSING, CheckedSegment, Report, check_partition
from headrace.log.checkpoint import Checkpoint
from headrace.log.cutting import copy_range, unused
from headrace.log.errors import LogDamagedError, LogError
from headrace.log.files import OpenFile, replace_file, sync_directory
from headrace.log.gaps import Gap
from headrace.log.names import (
    ASIDE_SUFFIX,
    GAPS,
    IDENTITY,
    NEW_SUFFIX,
    SEGMENT_SUFFIX,
    SET_ASIDE_PLAN,
    file_name,
)
from headrace.process.clock import now_ms


class SetAsideError(LogError):
    """Caused by the caller: nothing was changed. The message says what is needed."""


class Piece(NamedTuple):
    """The good addresses [start, end) of the segment `base`, which become a segment of their own."""

    base: int
    start: int
    end: int


class Plan(NamedTuple):
    """What is to be done: damaged segments, by base address, the good pieces of them, and the gaps left.

    `end`: where the log goes on.
    """

    aside: list[int]
    pieces: list[Piece]
    gaps: list[Gap]
    end: int

    @property
    def is_empty(self) -> bool:
        return not self.aside and not self.gaps


def plan(report: Report, resume_at: int | None = None) -> Plan:
    """Returns what makes this log whole again. `resume_at`: where it goes on, if its end is not known.

    Raises `SetAsideError` if nobody knows where to go on.
    """
    aside = [each.base for each in report.segments if each.bad]
    pieces = [
        Piece(each.base, start, end) for each in report.segments if each.bad for start, end in _good(each)
    ]
    kept = [(each.base, each.end) for each in report.segments if not each.bad]
    kept = sorted(kept + [(piece.start, piece.end) for piece in pieces if piece.end > piece.start])
    known_end = max([report.durable, *(end for _, end in kept), *(each.end for each in report.segments)])
    end = _end(report, known_end, resume_at)
    lost = [found.start for found in report.findings if found.cause == MISSING]
    first = min([*lost, *(each.base for each in report.segments)], default=end)
    cause = "; ".join(dict.fromkeys(found.cause for found in report.findings))[:500] or "damaged"
    holes = [(first, kept[0][0] if kept else end)]
    holes += [(before[1], after[0]) for before, after in pairwise(kept)]
    holes += [(kept[-1][1], end)] if kept else []
    for start, hole_end in holes:
        if hole_end < start:
            raise SetAsideError(
                f"{report.directory}: two segments hold the addresses [{hole_end}, {start}): move the one "
                "that does not belong here to another folder"
            )
    made = [
        Gap(start, hole_end, cause, now_ms())
        for start, hole_end in holes
        if hole_end > start and not gaps.allows(report.gaps, start, hole_end)
    ]
    return Plan(aside, pieces, made, end)


def _good(segment: CheckedSegment) -> list[tuple[int, int]]:
    """The good ranges of a segment."""
    edges = [segment.base, *(edge for bad in segment.bad for edge in (bad.start, bad.end)), segment.end]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _end(report: Report, known_end: int, resume_at: int | None) -> int:
    """Where the log goes on: never below what was durable, so that no address is given away twice."""
    lost_last = any("which followed" in found.cause or found.file == "" for found in report.findings)
    if resume_at is not None:
        if resume_at < known_end:
            raise SetAsideError(
                f"{report.directory}: --resume-at {resume_at} is below {known_end}: addresses would be given "
                "away twice"
            )
        return resume_at
    if not report.is_certain and (lost_last or not report.segments):
        raise SetAsideError(
            f"{report.directory}: the last segment and the checkpoint are lost, so nobody knows where the "
            "log ended; give --resume-at ADDRESS, beyond the ends that mirrors and consumers saw, at least "
            f"{known_end}"
        )
    return known_end


def carry_out(report: Report, planned: Plan) -> list[str]:
    """Does it; returns the names of the files that were moved aside. The caller holds the directory's lock.

    Raises `OSError`; then repeat it.
    """
    directory = report.directory
    renames: list[tuple[str, str]] = []
    for base in planned.aside:
        name = file_name(base, SEGMENT_SUFFIX)
        renames.append((name, unused(directory, base, ASIDE_SUFFIX).name))
        file = OpenFile(directory / name, os.O_RDONLY)
        for piece in planned.pieces:
            if piece.base == base:
                made = directory / (file_name(piece.start, SEGMENT_SUFFIX) + NEW_SUFFIX)
                copy_range(file, piece.start - base, piece.end - base, made)
    for piece in planned.pieces:
        target = file_name(piece.start, SEGMENT_SUFFIX)
        renames.append((target + NEW_SUFFIX, target))
    bases = {each.base for each in report.segments if not each.bad} | {each.start for each in planned.pieces}
    last = file_name(planned.end, SEGMENT_SUFFIX)
    if planned.end not in bases and planned.gaps and planned.gaps[-1].end == planned.end:
        replace_file(directory / (last + NEW_SUFFIX), b"")
        renames.append((last + NEW_SUFFIX, last))
    sync_directory(directory)
    values = {
        "renames": renames,
        "gaps": [[gap.start, gap.end, gap.cause, gap.accepted_ms] for gap in planned.gaps],
        "end": planned.end,
    }
    replace_file(directory / SET_ASIDE_PLAN, json.dumps(values).encode())
    return finish(directory)


def finish(directory: Path) -> list[str]:
    """Does what a plan says, from the beginning or from where it was interrupted. Raises `OSError`."""
    path = directory / SET_ASIDE_PLAN
    values: dict[str, Any] = json.loads(path.read_bytes())
    for source, target in values["renames"]:
        if (directory / source).exists() and not (directory / target).exists():
            (directory / source).rename(directory / target)
    for each in directory.glob("*.index"):
        each.unlink()  # made again from the segments when they are needed
    sync_directory(directory)
    try:
        known = gaps.load(directory)
    except LogDamagedError:  # the holes that it named are among the new gaps
        known = ()
        (directory / GAPS).rename(unused(directory, 0, ASIDE_SUFFIX))
    gaps.save(directory, [*known, *(Gap(*each) for each in values["gaps"])])
    # All that is left was read and is whole: the producers' state follows from it.
    producers = check_partition(directory).producers
    starts = tuple(each for each in checkpoint.starts_in(directory) if each < values["end"])
    starts, lineage = starts[-checkpoint.STARTS_MAX :], flushed.new_lineage()
    saved = Checkpoint(values["end"], tuple(producers), starts=starts, lineage=lineage)
    checkpoint.save_only(directory, saved)
    path.unlink()
    sync_directory(directory)
    return [target for _, target in values["renames"] if ASIDE_SUFFIX in target]


def set_aside(
    directory: Path, *, resume_at: int | None = None, dry_run: bool = False
) -> tuple[Plan, list[str]]:
    """Makes one partition's log whole again; returns the plan and the files moved aside.

    Raises `SetAsideError`, `OSError`. The caller holds the directory's lock.
    """
    if (directory / SET_ASIDE_PLAN).exists() and not dry_run:
        return Plan([], [], [], 0), finish(directory)
    report = check_partition(directory)
    if any(found.file == IDENTITY for found in report.findings):
        raise SetAsideError(
            f"{directory / IDENTITY} does not say whose log this is: write it anew first, as its broker's "
            "log says, or restore it from a backup; then repeat"
        )
    planned = plan(report, resume_at)
    if not report.findings:
        return Plan([], [], [], planned.end), []
    if dry_run:
        return planned, []
    return planned, carry_out(report, planned)


def partition_folders(path: Path) -> list[Path]:
    """Returns the partitions' folders below a data directory, or the folder itself if it is one. Raises
    `SetAsideError` if there are none.
    """
    if any(path.glob(f"*{SEGMENT_SUFFIX}")) or any(path.glob("*.index")) or (path / "checkpoint").exists():
        return [path]
    found = sorted(
        each.parent for each in path.glob("*/partition.json") if not each.parent.name.endswith(".deleted")
    )
    found += sorted(
        each
        for each in path.glob("*-*")
        if each.is_dir() and each not in found and any(each.glob(f"*{SEGMENT_SUFFIX}"))
    )
    if not found:
        raise SetAsideError(
            f"{path} is neither a data directory nor a partition's folder: it holds no segment"
        )
    return found
