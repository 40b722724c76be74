"""The parts of an audit record that can be true: numbers, names and texts within their bounds. Pure.

Each check raises `ImpossibleRecordError` for a value that no true record has. `validity` says which parts a
record of each kind has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.audit.times import HOUR_MS
from headrace.events.header import NAME_MAX_CHARS
from headrace.wire.topic_names import is_topic_name

TEXT_MAX_CHARS: Final = 10_000
KEY_MAX_CHARS: Final = 512
"""Of a text by which the store finds a row: PostgreSQL's indexes take no more than 2,700 bytes of all."""
SEQUENCE_MAX: Final = 2**31 - 1
ADDRESS_MAX: Final = 2**62
COUNT_MAX: Final = 2**40  # more records than this in one report are not credible; sums stay below 64 bits
HOURS_MAX: Final = 20_000  # different hours that one record may speak about


class ImpossibleRecordError(ValueError):
    """The record cannot be true; the message says why."""


def require(is_possible: bool, problem: str) -> None:
    """Raises `ImpossibleRecordError` with the problem, unless `is_possible`."""
    if not is_possible:
        raise ImpossibleRecordError(problem)


def check_range(start: int, end: int) -> None:
    """Of addresses [start, end), which may be none."""
    require(0 <= start <= end <= ADDRESS_MAX, f"addresses {start} to {end}")


def check_sequences(producer_id: int, epoch: int, first: int, last: int) -> None:
    """Of the sequence numbers first to last, inclusive, of an idempotent producer."""
    is_possible = producer_id >= 0 and 0 <= epoch < 2**15 and 0 <= first <= last <= SEQUENCE_MAX
    require(is_possible, f"sequences {first} to {last} of producer {producer_id}, epoch {epoch}")


def check_partition(partition: int) -> None:
    """Of the number of a partition."""
    require(partition >= 0, f"partition {partition}")


def check_count(name: str, count: int) -> None:
    """Of how many there are of something, called `name` in the problem."""
    require(0 <= count <= COUNT_MAX, f"{name} is {count}")


def check_hours(starts_ms: Iterable[int]) -> None:
    """Of how many different hours these times lie in."""
    hours = {start_ms // HOUR_MS for start_ms in starts_ms}
    require(len(hours) <= HOURS_MAX, f"it speaks about {len(hours)} hours")


def check_topic(topic: str) -> None:
    """Of a topic's name, by Kafka's rules."""
    require(is_topic_name(topic), f"no topic can have the name {shown(topic)}")


def check_name(what: str, name: str) -> None:
    """Of a name that people read: printable, and not empty."""
    is_possible = 0 < len(name) <= NAME_MAX_CHARS and name.isprintable()
    require(is_possible, f"no {what} can be called {shown(name)}")


def check_id(what: str, text: str) -> None:
    """Of an id, which may be empty."""
    require(len(text) <= NAME_MAX_CHARS and "\0" not in text, f"its {what} is {shown(text)}")


def check_key(what: str, text: str) -> None:
    """Of a text by which the store finds a row."""
    require(len(text) <= KEY_MAX_CHARS and "\0" not in text, f"its {what} is {shown(text)}")


def check_text(what: str, text: str) -> None:
    """Of a sentence."""
    require(len(text) <= TEXT_MAX_CHARS and "\0" not in text, f"its {what} is {shown(text)}")


def shown(text: str) -> str:
    """Returns text of a stranger for a message: escaped, and not long."""
    return ascii(text[:60]) + (f" … ({len(text)} characters)" if len(text) > 60 else "")
