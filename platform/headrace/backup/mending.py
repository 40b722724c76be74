"""Mends one partition's log with the bytes of a backup, while its broker serves the others.

What is whole in the partition's folder stays, and what is damaged or missing there is taken from the backup,
address by address: so nothing that was written after the backup is given up. The mended log is built beside,
checked as a whole, and exchanged with the damaged folder in one step; the damaged one is kept.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from headrace.backup import manifest
from headrace.backup.errors import DamagedBackupError, RefusedError
from headrace.backup.manifest import FileEntry, Piece
from headrace.backup.pace import Pace, check_room
from headrace.backup.segments import PIECE_BYTES, copy_segment, patch
from headrace.backup.verifying import check_all, open_inside
from headrace.log import checkpoint, gaps, scan, snapshot
from headrace.log.check import Finding, Report, check_partition
from headrace.log.checkpoint import SIZE_MAX_BYTES, decode
from headrace.log.claims import Claims
from headrace.log.directory import aside_name
from headrace.log.epochs import NO_EPOCH, LeaderEpochs
from headrace.log.errors import LogError
from headrace.log.files import OpenFile, replace_file, sync_directory
from headrace.log.names import (
    CHECKPOINT,
    GAPS,
    IDENTITY,
    INDEX_SUFFIX,
    PREVIOUS_CHECKPOINT,
    SEGMENT_SUFFIX,
    address_of,
    file_name,
)
from headrace.wire.batch import BatchHeader

RESTORING: Final = ".restoring"
DAMAGED: Final = ".damaged"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Mended(NamedTuple):
    """What was done: the ranges of addresses that the backup gave, the log's end, where the old files are."""

    folder: Path
    ranges: list[tuple[int, int]]
    end: int
    kept_as: Path | None


class _Source:
    """The bytes of one partition in a backup, by address."""

    def __init__(self, folder: Path, prefix: str, files: Sequence[FileEntry]) -> None:
        self.folder = folder
        self.prefix = prefix
        names = {entry.path.removeprefix(prefix): entry for entry in files}
        found = {address_of(name, SEGMENT_SUFFIX): entry for name, entry in names.items()}
        self.names = frozenset(names)
        self.segments = sorted(
            (base, base + entry.size_bytes) for base, entry in found.items() if base is not None
        )

    @property
    def start(self) -> int:
        return self.segments[0][0] if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1][1] if self.segments else 0

    def segment_at(self, address: int) -> tuple[int, int] | None:
        return next(((base, end) for base, end in self.segments if base <= address < end), None)

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Yields the bytes of [start, end), which lie in one segment."""
        found = self.segment_at(start)
        assert found is not None
        fd = open_inside(self.folder, self.prefix + file_name(found[0], SEGMENT_SUFFIX))
        try:
            while start < end:
                piece = os.pread(fd, min(PIECE_BYTES, end - start), start - found[0])
                if not piece:
                    raise DamagedBackupError(
                        f"{self.folder / self.prefix}: its segment {found[0]} ends at {start}"
                    )
                start += len(piece)
                yield piece
        finally:
            os.close(fd)

    def small(self, name: str) -> bytes | None:
        if name not in self.names:
            return None
        fd = open_inside(self.folder, self.prefix + name)
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size > SIZE_MAX_BYTES:
                raise DamagedBackupError(
                    f"{self.folder / self.prefix}{name} is larger than any that a log has"
                )
            return file.read(SIZE_MAX_BYTES)


def mend(
    backup: Path, piece: Piece, partition: str, data_dir: Path, *, may_be_shorter: bool = False
) -> Mended:
    """Mends `data_dir/partition` with the backup's bytes. Raises `BackupError`, `LogError`, `OSError`."""
    prefix = f"{piece.name}/{partition}/"
    made = manifest.load(backup)
    files = [entry for entry in made.files if entry.path.startswith(prefix)]
    check_all(backup, Pace(), files)
    source = _Source(backup, prefix, files)
    target = data_dir / partition
    with _claimed(data_dir, partition):
        _check_identity(target, str(piece.facts["partitions"][partition]["topic_id"]))
        report = check_partition(target) if target.is_dir() else None
        holes = _holes(report, source)
        if report is not None and not report.findings:
            raise RefusedError(f"{target} is whole: nothing was changed")
        _check_covered(target, report, holes, source, may_be_shorter=may_be_shorter)
        check_room(data_dir, sum(entry.size_bytes for entry in files), f"the restore of {partition}")
        new = data_dir / aside_name(partition, RESTORING)
        end = _made(target, new, report, holes, source)
        kept = _exchange(new, target)
    return Mended(target, holes, end, kept)


def _made(
    target: Path, new: Path, report: Report | None, holes: Sequence[tuple[int, int]], source: _Source
) -> int:
    """Makes the mended log in `new`, durable; returns its end. If that fails nothing is left there, where the
    disk may be full. Raises `RefusedError`, `LogError`, `OSError`.
    """
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        _build(target, new, report, holes, source)
        left = check_partition(new).findings
        if left:
            raise RefusedError(
                f"{target} cannot be mended with {source.folder}: {_named(left)}. Nothing was changed"
            )
        _check_epochs(target, new, holes, source)
        _settle(new, new.parent.stat())
        return snapshot.take(new, None).end
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _check_epochs(target: Path, new: Path, holes: Iterable[tuple[int, int]], source: _Source) -> None:
    """Raises `RefusedError` if the log had batches of another leader where the backup's were put.

    An address and its leader epoch name one batch. A backup of a broker that was down, or behind, may hold a
    tail that was never acknowledged; its log was cut there since, and others' batches have these addresses.
    """
    saved = checkpoint.load(target) or checkpoint.load_previous(target)
    if saved is None or not saved.epochs:
        return  # nobody knows
    epochs = LeaderEpochs(saved.epochs)
    for start, end in holes:
        for header in _headers_in(new, start, min(end, saved.recovery_point)):
            had, has = epochs.at(header.address), header.partition_leader_epoch
            if had not in (NO_EPOCH, has):
                raise RefusedError(
                    f"{target}: at address {header.address} this log had a batch of leader epoch {had}, and "
                    f"{source.folder} has one of epoch {has}: one that was cut off. Take a later backup, or "
                    "a mirror's copy; nothing was changed"
                )


def _headers_in(folder: Path, start: int, end: int) -> Iterator[BatchHeader]:
    """Yields the headers of the batches that begin in [start, end). Raises `LogError`, `OSError`."""
    for path in sorted(folder.iterdir()):
        base = address_of(path.name, SEGMENT_SUFFIX)
        if base is None or not base < end or (known := base + path.stat().st_size) <= start:
            continue
        for header in scan.headers(OpenFile(path, os.O_RDONLY), base, max(start, base), known):
            if header.address >= end:
                break
            yield header


@contextmanager
def _claimed(data_dir: Path, partition: str) -> Iterator[None]:
    data_dir.mkdir(parents=True, exist_ok=True)
    claims = Claims(data_dir)
    try:
        if not claims.take(partition):
            raise RefusedError(
                f"{data_dir / partition}: the log is open in a running broker, so it is not "
                "offline there, or "
                "another command is at work there; nothing was changed"
            )
        yield
    finally:
        claims.close()


def _check_identity(target: Path, topic_id: str) -> None:
    if not (target / IDENTITY).exists():
        return
    try:
        present = snapshot.topic_id_of(target)
    except LogError:
        return  # damaged: it is replaced
    if present != topic_id:
        raise RefusedError(
            f"{target} is of topic {present}, and the backup's of {topic_id}: the topic was "
            "deleted and created "
            "again since; nothing was changed"
        )


def _holes(report: Report | None, source: _Source) -> list[tuple[int, int]]:
    """Returns the ranges that the partition lacks or has damaged, in order, joined."""
    if report is None or not report.segments:
        return [(source.start, source.end)]
    ranges = sorted((each.start, each.end) for each in report.findings if each.end > each.start)
    if any("which followed" in each.cause for each in report.findings):
        ranges.append((report.segments[-1].end, max(source.end, report.segments[-1].end)))
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif end > start:
            joined.append((start, end))
    return joined


def _check_covered(
    target: Path,
    report: Report | None,
    holes: Iterable[tuple[int, int]],
    source: _Source,
    *,
    may_be_shorter: bool,
) -> None:
    missing = [(start, end) for start, end in holes if not _covers(source, start, end)]
    if missing:
        named = ", ".join(f"[{start}, {end})" for start, end in missing)
        raise RefusedError(
            f"{target}: the addresses {named} are not in this backup, which has "
            f"[{source.start}, {source.end}): take "
            "a later backup, or a mirror's copy; or give them up with `headrace log "
            "set-aside`. Nothing was changed"
        )
    is_end_unknown = report is None or not report.segments or not report.is_certain
    is_end_lost = report is not None and any("which followed" in each.cause for each in report.findings)
    if (is_end_unknown or is_end_lost) and not may_be_shorter:
        raise RefusedError(
            f"{target}: nobody knows where this log ended; with this backup it goes on at "
            f"{source.end}. Addresses "
            "behind that are given to other records: mirrors that copied more halt, and "
            "groups that read further "
            "begin again as their reset policy says. Add --shorter if that is what you want; "
            "nothing was changed"
        )


def _covers(source: _Source, start: int, end: int) -> bool:
    while start < end:
        found = source.segment_at(start)
        if found is None:
            return False
        start = found[1]
    return True


def _build(
    target: Path, new: Path, report: Report | None, holes: Sequence[tuple[int, int]], source: _Source
) -> None:
    touched: set[int] = set()
    ends: dict[int, int] = {}
    for segment in report.segments if report is not None else ():
        name = file_name(segment.base, SEGMENT_SUFFIX)
        ends[segment.end] = segment.base
        if any(start < segment.end and end > segment.base for start, end in holes):
            copy_segment(target / name, new / name, segment.base, segment.end, holes)
            touched.add(segment.base)
        else:
            os.link(target / name, new / name)
    for start, end in holes:
        at = start
        while at < end:
            found = source.segment_at(at)
            assert found is not None
            inside = _segment_with(report, at)
            if inside is not None:
                base, stop = inside[0], min(end, found[1], inside[1])
            else:
                base, stop = (at if at not in ends or at == found[0] else ends[at]), min(end, found[1])
                ends[stop] = base
                _own(target, new, base)
            touched.add(base)
            patch(new / file_name(base, SEGMENT_SUFFIX), at - base, source.read(at, stop))
            at = stop
    _small_files(target, new, source, touched)


def _segment_with(report: Report | None, address: int) -> tuple[int, int] | None:
    for segment in report.segments if report is not None else ():
        if segment.base <= address < segment.end:
            return segment.base, segment.end
    return None


def _settle(new: Path, owner: os.stat_result) -> None:
    """Gives the files to the owner of the data directory, and makes them durable."""
    for path in [*new.iterdir(), new]:
        if os.geteuid() == 0:
            os.chown(path, owner.st_uid, owner.st_gid)
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def _own(target: Path, new: Path, base: int) -> None:
    """Replaces a link to a file of the partition by a copy of it, before it is written to."""
    name = file_name(base, SEGMENT_SUFFIX)
    if (new / name).exists() and (new / name).stat().st_nlink > 1:
        (new / name).unlink()
        shutil.copyfile(target / name, new / name)


def _small_files(target: Path, new: Path, source: _Source, touched: set[int]) -> None:
    """Takes the small files of the partition where they are whole, else those of the backup."""
    for name in (IDENTITY, CHECKPOINT, PREVIOUS_CHECKPOINT, GAPS):
        path = target / name
        content = path.read_bytes() if path.is_file() else None
        if content is None or not _is_whole(target, name, content):
            content = source.small(name)
        if content is not None:
            replace_file(new / name, content)
    for path in target.glob(f"*{INDEX_SUFFIX}") if target.is_dir() else ():
        base = address_of(path.name, INDEX_SUFFIX)
        # Those of changed segments are made again.
        if base is not None and base not in touched and (new / file_name(base, SEGMENT_SUFFIX)).exists():
            os.link(path, new / path.name)


def _is_whole(target: Path, name: str, content: bytes) -> bool:
    try:
        if name == IDENTITY:
            snapshot.topic_id_of(target)
        elif name == GAPS:
            gaps.load(target)
        else:
            return decode(content, target / name) is not None
    except LogError:
        return False
    return True


def _exchange(new: Path, target: Path) -> Path | None:
    """Puts `new` in the place of `target`, which is kept under another name; returns that."""
    if not target.exists():
        new.rename(target)
        sync_directory(target.parent)
        return None
    number = 0
    while (kept := target.with_name(aside_name(target.name, f".{number}{DAMAGED}"))).exists():
        number += 1
    old, fresh = os.fsencode(target), os.fsencode(new)
    if _LIBC.renameat2(_AT_FDCWD, fresh, _AT_FDCWD, old, _RENAME_EXCHANGE) == 0:
        new.rename(kept)
    elif (problem := ctypes.get_errno()) in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        target.rename(kept)  # this disk cannot exchange two names; the claim keeps the broker away meanwhile
        new.rename(target)
    else:
        raise OSError(problem, os.strerror(problem), str(target))
    sync_directory(target.parent)
    return kept


def _named(findings: Sequence[Finding]) -> str:
    return "; ".join(
        f"{each.file}: addresses [{each.start}, {each.end}): {each.cause}" for each in findings[:3]
    )
