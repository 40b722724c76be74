"""`headrace consume`: prints the records of a topic, and decodes Avro events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from headrace.cli import names
from headrace.cli.cluster import answering, brokers_of, left_of_s, naming_topic, reading
from headrace.cli.context import BootstrapOption, DatacenterOption, RegistryOption, datacenter
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import note
from headrace.cli.records import Filter, Form, Printer, pattern
from headrace.cli.values import UNIX_DIGITS_MIN, parse_time_ms

if TYPE_CHECKING:
    from headrace.client import Consumer, ConsumerRecord
    from headrace.client.survey import Survey
    from headrace.registry.serializers import AvroDeserializer

POLL_S: Final = 0.5
STALL_MAX_S: Final = 5.0
"""How long a command that reads to the logs' ends waits for partitions that give nothing."""
REGISTRY_MAX_S: Final = 3.0
"""How long a record waits for its schema."""

_BEGINNING: Final = ("beginning", "earliest")
_END: Final = ("end", "latest")


FromOption = Annotated[
    str,
    typer.Option(
        "--from", help="beginning, end, a time such as 2015-05-17T10 or -1h, or, with -p, an offset."
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", help="Only records before this time; ends where the log ends now."),
]
PartitionOption = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="Only records with exactly this key.")]
GrepOption = Annotated[
    str | None,
    typer.Option(
        "--grep", "-g", help="Only records in whose key or shown value this is found.", metavar="REGEX"
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="End after this many printed records.")
]
FormOption = Annotated[
    Form, typer.Option("--output", "-o", help="Lines for people, JSON lines, or the values' own bytes.")
]


def consume(
    topic: Annotated[str, typer.Argument(help="The topic to read.", autocompletion=names.topics)],
    from_: FromOption = "end",
    until: UntilOption = None,
    partition: PartitionOption = None,
    key: KeyOption = None,
    grep: GrepOption = None,
    limit: LimitOption = None,
    to_end: Annotated[bool, typer.Option("--to-end", "-e", help="End where the log ends now.")] = False,
    form: FormOption = Form.TABLE,
    raw: Annotated[bool, typer.Option("--raw", help="Do not decode Avro events.")] = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    registry: RegistryOption = None,
    json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Print records until --limit, --until or --to-end is reached, or Ctrl-C.

    With --from TIME, only records of that time or later. A damaged batch is named on stderr and left out; the
    exit code is then 1. If a broker does not answer, its partitions are named; with an end to reach, the exit
    code is then 3.
    """
    is_bounded = to_end or until is not None
    from_ms = _time_of(from_, is_one=partition is not None)
    until_ms = parse_time_ms(until) if until is not None else None
    if from_ms is not None and until_ms is not None and until_ms < from_ms:
        raise CommandError(f"--until {until} is before --from {from_}: nothing lies between", ExitCode.USAGE)
    wanted = Filter(key, pattern(grep), from_ms, until_ms)
    url = registry or (None if brokers else datacenter(where).registry_url)
    survey = _survey(topic, where, brokers)
    numbers = _partitions(survey, topic, partition)
    missing = _note_missing(survey, topic, numbers, is_bounded)
    if not survey.answering:
        raise CommandError(f"no broker tells what {topic} has", ExitCode.UNREACHABLE)
    if is_bounded:
        numbers = [number for number in numbers if number not in missing]
    ends = {number: survey.ranges[topic, number].end for number in numbers} if is_bounded else None
    start = Start(numbers, from_, from_ms)
    _check_offset(survey, topic, start)
    with _deserializer(None if raw else url) as deserializer:
        printer = Printer(Form.JSON if json else form, wanted, deserializer)
        printed = _print_records(printer, survey, topic, start, ends=ends, limit=limit)
    if missing and is_bounded and printed != limit:
        raise CommandError(
            f"{topic}: {len(missing)} of {len(missing) + len(numbers)} partitions were not read; the notes "
            "name them",
            ExitCode.UNREACHABLE,
        )


class Start(NamedTuple):
    """Where reading begins: the partitions, the place, and its time if it is one."""

    partitions: list[int]
    place: str
    time_ms: int | None


def _print_records(
    printer: Printer,
    survey: Survey,
    topic: str,
    start: Start,
    *,
    ends: dict[int, int] | None,
    limit: int | None,
) -> int:
    """Prints records until `ends` or `limit` is reached, or Ctrl-C; returns how many."""
    from headrace.client.consumer import Consumer

    printed = 0
    with Consumer(answering(survey), auto_offset_reset="earliest", on_corrupt="skip") as consumer:
        consumer.assign([(topic, number) for number in start.partitions])
        with suppress(KeyboardInterrupt):
            _seek(consumer, topic, start)
            for record in _records(consumer, topic, ends):
                printed += printer.print(record)
                if printed == limit:
                    break
        if consumer.corrupt_batches_skipped:
            raise CommandError(
                f"{consumer.corrupt_batches_skipped} damaged batches were left out; the warnings name them"
            )
    return printed


# --- before reading ---


def _time_of(text: str, *, is_one: bool) -> int | None:
    """Returns the time of --from; None if it is a place or an offset."""
    if text in (*_BEGINNING, *_END) or (_is_number(text) and is_one):
        return None
    if _is_number(text) and len(text) < UNIX_DIGITS_MIN:
        raise CommandError(
            f"--from {text} is no time; if it is an offset, say of which partition: --partition",
            ExitCode.USAGE,
        )
    return parse_time_ms(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _check_offset(survey: Survey, topic: str, start: Start) -> None:
    """Raises `CommandError` for an offset beyond the log; says so if retention has deleted it."""
    if not _is_number(start.place) or start.time_ms is not None:
        return
    for number in start.partitions:
        log = survey.ranges.get((topic, number))
        if log is not None and int(start.place) > log.end:
            raise CommandError(
                f"--from {start.place} is not in the log of {topic}-{number}, which goes from {log.start} to "
                f"{log.end}",
                ExitCode.USAGE,
            )
        if log is not None and int(start.place) < log.start:
            note(f"{topic}-{number} begins at {log.start}: retention has deleted what was before it")


def _survey(topic: str, where: str | None, brokers: str | None) -> Survey:
    found = brokers_of(where, brokers)
    with reading(found) as admin, naming_topic(topic, admin):
        survey = admin.survey([topic], known=found.known)
        survey.topic(topic)
    return survey


def _partitions(survey: Survey, topic: str, partition: int | None) -> list[int]:
    numbers = sorted(survey.topic(topic).partitions)
    if partition is None:
        return numbers
    if partition not in numbers:
        raise CommandError(
            f"{topic} has no partition {partition}, only 0 to {len(numbers) - 1}", ExitCode.USAGE
        )
    return [partition]


def _note_missing(survey: Survey, topic: str, numbers: list[int], is_bounded: bool) -> set[int]:
    """Names the partitions that cannot be read now; returns them."""
    problems = {number: problem for number, problem in survey.problems_of(topic).items() if number in numbers}
    by_problem: dict[str, list[int]] = {}
    for number, problem in sorted(problems.items()):
        by_problem.setdefault(problem, []).append(number)
    for problem, affected in by_problem.items():
        which = ", ".join(f"{topic}-{number}" for number in affected)
        note(f"{problem}: {which} {'left out' if is_bounded else 'will follow once it answers'}")
    return set(problems)


def _seek(consumer: Consumer, topic: str, start: Start) -> None:
    for number in start.partitions:
        if start.place in _BEGINNING:
            consumer.seek_to_beginning(topic, number)
        elif start.place in _END:
            consumer.seek_to_end(topic, number)
        elif start.time_ms is None:
            consumer.seek(topic, number, int(start.place))
        else:
            consumer.seek_to_timestamp(topic, number, start.time_ms)


# --- reading ---


def _records(consumer: Consumer, topic: str, ends: dict[int, int] | None) -> Iterator[ConsumerRecord]:
    """Yields records; with `ends`, until all partitions are there.

    Raises `CommandError` if partitions that are not there yet give nothing for `STALL_MAX_S`.
    """
    positions: dict[int, int] = {}
    moved_s = time.monotonic()
    while True:
        if ends is not None:
            before, positions = positions, _positions(consumer, topic, ends)
            left = [number for number, end in ends.items() if positions[number] < end]
            if not left:
                return
            if positions != before:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s >= STALL_MAX_S:
                which = ", ".join(f"{topic}-{number} at offset {positions[number]}" for number in left)
                raise CommandError(
                    f"no broker gave anything of {which} for {STALL_MAX_S:g} s", ExitCode.UNREACHABLE
                )
        for record in consumer.poll(POLL_S):
            if ends is None or record.offset < ends[record.partition]:
                yield record


def _positions(consumer: Consumer, topic: str, ends: dict[int, int]) -> dict[int, int]:
    """Returns where each partition's reader is. Those that look it up first have `STALL_MAX_S` together."""
    from headrace.client.errors import MetadataTimeoutError

    until_s = time.monotonic() + STALL_MAX_S
    found = {}
    for number in ends:
        try:
            found[number] = consumer.position(topic, number, timeout_s=left_of_s(until_s))
        except MetadataTimeoutError as error:
            raise CommandError(
                f"no broker told within {STALL_MAX_S:g} s where to begin in {topic}-{number}",
                ExitCode.UNREACHABLE,
            ) from error
    return found


@contextmanager
def _deserializer(url: str | None) -> Iterator[AvroDeserializer | None]:
    if url is None:
        yield None
        return
    from headrace.registry.client import SchemaRegistryClient
    from headrace.registry.serializers import AvroDeserializer

    with SchemaRegistryClient(url, timeout_s=REGISTRY_MAX_S, retry_rounds=1) as registry:
        yield AvroDeserializer(registry)
