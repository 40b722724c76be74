"""The options of the source, with the names, defaults and errors of Spark's Kafka source.

Owns the parsing of every option. Pure.

https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from headrace.warehouse.source.errors import OptionError
from headrace.warehouse.source.option_table import NAMES

LATEST: Final = -1
EARLIEST: Final = -2

FETCH_SIZE_BYTES: Final = 8 << 20
FETCH_SIZE_MAX_BYTES: Final = 256 << 20
REQUEST_TIMEOUT_MS: Final = 60_000
RETRY_PAUSE_MS: Final = 200

KAFKA_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
LOAD_COLUMNS: Final = ("payload", "schemaId", "partition", "offset", "timestamp")
"""The columns that a load reads. `payload` has no framing, but an end mark (see `warehouse.decode`)."""

_KINDS: Final = ("subscribe", "subscribepattern", "assign")
_ENDS: Final = ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp")
_SET_BY_THE_SOURCE: Final = ("auto.offset.reset", "key.deserializer", "value.deserializer")

PROBLEM_COLUMN: Final = "problem"
"""What is wrong with the record's batch, with `onCorrupt` `keep`; null for the records of a sound one."""

OnCorrupt = Literal["fail", "skip", "keep"]
"""What a read does at a batch that cannot be read: fails; leaves it out, with a warning in the log; or gives
a row without key and value for each of its records, but the batch's bytes as the first one's value.
"""
Partition = tuple[str, int]
Where = Literal["earliest", "latest"] | dict[Partition, int]
"""A boundary in every partition: its name, or offsets by partition, of which -1 is latest, -2 earliest."""


@dataclass(frozen=True)
class ReadBoundary:
    """Where a read begins or ends. `timestamps_ms` (one, or one per partition) overrides `offsets`."""

    offsets: Where
    timestamps_ms: int | dict[Partition, int] | None = None


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of one read."""

    bootstrap: tuple[str, ...]
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    partitions: tuple[Partition, ...] = ()
    start: ReadBoundary = field(default_factory=lambda: ReadBoundary("earliest"))
    end: ReadBoundary = field(default_factory=lambda: ReadBoundary("latest"))
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    include_headers: bool = False
    max_offsets_per_trigger: int | None = None
    max_records_per_trigger: int | None = None
    is_debug: bool = False
    fetch_size_bytes: int = FETCH_SIZE_BYTES
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    columns: tuple[str, ...] = KAFKA_COLUMNS
    value_format: Literal["binary", "avro"] = "binary"
    registry_url: str | None = None
    subject: str | None = None
    fail_fast: bool = True
    on_corrupt: OnCorrupt = "fail"
    strict_timestamps: bool = True
    is_committed_only: bool = False
    """Whether what a transaction wrote must be committed, which the source cannot tell."""


def parse(options: Mapping[str, str], *, streaming: bool = False, for_schema: bool = False) -> SourceOptions:
    """Parses the options of a batch read or a stream. Raises `OptionError` in Spark's words.

    `for_schema`: not yet known which of the two it is, so options that only one may have are accepted.
    """
    given = {name.lower(): value for name, value in options.items()}
    bootstrap = given.get("kafka.bootstrap.servers", given.get("bootstrap"))
    if not bootstrap:
        raise OptionError("Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer")
    _refuse_unknown(given)
    if "topic" in given:
        given.setdefault("subscribe", given["topic"])
    _check_one_kind(given)
    start, end = _boundaries(given, streaming, for_schema)
    include_headers = _boolean(given, "includeheaders", False)
    is_avro = _one_of(given, "valueFormat", ("binary", "avro")) == "avro"
    registry_url = given.get("schema.registry.url")
    if is_avro and not registry_url:
        raise OptionError("Option 'schema.registry.url' must be specified when valueFormat is avro")
    return SourceOptions(
        bootstrap=_servers(bootstrap),
        topics=_topics(given["subscribe"]) if "subscribe" in given else (),
        topic_pattern=_pattern(given.get("subscribepattern")),
        partitions=_assignment(given["assign"]) if "assign" in given else (),
        start=start,
        end=end,
        fail_on_data_loss=_boolean(given, "failondataloss", True),
        min_partitions=_positive(given, "minpartitions"),
        include_headers=include_headers,
        max_offsets_per_trigger=_positive(given, "maxoffsetspertrigger")
        or _positive(given, "maxbytespertrigger"),
        max_records_per_trigger=_positive(given, "maxrecordspertrigger"),
        is_debug=_boolean(given, "debug", False),
        fetch_size_bytes=_positive(given, "kafka.fetch.max.bytes", FETCH_SIZE_MAX_BYTES) or FETCH_SIZE_BYTES,
        request_timeout_ms=_positive(given, "kafka.request.timeout.ms") or REQUEST_TIMEOUT_MS,
        columns=_columns(given, include_headers),
        value_format="avro" if is_avro else "binary",
        registry_url=registry_url,
        subject=given.get("subject"),
        fail_fast=_one_of(given, "mode", ("FAILFAST", "PERMISSIVE")) == "FAILFAST",
        on_corrupt=cast(OnCorrupt, _one_of(given, "onCorrupt", ("fail", "skip", "keep"))),
        strict_timestamps=_one_of(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "error",
        is_committed_only=_one_of(given, "kafka.isolation.level", ("read_uncommitted", "read_committed"))
        == "read_committed",
    )


def parse_offsets(text: str) -> dict[Partition, int]:
    """Parses Spark's JSON of offsets: `{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}`."""
    wrong = OptionError(f'Expected e.g. {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, got {text}')
    try:
        data = json.loads(text)
        found = {
            (str(topic), int(partition)): offset
            for topic, partitions in data.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError) as error:
        raise wrong from error
    if any(
        not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST
        for offset in found.values()
    ):
        raise wrong
    return found


def format_offsets(offsets: Mapping[Partition, int]) -> str:
    """Returns the JSON that `parse_offsets` parses."""
    data: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        data.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(data)


def _check_one_kind(given: Mapping[str, str]) -> None:
    kinds = [kind for kind in _KINDS if kind in given]
    if not kinds:
        raise OptionError(
            "One of the following options must be specified for Kafka source: subscribe, subscribePattern, "
            "assign. See the docs for more details."
        )
    if len(kinds) > 1:
        raise OptionError(
            "Only one of the following options can be specified for Kafka source: subscribe, "
            "subscribePattern, assign. See the docs for more details."
        )


def _boundaries(
    given: Mapping[str, str], streaming: bool, for_schema: bool
) -> tuple[ReadBoundary, ReadBoundary]:
    if streaming and any(name in given for name in _ENDS):
        raise OptionError("ending offset not valid in streaming queries")
    start = _boundary(given, "starting", "latest" if streaming else "earliest")
    end = _boundary(given, "ending", "latest")
    if not streaming and not for_schema:
        _check_not(start, LATEST, "latest", "starting offset", "startingOffsets")
        _check_not(end, EARLIEST, "earliest", "ending offset", "ending offset")
    return start, end


def _check_not(boundary: ReadBoundary, offset: int, name: str, what: str, what_of_partition: str) -> None:
    """Refuses the boundary `name`, which `offset` stands for, in a batch read."""
    if boundary.offsets == name and boundary.timestamps_ms is None:
        raise OptionError(f"{what} can't be {name} for batch queries on Kafka")
    for (topic, partition), given in boundary.offsets.items() if isinstance(boundary.offsets, dict) else ():
        if given == offset:
            raise OptionError(
                f"{what_of_partition} for {topic}-{partition} can't be {name} for batch queries on Kafka"
            )


def _boundary(given: Mapping[str, str], which: str, default: Literal["earliest", "latest"]) -> ReadBoundary:
    timestamps: int | dict[Partition, int] | None = None
    if f"{which}timestamp" in given:
        timestamps = _number(f"{which}Timestamp", given[f"{which}timestamp"])
    elif f"{which}offsetsbytimestamp" in given:
        timestamps = parse_offsets(given[f"{which}offsetsbytimestamp"])
    text = given.get(f"{which}offsets", default).strip()
    if text.lower() == "earliest":
        return ReadBoundary("earliest", timestamps)
    if text.lower() == "latest":
        return ReadBoundary("latest", timestamps)
    return ReadBoundary(parse_offsets(text), timestamps)


def _servers(text: str) -> tuple[str, ...]:
    servers = tuple(server.strip() for server in text.split(",") if server.strip())
    if not servers:
        raise OptionError(
            f"Option 'kafka.bootstrap.servers' names no broker: it is {text!r}; write HOST:PORT,…"
        )
    return servers


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise OptionError(f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'")
    return topics


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"Option 'subscribePattern' is no regular expression: {text!r}: {error}") from error
    return text


def _assignment(text: str) -> tuple[Partition, ...]:
    try:
        data = json.loads(text)
        # As a consumer's assignment: a partition that is named twice is read once.
        return tuple(
            dict.fromkeys(
                (str(topic), int(partition)) for topic, partitions in data.items() for partition in partitions
            )
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(f'Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}') from error


def _columns(given: Mapping[str, str], include_headers: bool) -> tuple[str, ...]:
    if "columns" not in given:
        return (*KAFKA_COLUMNS, "headers") if include_headers else KAFKA_COLUMNS
    known = {*KAFKA_COLUMNS, *LOAD_COLUMNS, "headers", PROBLEM_COLUMN}
    columns = tuple(name.strip() for name in given["columns"].split(","))
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise OptionError(f"Option 'columns' names {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    if "value" in columns and "payload" in columns:
        raise OptionError("Option 'columns' names value and payload; a read gives one of the two")
    return columns


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if not name.startswith("kafka.") and name not in NAMES:
            raise OptionError(f"Option '{name}' is not supported by the source headrace")
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise OptionError(f"Option 'kafka.security.protocol' is {protocol}; only PLAINTEXT is supported")
    for name in _SET_BY_THE_SOURCE:
        if f"kafka.{name}" in given:
            raise OptionError(f"Kafka option '{name}' is not supported as it is set by the source itself")


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Returns an option's value, in any case; the first of `values` if it is left out."""
    text = given.get(name.lower(), values[0])
    for value in values:
        if text.lower() == value.lower():
            return value
    raise OptionError(f"Option '{name}' must be {', '.join(values[:-1])} or {values[-1]}, but is {text!r}")


def _boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"Option '{name}' must be true or false, but is {text!r}")
    return text == "true"


def _positive(given: Mapping[str, str], name: str, at_most: int | None = None) -> int | None:
    if name not in given:
        return None
    number = _number(name, given[name])
    if number < 1 or (at_most is not None and number > at_most):
        bounds = "a positive integer" + (f" of at most {at_most}" if at_most is not None else "")
        raise OptionError(f"Option '{name}' must be {bounds}, but is {given[name]}")
    return number


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"Option '{name}' must be an integer, but is {text!r}") from error
