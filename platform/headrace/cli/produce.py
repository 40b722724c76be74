"""`headrace produce`: publishes the lines of a file or of stdin as records."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.client import RecordMetadata

from headrace.cli.context import BootstrapOption, DatacenterOption, bootstrap, parse_pairs
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, out, print_json

FLUSH_TIMEOUT_S = 60.0
LINE_MAX_BYTES = 1 << 20


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to publish to.")],
    file: Annotated[typer.FileBinaryRead | None, typer.Argument(help="The file; by default stdin.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="The text between a line's key and its value.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="The partition; by default chosen by the key."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="For every record; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    acks: Annotated[str, typer.Option("--acks", help="Acknowledgements to wait for: 0, 1 or all.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Publish each line as one record: its bytes as they are, not as an Avro event."""
    from headrace.client import Producer

    if acks not in ("0", "1", "all"):
        raise CommandError(f"--acks {acks} is not 0, 1 or all", ExitCode.USAGE)
    headers = tuple((name, value.encode()) for name, value in parse_pairs(header or []).items())
    counts: dict[int, int] = {}
    failures: list[str] = []

    def delivered(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        if error is not None:
            failures.append(str(error))
        elif metadata is not None:
            counts[metadata.partition] = counts.get(metadata.partition, 0) + 1

    with Producer(
        bootstrap(where, brokers),
        acks="all" if acks == "all" else "1" if acks == "1" else "0",
        compression=compression,
    ) as producer:
        for line in file or sys.stdin.buffer:
            key, value = _split(line.rstrip(b"\r\n"), key_separator)
            producer.send(topic, value, key=key, partition=partition, headers=headers, on_delivery=delivered)
        producer.flush(FLUSH_TIMEOUT_S)
    if failures:
        raise CommandError(f"{len(failures)} records were not delivered: {failures[0]}")
    if json:
        print_json({"topic": topic, "records": sum(counts.values()), "partitions": counts})
    else:
        spread = ", ".join(f"{count} in partition {partition}" for partition, count in sorted(counts.items()))
        out.print(f"published {sum(counts.values())} records to {topic}" + (f": {spread}" if spread else ""))


def _split(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        raise CommandError(f"the line {line[:60]!r} has no key separator {separator!r}", ExitCode.USAGE)
    return key, value
