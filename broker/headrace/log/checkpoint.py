"""The checkpoint file of a partition, which makes opening the log fast. Without it the log is scanned; no
data is lost.

Format: one line with the CRC-32C of the rest in hex, then JSON. The file is replaced atomically, and ignored
if its checksum is wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from headrace.log.errors import OldLogFormatError
from headrace.log.producers import ProducerEntry, StoredBatch

FILE_NAME: Final = "checkpoint"
VERSION: Final = 2  # 1, until November 2026: batches had baseOffset = address
SIZE_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`recovery_point`: all bytes below it are flushed and checked. `producers`: their state at that address.
    `max_timestamps_ms`: of sealed segments, by base address. `saved_ms`: when it was taken, by the monotonic
    clock of the process that also gave the producers their times; None in a file that lacks it.
    """

    recovery_point: int
    producers: tuple[tuple[int, ProducerEntry], ...] = ()
    max_timestamps_ms: dict[int, int] = field(default_factory=dict)
    saved_ms: int | None = None


def encode(checkpoint: Checkpoint) -> bytes:
    producers = [
        [producer_id, entry.epoch, entry.last_append_ms, [list(batch) for batch in entry.batches]]
        for producer_id, entry in checkpoint.producers
    ]
    values: dict[str, Any] = {
        "version": VERSION,
        "recovery_point": checkpoint.recovery_point,
        "max_timestamps_ms": sorted(checkpoint.max_timestamps_ms.items()),
        "producers": producers,
    }
    if checkpoint.saved_ms is not None:
        values["saved_ms"] = checkpoint.saved_ms
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
            (
                producer_id,
                ProducerEntry(epoch, tuple(StoredBatch(*batch) for batch in batches), last_append_ms),
            )
            for producer_id, epoch, last_append_ms, batches in values["producers"]
        )
        max_timestamps_ms = dict(values["max_timestamps_ms"])
        return Checkpoint(values["recovery_point"], producers, max_timestamps_ms, values.get("saved_ms"))
    except (ValueError, KeyError, TypeError):
        return None


def load(directory: Path) -> Checkpoint | None:
    path = directory / FILE_NAME
    try:
        if path.stat().st_size > SIZE_MAX_BYTES:
            return None
        return decode(path.read_bytes(), path)
    except FileNotFoundError:
        return None
