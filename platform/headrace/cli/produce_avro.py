"""`headrace produce --avro`: lines of JSON as Avro events, by the newest schema of the topic's subject.

Events with headrace's `header` are published as a service publishes them: the header is made here, and the
audit counts them. Other schemas are only serialized.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from headrace.client import DeliveryFuture
    from headrace.registry.json_values import JsonForm

SERVICE: Final = "headrace-produce"
HEADER_FIELDS: Final = {"time", "datacenter", "server", "service", "guid"}

Send = Callable[[bytes | None, bytes | None], "DeliveryFuture"]
"""Publishes a key and a line."""


class Options(NamedTuple):
    """`datacenter` None: a cluster that is not the site's, where nobody counts events."""

    topic: str
    bootstrap: str
    registry_url: str
    datacenter: str | None
    partition: int | None
    compression: str
    allow_before_1990: bool
    time_ms: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timeout_ms: float = 30_000

    @property
    def producer(self) -> dict[str, Any]:
        """How the client sends: a record that is refused is sent again until `timeout_ms` have passed."""
        return {
            "compression": self.compression,
            "max_block_ms": self.timeout_ms,
            "delivery_timeout_ms": self.timeout_ms,
            "request_timeout_ms": self.timeout_ms / 2,
        }


class LineError(CommandError):
    """A line that is no event of the topic's schema."""


@contextmanager
def avro_sender(options: Options) -> Iterator[Send]:
    """What publishes lines. At its end every event is delivered, and reported to the audit if it counts."""
    from headrace.registry.client import SchemaRegistryClient

    with SchemaRegistryClient(options.registry_url, retry_rounds=1) as registry:
        schema = _newest(registry, options.topic)
        if options.datacenter is not None and _has_header(schema):
            if options.headers:
                raise CommandError(
                    f"events of {options.topic} carry headers of their own; leave --header out",
                    ExitCode.USAGE,
                )
            with _events(options, schema) as send:
                yield send
        else:
            with _values(options, registry, schema) as send:
                yield send


@contextmanager
def _events(options: Options, schema: str) -> Iterator[Send]:
    from headrace.events import EventPublisher
    from headrace.events.publisher import InvalidEventError

    assert options.datacenter is not None
    with EventPublisher(
        datacenter=options.datacenter,
        service=SERVICE,
        bootstrap=options.bootstrap,
        registry_url=options.registry_url,
        schemas={options.topic: schema},
        producer_options=options.producer,
        allow_before_1990=options.allow_before_1990,
    ) as publisher:
        form = _form(options, schema)

        def send(key: bytes | None, line: bytes | None) -> DeliveryFuture:
            record = _parsed(line)
            time_ms = _header_time_ms(form, record.pop("header", None))
            record = _converted(form, record)
            try:
                return publisher.publish(
                    options.topic,
                    record,
                    key=key,
                    time_ms=options.time_ms if time_ms is None else time_ms,
                    partition=options.partition,
                )
            except InvalidEventError as error:
                problem = str(error).removeprefix(f"{options.topic}: ")
                problem = problem.replace("time_ms", "--timestamp" if time_ms is None else "header.time")
                option = "--allow-before-1990"
                raise LineError(problem.replace("EventPublisher(allow_before_1990=True)", option)) from None

        yield send


@contextmanager
def _values(options: Options, registry: Any, schema: str) -> Iterator[Send]:
    from headrace.client import Producer
    from headrace.registry.serializers import AvroSerializer, SerializationError

    serializer = AvroSerializer(registry, schema, register=False)
    form = _form(options, schema)
    with Producer(options.bootstrap, acks="all", **options.producer) as producer:

        def send(key: bytes | None, line: bytes | None) -> DeliveryFuture:
            try:
                value = serializer.serialize(options.topic, _converted(form, _parsed(line)))
            except SerializationError as error:
                raise LineError(str(error)) from None
            return producer.send(
                options.topic,
                value,
                key=key,
                partition=options.partition,
                timestamp_ms=options.time_ms,
                headers=options.headers,
            )

        yield send


def _form(options: Options, schema: str) -> JsonForm:
    import fastavro.schema

    from headrace.registry.json_values import JsonForm

    parsed = fastavro.schema.parse_schema(json.loads(schema))
    return JsonForm(parsed, checks_times=not options.allow_before_1990)


def _header_time_ms(form: JsonForm, header: Any) -> int | None:
    """Returns `header.time`, all that is kept of a line's own header; None if it has none."""
    if header is None:
        return None
    if not isinstance(header, dict):
        raise LineError(f"field header is {header!r:.80} (expected an object; it may be left out)")
    time = header.get("time")
    if isinstance(time, str):
        time = _converted(form, {"header": {"time": time}})["header"]["time"]
    return round(time.timestamp() * 1000) if isinstance(time, datetime) else time


def _converted(form: JsonForm, record: dict[str, Any]) -> dict[str, Any]:
    """Returns the record with bytes, times and decimals instead of the text and numbers of JSON."""
    from headrace.registry.value_validation import SerializationError

    try:
        converted: dict[str, Any] = form.from_json(record)
    except SerializationError as error:
        raise LineError(str(error)) from None
    return converted


def _newest(registry: Any, topic: str) -> str:
    """Returns the newest schema of the topic's values. Raises `CommandError` if there is none."""
    from headrace.registry.errors import RegistryError, RegistryUnavailableError

    subject = f"{topic}-value"
    try:
        text: str = registry.latest(subject).schema
    except RegistryUnavailableError:
        raise
    except RegistryError as error:
        raise CommandError(
            f"there is no schema for {topic}: {error}; register one with "
            f"`headrace schemas register {subject} FILE`"
        ) from error
    return text


def _has_header(schema: str) -> bool:
    """Whether the events of this schema begin with headrace's header."""
    fields = json.loads(schema)
    fields = fields.get("fields", []) if isinstance(fields, dict) else []
    kind = fields[0].get("type") if fields and fields[0].get("name") == "header" else None
    return isinstance(kind, dict) and {field["name"] for field in kind.get("fields", ())} == HEADER_FIELDS


def _parsed(line: bytes | None) -> dict[str, Any]:
    try:
        record = json.loads(line or b"")
    except ValueError as error:
        raise LineError(f"not JSON: {error}") from None
    except RecursionError:
        raise LineError("its JSON is nested too deeply") from None
    if not isinstance(record, dict):
        raise LineError(f"{(line or b'')[:60]!r} is not a JSON object with the event's fields")
    return record
