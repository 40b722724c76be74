"""`headrace produce`: publishes the lines of a file or of stdin as records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.cluster import brokers_of
from headrace.cli.context import BootstrapOption, DatacenterOption, datacenter
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, out, plain, print_json
from headrace.cli.produce_avro import LineError, Options, Send, avro_sender
from headrace.cli.values import parse_pairs

if TYPE_CHECKING:
    from headrace.client import RecordMetadata

KeySeparatorOption = Annotated[
    str | None, typer.Option("--key-separator", "-K", help="The text between a line's key and its value.")
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="The partition; by default chosen by the key."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", help="For every record; may be repeated.", metavar="NAME=VALUE"),
]
AcksOption = Annotated[str, typer.Option("--acks", help="Acknowledgements to wait for: 0, 1 or all.")]
CompressionOption = Annotated[
    str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
]
AvroOption = Annotated[
    bool, typer.Option("--avro", help="Lines are JSON; publish Avro events of the topic's newest schema.")
]
OldOption = Annotated[
    bool, typer.Option("--allow-before-1990", help="With --avro: also events with a header.time so old.")
]
RegistryOption = Annotated[
    str | None,
    typer.Option("--registry", "-r", help="With --avro: a registry instead of the site's.", metavar="URL"),
]


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to publish to.")],
    file: Annotated[typer.FileBinaryRead | None, typer.Argument(help="The file; by default stdin.")] = None,
    key_separator: KeySeparatorOption = None,
    partition: PartitionOption = None,
    header: HeaderOption = None,
    acks: AcksOption = "all",
    compression: CompressionOption = "none",
    avro: AvroOption = False,
    allow_before_1990: OldOption = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Publish each line as one record: its bytes as they are, or with --avro as an event.

    An event's header is made here; header.time is kept if the line has it. A wrong line ends the command: its
    number is named, and the lines before it are published.
    """
    if acks not in ("0", "1", "all"):
        raise CommandError(f"--acks {acks} is not 0, 1 or all", ExitCode.USAGE)
    headers = tuple((name, value.encode()) for name, value in parse_pairs(header or []).items())
    if avro and (headers or acks != "all"):
        raise CommandError("--avro publishes with acks=all, and sets the headers itself", ExitCode.USAGE)
    if avro:
        if brokers and not registry:
            raise CommandError("--avro with --bootstrap needs --registry URL", ExitCode.USAGE)
        here = None if brokers else datacenter(where)
        url = registry or (here.registry if here else "")
        name = here.name if here else None
        bootstrap = brokers_of(where, brokers).bootstrap
        sender = avro_sender(Options(topic, bootstrap, url, name, partition, compression, allow_before_1990))
    else:
        sender = _plain_sender(
            topic, brokers_of(where, brokers).bootstrap, partition, headers, acks, compression
        )
    counts = _publish(file or sys.stdin.buffer, sender, key_separator)
    if json:
        print_json({"topic": topic, "records": sum(counts.values()), "partitions": counts})
    else:
        spread = ", ".join(f"{count} in partition {number}" for number, count in sorted(counts.items()))
        total = sum(counts.values())
        out.print(f"published {total:,} records to {plain(topic)}" + (f": {spread}" if spread else ""))


class _Outcomes:
    """What became of the records. Its callback runs in the producer's thread."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.failed = 0
        self.first_error = ""

    def on_delivery(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        if error is not None:
            self.failed += 1
            self.first_error = self.first_error or str(error)
        elif metadata is not None:
            self.counts[metadata.partition] = self.counts.get(metadata.partition, 0) + 1


def _publish(
    lines: Iterable[bytes], sender: AbstractContextManager[Send], separator: str | None
) -> dict[int, int]:
    """Publishes the lines; returns how many records each partition has got.

    Raises `CommandError` for the first wrong line, after those before it were published, and for records that
    were not delivered.
    """
    outcomes = _Outcomes()
    problem = ""
    with sender as send:  # ends when all is delivered, or has failed
        for number, line in enumerate(lines, start=1):
            try:
                key, value = _split(line.rstrip(b"\r\n"), separator)
                send(key, value).report(outcomes.on_delivery)
            except LineError as error:
                problem = f"line {number}: {error}"
                break
    published = sum(outcomes.counts.values())
    if outcomes.failed:
        raise CommandError(f"{outcomes.failed} records were not delivered: {outcomes.first_error}")
    if problem:
        raise CommandError(f"{problem}; {published:,} lines before it are published", ExitCode.USAGE)
    return outcomes.counts


@contextmanager
def _plain_sender(
    topic: str,
    bootstrap: str,
    partition: int | None,
    headers: tuple[tuple[str, bytes], ...],
    acks: str,
    compression: str,
) -> Iterator[Send]:
    from headrace.client import Producer

    with Producer(
        bootstrap, acks="all" if acks == "all" else "1" if acks == "1" else "0", compression=compression
    ) as producer:
        yield lambda key, value: producer.send(topic, value, key=key, partition=partition, headers=headers)


def _split(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        raise LineError(f"{line[:60]!r} has no key separator {separator!r}")
    return key, value
