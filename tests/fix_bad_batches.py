"""Batches that no broker of today would store, put in the place of good ones in bytes and log files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.wire.batch import CRC_AT, HEADER_SIZE_BYTES, BatchHeader, hop, seal
from headrace.wire.compression import Codec

Spoil = Callable[[BatchHeader, bytes], bytes]


def flipped(_: BatchHeader, batch: bytes) -> bytes:
    """One bit of the last record is wrong: the CRC does not hold."""
    return batch[:-3] + bytes([batch[-3] ^ 4]) + batch[-2:]


def flipped_crc(_: BatchHeader, batch: bytes) -> bytes:
    return batch[:CRC_AT] + bytes([batch[CRC_AT] ^ 1]) + batch[CRC_AT + 1 :]


def poisoned(header: BatchHeader, batch: bytes) -> bytes:
    """The records are noise, and the CRC is right: what a broker stores that does not open them."""
    noise = b"\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" * len(batch)
    return resealed(header, noise[: len(batch) - HEADER_SIZE_BYTES])


def undecompressable(header: BatchHeader, batch: bytes) -> bytes:
    return resealed(header, batch[HEADER_SIZE_BYTES:], attributes=int(Codec.ZSTD))


def timed(base_ms: int, max_ms: int) -> Spoil:
    """The records are sound, but their times are absurd."""

    def spoil(header: BatchHeader, batch: bytes) -> bytes:
        return resealed(header, batch[HEADER_SIZE_BYTES:], base_ms=base_ms, max_ms=max_ms)

    return spoil


def resealed(
    header: BatchHeader,
    records: bytes,
    *,
    attributes: int | None = None,
    base_ms: int | None = None,
    max_ms: int | None = None,
) -> bytes:
    """A batch with the header's offsets and counts, other records, and the CRC of these."""
    return seal(
        records,
        record_count=header.record_count,
        base_timestamp_ms=header.base_timestamp_ms if base_ms is None else base_ms,
        max_timestamp_ms=header.max_timestamp_ms if max_ms is None else max_ms,
        attributes=header.attributes if attributes is None else attributes,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def spoil_in_file(partition: Path, spoils: dict[int, Spoil]) -> dict[int, BatchHeader]:
    """Spoils batches of a partition's only segment in place, by their number; returns their old headers.

    A broker that has the file open serves the new bytes: it sends files without looking at them.
    """
    (segment,) = partition.glob("*.log")
    data = segment.read_bytes()
    found = {}
    with segment.open("r+b") as file:
        for number, (at, header) in enumerate(hop(data)):
            if number in spoils:
                batch = spoils[number](header, data[at : at + header.size_bytes])
                assert len(batch) == header.size_bytes
                file.seek(at)
                file.write(batch)
                found[number] = header
    assert found.keys() == spoils.keys(), "the log has fewer batches"
    return found
