"""`headrace produce`: publishes the lines of a file or of stdin as records."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from headrace.cli import names
from headrace.cli.cluster import brokers_of
from headrace.cli.context import BootstrapOption, DatacenterOption, datacenter
from headrace.cli.errors import CommandError, ExitCode, print_note
from headrace.cli.output import JsonOption, out, plain, print_json
from headrace.cli.produce_avro import LineError, Options, Send, avro_sender
from headrace.cli.values import given_bytes, parse_pairs, parse_span_ms, parse_time_ms, registry_urls
from headrace.process.nearest import question

if TYPE_CHECKING:
    from headrace.client import RecordMetadata

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LINE_MAX_BYTES: Final = 64 << 20
TIMEOUT_MIN_MS: Final = 2_000
KNOWN_WAIT_MAX_MS: Final = 1_500
TIMEOUT_MAX_MS: Final = 3_600_000

KeySeparatorOption = Annotated[
    str | None, typer.Option("--key-separator", "-K", help="The text between a line's key and its value.")
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")]
NullOption = Annotated[
    bool, typer.Option("--null", "-Z", help="An empty value or key is null, instead of empty text.")
]
TimestampOption = Annotated[
    str | None,
    typer.Option(
        "--timestamp",
        help="The time of records that have no header.time: 2015-05-17T10 or -1h; by default now.",
        metavar="TIME",
    ),
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="The partition; by default chosen by the key."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", help="A header of every record; may be repeated.", metavar="NAME=VALUE"),
]
AcksOption = Annotated[str, typer.Option("--acks", help="Acknowledgements to wait for: 0, 1 or all.")]
CompressionOption = Annotated[
    str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        "--timeout", help="How long a record that is not acknowledged is sent again.", metavar="DURATION"
    ),
]
AvroOption = Annotated[
    bool, typer.Option("--avro", help="Lines are JSON; publish Avro events of the topic's newest schema.")
]
OldOption = Annotated[
    bool, typer.Option("--allow-before-1990", help="With --avro: accept a header.time before 1990.")
]
RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        "-r",
        help="With --avro: a registry, instead of the datacenter's.",
        metavar="URL",
        callback=registry_urls,
    ),
]


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to publish to.", autocompletion=names.topics)],
    file: Annotated[typer.FileBinaryRead | None, typer.Argument(help="The file; by default stdin.")] = None,
    key_separator: KeySeparatorOption = None,
    key: KeyOption = None,
    null: NullOption = False,
    partition: PartitionOption = None,
    header: HeaderOption = None,
    timestamp: TimestampOption = None,
    acks: AcksOption = "all",
    compression: CompressionOption = "none",
    timeout: TimeoutOption = "30s",
    avro: AvroOption = False,
    allow_before_1990: OldOption = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Publish each line as one record: its bytes as they are, or with --avro as an event.

    An event's header is made here; header.time is kept if the line has it. Bytes, times and decimals are
    written in JSON as `consume -o json` prints them. A wrong line ends the command: its number and its field
    are named, and the lines before it are published.
    """
    lines = _Lines(file or sys.stdin.buffer, key_separator, key, is_null=null, skips_empty=avro)
    if acks not in ("0", "1", "all"):
        raise CommandError(f"--acks {acks} is not 0, 1 or all", ExitCode.USAGE)
    if compression not in COMPRESSIONS:
        raise CommandError(f"--compression {compression} is not {', '.join(COMPRESSIONS)}", ExitCode.USAGE)
    _check_name(topic)
    if avro and acks != "all":
        raise CommandError(f"--avro publishes with acks=all, not {acks}", ExitCode.USAGE)
    if avro and brokers and not registry:
        raise CommandError("--avro with --bootstrap needs --registry URL", ExitCode.USAGE)
    here = datacenter(where) if avro and not brokers else None
    options = Options(
        topic=topic,
        bootstrap=brokers_of(where, brokers).bootstrap,
        registry_url=registry or (here.registry if here else ""),
        datacenter=here.name if here else None,
        partition=partition,
        compression=compression,
        allow_before_1990=allow_before_1990,
        time_ms=None if timestamp is None else parse_time_ms(timestamp),
        headers=_headers(header or []),
        timeout_ms=parse_span_ms(
            timeout, "s", option="--timeout", least_ms=TIMEOUT_MIN_MS, most_ms=TIMEOUT_MAX_MS
        ),
    )
    sender = avro_sender(options) if avro else _plain_sender(options, acks)
    before = None if avro else _topics_of(options.bootstrap)
    counts = _publish(lines, sender)
    if before is not None and counts and topic not in before:
        # A wrong name is easily typed, and brokers make such topics (auto.create.topics.enable).
        print_note(f"there was no topic {topic!r}: the brokers have made it{question(topic, before)}")
    _print_counts(topic, counts, json=json)


def _check_name(topic: str) -> None:
    from headrace.wire.topic_names import TOPIC_NAME_RULE, is_topic_name

    if not is_topic_name(topic):
        raise CommandError(f"{topic!r} is not a topic name: use {TOPIC_NAME_RULE}", ExitCode.USAGE)


def _headers(words: list[str]) -> tuple[tuple[str, bytes], ...]:
    """Returns the headers, in the order in which they were given: a name may be there more than once."""
    pairs = parse_pairs(words, "--header")
    for name, _ in pairs:
        if given_bytes(name).decode(errors="replace") != name:
            raise CommandError(f"--header: the name {name!a} is not UTF-8", ExitCode.USAGE)
    return tuple((name, given_bytes(value)) for name, value in pairs)


def _print_counts(topic: str, counts: Mapping[int, int], *, json: bool) -> None:
    if json:
        print_json({"topic": topic, "records": sum(counts.values()), "partitions": counts})
        return
    spread = ", ".join(f"{count} in partition {number}" for number, count in sorted(counts.items()))
    total = sum(counts.values())
    out.print(
        f"published {total:,} record{'' if total == 1 else 's'} to {plain(topic)}"
        + (f": {spread}" if spread else "")
    )


def _topics_of(bootstrap: str) -> frozenset[str] | None:
    """The topics that are there; None if nobody answers soon: the producer is more patient."""
    from headrace.client import Admin
    from headrace.client.errors import ClientError

    try:
        with Admin(bootstrap, timeout_ms=KNOWN_WAIT_MAX_MS, total_ms=KNOWN_WAIT_MAX_MS) as admin:
            return frozenset(admin.topics())
    except ClientError:
        return None


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


class _Lines:
    """The records of a file: a key and a value for each line, or `LineError` for one that is none."""

    def __init__(
        self,
        file: BinaryIO,
        separator: str | None,
        key: str | None,
        *,
        is_null: bool,
        skips_empty: bool,
    ) -> None:
        if separator is not None and key is not None:
            raise CommandError("give either --key or --key-separator, not both", ExitCode.USAGE)
        if separator == "":
            raise CommandError("--key-separator is empty", ExitCode.USAGE)
        self.number = 0
        self._file = file
        self._separator = None if separator is None else given_bytes(separator)
        self._key = None if key is None else given_bytes(key)
        self._is_null = is_null
        self._skips_empty = skips_empty

    def __iter__(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        while line := self._file.readline(LINE_MAX_BYTES + 1):
            self.number += 1
            if len(line) > LINE_MAX_BYTES:
                raise LineError(f"it has more than {LINE_MAX_BYTES} bytes")
            line = line.rstrip(b"\r\n")
            if line.strip() or not self._skips_empty:
                yield self._split(line)

    def _split(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        key, value = self._key, line
        if self._separator is not None:
            key, found, value = line.partition(self._separator)
            if not found:
                start = line[:60].decode(errors="backslashreplace")
                separator = self._separator.decode(errors="backslashreplace")
                raise LineError(f"{start!r} has no key separator {separator!r}")
        if self._is_null:
            return key or None, value or None
        return key, value


def _publish(lines: _Lines, sender: AbstractContextManager[Send]) -> dict[int, int]:
    """Publishes the lines; returns how many records each partition has got.

    Raises `CommandError` for the first wrong line, after those before it were published, and for records that
    were not delivered.
    """
    from headrace.client.errors import RecordTooLargeError

    outcomes = _Outcomes()
    problem = ""
    with sender as send:  # ends when all is delivered, or has failed
        try:
            for key, value in lines:
                send(key, value).report(outcomes.on_delivery)
        except (LineError, RecordTooLargeError) as error:
            problem = f"line {lines.number}: {error}"
    published = sum(outcomes.counts.values())
    if outcomes.failed:
        total = outcomes.failed + published
        raise CommandError(
            f"{outcomes.failed:,} of {total:,} records were not delivered: {outcomes.first_error}"
        )
    if problem:
        lines_before = "1 line before it is" if published == 1 else f"{published:,} lines before it are"
        raise CommandError(f"{problem}; {lines_before} published", ExitCode.USAGE)
    return outcomes.counts


@contextmanager
def _plain_sender(options: Options, acks: str) -> Iterator[Send]:
    from headrace.client import Producer

    with Producer(
        options.bootstrap,
        acks="all" if acks == "all" else "1" if acks == "1" else "0",
        **options.producer,
    ) as producer:
        yield lambda key, value: producer.send(
            options.topic,
            value,
            key=key,
            partition=options.partition,
            timestamp_ms=options.time_ms,
            headers=options.headers,
        )
