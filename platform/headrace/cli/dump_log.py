"""`headrace dump-log`: prints the batches in a partition's files, without a broker.

A segment is named by the address of its first byte, so the address that a batch carries is checked against
its position.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

if TYPE_CHECKING:
    from headrace.wire.batch import BatchHeader

from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, in_time, out, print_json

BatchOnDisk = tuple[Path, int, "BatchHeader", "str | None", "list[dict[str, Any]] | None"]


def dump_log(
    path: Annotated[Path, typer.Argument(help="A segment file, or a partition's directory.")],
    records: Annotated[bool, typer.Option("--records", help="Decode the records, too.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many batches.")] = 10_000_000,
    json: JsonOption = False,
) -> None:
    """Print the batches of a partition's log. The exit code is 1 if one is damaged or misplaced.

    Reading goes on behind a damaged batch if its length can be believed.
    """
    damaged = False
    rows: list[dict[str, Any]] = []
    for count, (file, at, header, problem, decoded) in enumerate(
        _batches(_segments(path), with_records=records)
    ):
        if count == limit:
            break
        damaged = damaged or problem is not None
        row = _row(file, at, header, problem, decoded)
        if json:
            rows.append(row)
        else:
            _print(row)
    if json:
        print_json(rows)
    if damaged:
        raise typer.Exit(ExitCode.NEGATIVE)


def _segments(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.glob("*.log") if file.stem.isdigit())
        if not files:
            raise CommandError(
                f"{path} has no segment (*.log); is it a partition's directory?", ExitCode.USAGE
            )
        return files
    if not path.is_file():
        raise CommandError(f"{path} is neither a segment file nor a partition's directory", ExitCode.USAGE)
    if not path.stem.isdigit():
        raise CommandError(
            f"{path} is not a segment: its name is not the address of its first byte", ExitCode.USAGE
        )
    return [path]


def _batches(files: list[Path], *, with_records: bool) -> Iterator[BatchOnDisk]:
    for file in files:
        size = file.stat().st_size
        if size == 0:
            continue
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            yield from _batches_of(file, view, with_records=with_records)


def _batches_of(file: Path, view: memoryview, *, with_records: bool) -> Iterator[BatchOnDisk]:
    """Yields the batches of one file, also those behind a bad header whose length can be believed.

    Raises `CommandError` where no batch begins, and nothing says where the next one does.
    """
    from headrace.wire.batch import HEADER, HEADER_SIZE_BYTES, BatchHeader, read_header
    from headrace.wire.errors import WireError

    first_address = int(file.stem)
    at, size = 0, len(view)
    while at < size:
        where = f"{file} at {at} (address {first_address + at})"
        if size - at < HEADER_SIZE_BYTES:
            raise CommandError(f"{where} ends with {size - at} bytes that are not a whole batch")
        header = BatchHeader._make(HEADER.unpack_from(view, at))
        after = at + header.size_bytes
        problem: str | None = None
        try:
            read_header(view, at)
        except WireError as error:
            problem = str(error)
        if header.size_bytes < HEADER_SIZE_BYTES or after > size:
            problem = problem or f"the batch there claims {header.size_bytes} bytes"
            raise CommandError(f"{where} ends with {size - at} bytes that are not a whole batch: {problem}")
        if problem is not None and not _begins_at(view, after, first_address):
            raise CommandError(f"{where}: {problem}; nothing says where the next batch begins")
        yield _read(file, view, at, header, first_address, problem, with_records=with_records)
        at = after


def _begins_at(view: memoryview, at: int, first_address: int) -> bool:
    """Whether the file ends at this position, or the batch of its address begins there."""
    from headrace.wire.batch import read_header
    from headrace.wire.errors import WireError

    if at == len(view):
        return True
    try:
        return read_header(view, at).is_stored_at(first_address + at)
    except WireError:
        return False


def _read(
    file: Path,
    view: memoryview,
    at: int,
    header: BatchHeader,
    first_address: int,
    problem: str | None,
    *,
    with_records: bool,
) -> BatchOnDisk:
    from headrace.wire.batch import verify
    from headrace.wire.errors import WireError
    from headrace.wire.records import decode_records

    decoded: list[dict[str, Any]] | None = None
    try:
        verify(view, at, header)
        if with_records and problem is None:
            batch = bytes(view[at : at + header.size_bytes])
            decoded = [
                {
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp_ms,
                    "key": _text(record.key),
                    "value": _text(record.value),
                    "headers": {name: _text(value) for name, value in record.headers},
                }
                for record in decode_records(batch)
            ]
    except WireError as error:
        problem = problem or str(error)
    if problem is None and not header.is_stored_at(first_address + at):
        problem = (
            f"its offsets are {header.base_offset} + {header.last_offset_delta}, but its position is that of "
            f"address {first_address + at}"
        )
    return file, at, header, problem, decoded


def _row(
    file: Path, at: int, header: BatchHeader, problem: str | None, decoded: list[dict[str, Any]] | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "segment": file.name,
        "position": at,
        "address": header.address,
        "next_address": header.next_offset,
        "base_offset": header.base_offset,
        "size_bytes": header.size_bytes,
        "record_count": header.record_count,
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
        "codec": _codec(header),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "crc": f"{header.crc:08x}",
        "problem": problem,
    }
    if decoded is not None:
        row["records"] = decoded
    return row


def _print(row: dict[str, Any]) -> None:
    producer = "no producer id"
    if row["producer_id"] >= 0:
        last = row["base_sequence"] + row["record_count"] - 1
        producer = (
            f"producer {row['producer_id']}/{row['producer_epoch']} sequences {row['base_sequence']}–{last}"
        )
    times = f"{in_time(row['base_timestamp_ms'])} … {in_time(row['max_timestamp_ms'])}"
    out.print(
        f"[bold]{row['address']:>12}[/]  {row['size_bytes']:>8} B  {row['record_count']:>6} records  "
        f"{times}  {row['codec']:<6}  {producer}"
    )
    for record in row.get("records", ()):
        out.print(
            f"    {record['offset']:>12}  {record['key']!r:.40}  {record['value']!r:.100}", markup=False
        )
    if row["problem"]:
        out.print(f"              [red]damaged: {escape(row['problem'])}[/]")


def _codec(header: BatchHeader) -> str:
    from headrace.wire.errors import WireError

    try:
        return header.codec.name.lower()
    except WireError:
        return f"codec {header.attributes & 0x07}"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")
