"""The checkpoint file of a partition: what was durable, and what makes opening the log fast.

Written when the log is created, before its first segment, and from then on replaced atomically: a crash never
loses it. So a log whose checkpoint is missing or damaged was tampered with, and nothing of it may be cut off.
The checkpoint before it stays as a copy. It says less, but nothing wrong.

It also holds sparse starts of batches in segments that have no index yet. They lead behind damage, and only
to a whole batch with that address and a right checksum (`log.examine`, `log.index`).

Format: one line with the CRC-32C of the rest in hex, then JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import struct
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from headrace.log import flushed
from headrace.log.epochs import EpochStart
from headrace.log.errors import OldLogFormatError
from headrace.log.files import replace_file
from headrace.log.flushed import LINEAGE_BITS, NO_LINEAGE
from headrace.log.names import CHECKPOINT, PREVIOUS_CHECKPOINT, TEMPORARY_SUFFIX
from headrace.log.producers import ProducerEntry, ProducerStates, StoredBatch, pack, unpack

FILE_NAME: Final = CHECKPOINT
VERSION: Final = 2  # 1, until November 2026: batches had baseOffset = address
SIZE_MAX_BYTES: Final = 64 * 1024 * 1024
# A start after a crash checks what lies above the checkpoint: about a second for 4 GB.
CHECKPOINT_EVERY_BYTES: Final = 256 * 1024 * 1024
STARTS_MAX: Final = 8192  # the newest ones: 8 GiB that have no index


class BegunSegment(NamedTuple):
    """When the active segment was begun, by the wall clock: its file tells its last write alone."""

    base_address: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`recovery_point`: all bytes below it are flushed and checked. `producers`: their state at that address,
    packed where it was; all are packed in a file that was read.
    `max_timestamps_ms`: of sealed segments, by base address. `saved_ms`: when it was taken, by the monotonic
    clock of the process that also gave the producers their times; None in a file that lacks it. `epochs`:
    where each leader epoch begins, ascending; None in a file that lacks them. `starts`: addresses of batches
    below the recovery point, ascending. `lineage`: another one after each cut of the log (`log.flushed`).
    `begun`: None in a file that lacks it.
    """

    recovery_point: int
    producers: tuple[tuple[int, ProducerEntry | bytes], ...] = ()
    max_timestamps_ms: dict[int, int] = field(default_factory=dict)
    saved_ms: int | None = None
    epochs: tuple[EpochStart, ...] | None = None
    starts: tuple[int, ...] = ()
    lineage: int = NO_LINEAGE
    begun: BegunSegment | None = None


def encode(checkpoint: Checkpoint) -> bytes:
    producers = [
        [producer_id, entry.epoch, entry.last_append_ms, [list(batch) for batch in entry.batches]]
        for producer_id, saved in checkpoint.producers
        for entry in [unpack(saved) if isinstance(saved, bytes) else saved]
    ]
    values: dict[str, Any] = {
        "version": VERSION,
        "recovery_point": checkpoint.recovery_point,
        "max_timestamps_ms": sorted(checkpoint.max_timestamps_ms.items()),
        "producers": producers,
    }
    if checkpoint.saved_ms is not None:
        values["saved_ms"] = checkpoint.saved_ms
    if checkpoint.epochs is not None:
        values["epochs"] = checkpoint.epochs
    if checkpoint.starts:
        values["starts"] = checkpoint.starts
    if checkpoint.lineage != NO_LINEAGE:
        values["lineage"] = checkpoint.lineage
    if checkpoint.begun is not None:
        values["begun"] = checkpoint.begun
    body = json.dumps(values, separators=(",", ":")).encode()
    return b"%08x\n" % crc32c(body) + body


def decode(content: bytes, path: Path = Path(FILE_NAME)) -> Checkpoint | None:
    """Returns `None` if `content` is not a whole checkpoint of this version. `path`: for the error message.

    Raises `OldLogFormatError`.
    """
    head, newline, body = content.partition(b"\n")
    if not newline or len(head) != 8:
        return None
    try:
        if int(head, 16) != crc32c(body):
            return None
        values: dict[str, Any] = json.loads(body)
        if values["version"] == 1:
            raise OldLogFormatError(path, "format 1")
        if values["version"] != VERSION:
            return None
        producers = tuple(
            (producer_id, pack(ProducerEntry(epoch, tuple(StoredBatch(*each) for each in batches), at_ms)))
            for producer_id, epoch, at_ms, batches in values["producers"]
        )
        max_timestamps_ms = dict(values["max_timestamps_ms"])
        saved = values.get("epochs")
        epochs = None if saved is None else tuple(EpochStart(*start) for start in saved)
        point, saved_ms = values["recovery_point"], values.get("saved_ms")
        if type(point) is not int or point < 0 or type(saved_ms) not in (int, type(None)):
            return None
        starts = _starts(values.get("starts"), point)
        lineage = values.get("lineage")
        if type(lineage) is not int or not 0 < lineage < 1 << LINEAGE_BITS:
            lineage = NO_LINEAGE
        begun = _begun(values.get("begun"))
        return Checkpoint(point, producers, max_timestamps_ms, saved_ms, epochs, starts, lineage, begun)
    except (ValueError, LookupError, TypeError, struct.error, OverflowError, RecursionError):
        return None


def _begun(values: object) -> BegunSegment | None:
    """Returns when the active segment was begun; None if this version cannot have written it."""
    if not isinstance(values, list) or [type(each) for each in values] != [int, int]:
        return None
    return BegunSegment(*values)


def _starts(values: object, recovery_point: int) -> tuple[int, ...]:
    """Returns the starts; none of them if this version cannot have written them."""
    if not isinstance(values, list) or len(values) > STARTS_MAX:
        return ()
    if any(type(each) is not int for each in values):
        return ()
    edges = [-1, *values, recovery_point]
    return tuple(values) if all(one < next_one for one, next_one in pairwise(edges)) else ()


def load(directory: Path, name: str = FILE_NAME) -> Checkpoint | None:
    """Returns `None` if the file is missing or damaged. Raises `OldLogFormatError`, `OSError`."""
    path = directory / name
    try:
        if path.stat().st_size > SIZE_MAX_BYTES:
            return None
        return decode(path.read_bytes(), path)
    except FileNotFoundError:
        return None


def producers_in(known: Checkpoint, start_address: int) -> ProducerStates:
    """Returns what a checkpoint knows of producers. That is nothing if batches behind it were deleted: what
    it says of a producer may be old, and would refuse all that this one sends, for good.
    """
    if known.recovery_point < start_address:
        return ProducerStates()
    return ProducerStates.restored(known.producers, known.saved_ms)


def load_previous(directory: Path) -> Checkpoint | None:
    """Returns the checkpoint before the last one, if there is a whole one."""
    return load(directory, PREVIOUS_CHECKPOINT)


def durable_address(directory: Path) -> int:
    """Returns the address below which everything was flushed, as far as the checkpoint (its copy if it is
    lost) and the note of `log.flushed` know; 0 if they are lost. Raises `OldLogFormatError`, `OSError`.
    """
    known = load(directory) or load_previous(directory)
    return 0 if known is None else max(known.recovery_point, flushed.load(directory, known.lineage))


def starts_in(directory: Path) -> tuple[int, ...]:
    """Returns the starts in the checkpoint and its copy, ascending; none that cannot be read."""
    found: set[int] = set()
    for name in (FILE_NAME, PREVIOUS_CHECKPOINT):
        with contextlib.suppress(OSError, OldLogFormatError):
            saved = load(directory, name)
            found.update(saved.starts if saved is not None else ())
    return tuple(sorted(found))


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Replaces the checkpoint; the one before stays as the copy. Raises `OSError`."""
    path, previous = directory / FILE_NAME, directory / PREVIOUS_CHECKPOINT
    linked = directory / (PREVIOUS_CHECKPOINT + TEMPORARY_SUFFIX)
    try:
        linked.unlink(missing_ok=True)
        linked.hardlink_to(path)  # no moment without a checkpoint
        linked.replace(previous)
        linked.unlink(missing_ok=True)  # it stays if both were links to the same file
    except OSError as error:
        # A new log has none yet, and some file systems have no links: then there is no newer copy.
        if not isinstance(error, FileNotFoundError) and error.errno not in (errno.EPERM, errno.EOPNOTSUPP):
            raise
    replace_file(path, encode(checkpoint))


def save_only(directory: Path, checkpoint: Checkpoint) -> None:
    """Replaces the checkpoint and drops the copy, since the log no longer has what that says. Raises
    `OSError`.
    """
    (directory / PREVIOUS_CHECKPOINT).unlink(missing_ok=True)
    replace_file(directory / FILE_NAME, encode(checkpoint))


def save_cut(directory: Path, start_address: int, address: int, lineage: int) -> Checkpoint:
    """Saves what is known of a log that will be cut at `address`, before that is done; returns it: the newest
    checkpoint that says nothing of what lies behind, or one that knows nothing. Raises `OSError`.
    """
    found = [load(directory), load_previous(directory)]
    sound = [saved for saved in found if saved is not None and saved.recovery_point <= address]
    kept = max(sound, key=lambda saved: saved.recovery_point, default=Checkpoint(start_address))
    kept = replace(kept, lineage=lineage)
    save_only(directory, kept)
    return kept
