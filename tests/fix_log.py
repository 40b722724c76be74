"""Logs for tests: batches that say who they are, whole logs on disk, and what a folder holds.

`build(folder, …)` leaves a log as a crash or a clean stop leaves it, and says what of it is durable.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log import checkpoint
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.wire.batch import hop, place, read_header
from headrace.wire.records import Record, encode_batch

SMALL = LogConfig(segment_bytes=600)


def batch(number: int, size: int, producer: int = 9) -> bytes:
    record = Record(0, 1_000 + number, None, bytes([number % 256]) * size)
    return encode_batch([record], producer_id=producer, producer_epoch=0, base_sequence=number)


def led(epoch: int, number: int, address: int) -> bytes:
    """A batch as the leader of an epoch has stored it."""
    made = bytearray(batch(number, 100))
    place(made, 0, read_header(made), address, epoch)
    return bytes(made)


LED_SIZE_BYTES: Final = len(led(1, 0, 0))


def written(folder: Path, *batches: tuple[int, int]) -> PartitionLog:
    """A log of batches with these epochs and numbers."""
    log = PartitionLog(folder)
    append(log, *batches)
    return log


def append(log: PartitionLog, *batches: tuple[int, int]) -> None:
    for epoch, number in batches:
        log.append_verbatim(led(epoch, number, log.end_address))
    log.flush()


def content(log: PartitionLog) -> bytes:
    """All that a reader gets, read as clients read: again from where the last answer ended."""
    parts, address = [], log.start_address
    while (address := log.position(address)) < log.flushed_address:
        for piece in log.slices(address, 1 << 30):
            parts.append(piece.read())
            address += piece.length_bytes
    return b"".join(parts)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.log") if re.fullmatch(r"[0-9]{20}", path.stem, re.A))


class Built(NamedTuple):
    """A log's bytes, the starts of its batches, and how much of it was durable for certain."""

    data: bytes
    starts: list[int]
    durable: int


def build(
    folder: Path,
    sizes: list[int],
    *,
    checkpoint_after: int = 0,
    unflushed: int = 0,
    clean: bool = False,
    config: LogConfig = SMALL,
    producer: int = 9,
) -> Built:
    """A log of batches with so many bytes of content. The last `unflushed` are only written, a checkpoint is
    saved once `checkpoint_after` of them are durable. `clean`: it is closed, else it is left.
    """
    log = PartitionLog(folder, config)
    flushed = 0
    for number, size in enumerate(sizes):
        log.append(batch(number, size, producer))
        if number < len(sizes) - unflushed:
            if number + 1 == checkpoint_after:
                log.request_checkpoint()
            log.flush()
            flushed = log.end_address
    if clean:
        log.close()
        flushed = log.end_address
    else:
        log.abandon()
    data = b"".join(path.read_bytes() for path in segments(folder))
    return Built(data, [at for at, _ in hop(data)], flushed)


def recovery_point(folder: Path) -> int:
    """What the checkpoint and the indexes say was durable."""
    saved = checkpoint.load(folder)
    assert saved is not None
    bases = [int(path.stem) for path in segments(folder)]
    ends = dict(itertools.pairwise(bases))
    return max([saved.recovery_point, *(ends[int(path.stem)] for path in folder.glob("*.index"))])
