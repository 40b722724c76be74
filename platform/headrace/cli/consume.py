"""`headrace consume`: prints the records of a topic, and decodes Avro events."""

from __future__ import annotations

import json as jsonlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from headrace.cli.context import BootstrapOption, DatacenterOption, bootstrap, datacenter, parse_time_ms
from headrace.cli.errors import CommandError
from headrace.cli.output import in_time, out, printable

if TYPE_CHECKING:
    from headrace.client import Consumer, ConsumerRecord
    from headrace.registry.serializers import AvroDeserializer

POLL_S = 0.5


def consume(
    topic: Annotated[str, typer.Argument(help="The topic to read.")],
    from_: Annotated[
        str,
        typer.Option("--from", help="beginning, end, a time such as 2015-05-17T10, or, with -p, an offset."),
    ] = "end",
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="End after this many records.")
    ] = None,
    to_end: Annotated[bool, typer.Option("--to-end", "-e", help="End where the log ends now.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Do not decode Avro events.")] = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    registry: Annotated[
        str | None,
        typer.Option("--registry", "-r", help="A schema registry's URL, instead of the datacenter's."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON.")] = False,
) -> None:
    """Print records until --limit or --to-end is reached, or Ctrl-C.

    A damaged batch is named on stderr and left out; the exit code is then 1.
    """
    from headrace.client.admin import LATEST, Admin
    from headrace.client.consumer import Consumer

    servers = bootstrap(where, brokers)
    url = registry or (None if brokers else datacenter(where).registry_url)
    warnings = logging.getLogger("headrace.client.consumer")
    if not warnings.handlers:
        warnings.addHandler(_Stderr())
    with (
        Consumer(servers, auto_offset_reset="earliest", on_corrupt="skip") as consumer,
        _deserializer(None if raw else url) as decode,
    ):
        partitions = consumer.partitions_for(topic)
        if partition is not None:
            if partition not in partitions:
                raise CommandError(f"{topic} has no partition {partition}, only 0 to {len(partitions) - 1}")
            partitions = [partition]
        consumer.assign([(topic, number) for number in partitions])
        _seek(consumer, topic, partitions, from_, is_one=partition is not None)
        ends = {}
        if to_end:
            with Admin(servers) as admin:
                ends = {number: end.offset for number, end in admin.list_offsets(topic, LATEST).items()}
        for count, record in enumerate(
            _records(consumer, topic, partitions, ends if to_end else None), start=1
        ):
            _print(record, _value(record.value, decode), as_json=json)
            if count == limit:
                break
        if consumer.corrupt_batches_skipped:
            raise CommandError(
                f"{consumer.corrupt_batches_skipped} damaged batches were left out; the warnings name them"
            )


def _seek(consumer: Consumer, topic: str, partitions: list[int], from_: str, *, is_one: bool) -> None:
    for number in partitions:
        if from_ == "beginning":
            consumer.seek_to_beginning(topic, number)
        elif from_ == "end":
            consumer.seek_to_end(topic, number)
        elif from_.isdigit() and is_one:
            consumer.seek(topic, number, int(from_))
        else:
            consumer.seek_to_timestamp(topic, number, parse_time_ms(from_))


def _records(
    consumer: Consumer, topic: str, partitions: list[int], ends: dict[int, int] | None
) -> Iterator[ConsumerRecord]:
    while True:
        if ends is not None and all(
            consumer.position(topic, number) >= ends[number] for number in partitions
        ):
            return
        try:
            records = consumer.poll(POLL_S)
        except KeyboardInterrupt:
            return
        for record in records:
            if ends is None or record.offset < ends[record.partition]:
                yield record


@contextmanager
def _deserializer(url: str | None) -> Iterator[AvroDeserializer | None]:
    """Yields what decodes events with a registry's schemas; None without a registry."""
    from headrace.registry.client import SchemaRegistryClient
    from headrace.registry.serializers import AvroDeserializer

    if url is None:
        yield None
        return
    with SchemaRegistryClient(url, retry_rounds=1) as registry:
        yield AvroDeserializer(registry)


def _value(value: bytes | None, deserializer: AvroDeserializer | None) -> Any:
    """Returns the decoded event, or the value as text if it is not one."""
    from headrace.registry.errors import RegistryError, RegistryUnavailableError

    if value is None:
        return None
    if deserializer is not None and len(value) > 5 and value[0] == 0:
        try:
            return deserializer.deserialize(value)
        except (RegistryError, RegistryUnavailableError, ValueError):
            # Not an event, although it begins like one; or this registry does not have its schema.
            pass
    return value.decode(errors="backslashreplace")


def _print(record: ConsumerRecord, value: Any, *, as_json: bool) -> None:
    key = None if record.key is None else record.key.decode(errors="backslashreplace")
    if as_json:
        row = {
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": key,
            "value": value,
            "headers": {name: _header(name, data) for name, data in record.headers},
        }
        # To a terminal as ASCII: JSON leaves some control characters as they are.
        line = jsonlib.dumps(row, ensure_ascii=sys.stdout.isatty(), default=_plain)
        sys.stdout.write(line.encode("utf-8", "backslashreplace").decode() + "\n")
        sys.stdout.flush()
        return
    text = value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False, default=_plain)
    out.print(
        f"[dim]{record.partition}:{record.offset}  {in_time(record.timestamp_ms)}[/]  "
        f"[bold]{escape(printable(key or ''))}[/]",
        end="  ",
    )
    out.print(printable(text), markup=False)


class _Stderr(logging.Handler):
    """Prints the consumer's warnings, which name the batches that are left out."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(record.getMessage()), file=sys.stderr)


def _header(name: str, data: bytes | None) -> Any:
    if data is None:
        return None
    if name == "published-ms" and len(data) == 8:
        return int.from_bytes(data, "big")
    return data.decode(errors="backslashreplace")


def _plain(value: object) -> object:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else str(value)
