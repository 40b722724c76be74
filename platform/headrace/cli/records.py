"""Which records `headrace consume` prints, and how: as lines for people, as JSON, or as their bytes."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.markup import escape

from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import in_time, is_terminal, json_text, note, out, write, write_bytes
from headrace.cli.values import given_bytes
from headrace.process.text import escaped_lines

if TYPE_CHECKING:
    from headrace.client import ConsumerRecord
    from headrace.registry.serializers import AvroDeserializer

ASK_AGAIN_S: Final = 30.0
FRAMED_MIN_BYTES = 6  # Avro's frame: 0, the schema's id, and at least one byte


class Form(StrEnum):
    """How a record is printed."""

    TABLE = "table"
    JSON = "json"
    RAW = "raw"


class Filter(NamedTuple):
    """What a record must be to be printed; None: anything. `key` is the whole key, `text` a search.

    A key that is not text is named by its bytes, or as it is shown, such as `\\xff`.
    """

    key: str | None = None
    text: re.Pattern[str] | None = None
    from_ms: int | None = None
    until_ms: int | None = None

    def takes(self, record: ConsumerRecord) -> bool:
        """Whether the record has this key and lies in the time; its text is judged by `has_text`."""
        if self.from_ms is not None and record.timestamp_ms < self.from_ms:
            return False
        if self.until_ms is not None and record.timestamp_ms >= self.until_ms:
            return False
        if self.key is None:
            return True
        return record.key == given_bytes(self.key) or _as_text(record.key) == self.key

    def has_text(self, record: ConsumerRecord, shown: str) -> bool:
        """Whether the search finds something in the value, as it is shown, or in the key."""
        return self.text is None or any(
            self.text.search(each) for each in (shown, _as_text(record.key) or "")
        )


def pattern(text: str | None) -> re.Pattern[str] | None:
    """Returns the search of --grep."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise CommandError(
            f"--grep {text!r} is not a regular expression ({error}); a backslash before a character such as "
            "[ or ( takes it as it is",
            ExitCode.USAGE,
        ) from None


class Printer:
    """Prints records that pass a filter. `deserializer` None: values are shown as text.

    A registry that does not answer is asked again after `ASK_AGAIN_S`, not for each record.
    """

    def __init__(
        self,
        form: Form,
        wanted: Filter,
        deserializer: AvroDeserializer | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._form = form
        self._wanted = wanted
        self._deserializer = deserializer
        self._clock = clock
        self._ask_again_s = -math.inf

    def print(self, record: ConsumerRecord) -> bool:
        """Prints the record; returns False if the filter leaves it out."""
        if not self._wanted.takes(record):
            return False
        value = self._value(record.value)
        shown = value if isinstance(value, str) else json_text(value)
        if not self._wanted.has_text(record, shown):
            return False
        if self._form is Form.RAW:
            _print_raw(record.value or b"")
        elif self._form is Form.JSON:
            _print_json(record, value)
        else:
            _print_line(record, shown)
        return True

    def _value(self, value: bytes | None) -> Any:
        """Returns the decoded event, or the value as text if it is not one."""
        from headrace.registry.errors import RegistryError, RegistryUnavailableError

        if value is None:
            return None
        if self._deserializer is not None and len(value) >= FRAMED_MIN_BYTES and value[0] == 0:
            try:
                if self._clock() >= self._ask_again_s or self._deserializer.knows_schema_of(value):
                    return self._deserializer.as_json(value)
            except RegistryUnavailableError as error:
                self._ask_again_s = self._clock() + ASK_AGAIN_S
                note(f"{error} Events are shown as bytes; it is asked again after {ASK_AGAIN_S:g} s")
            except (RegistryError, ValueError):
                # Not an event, although it begins like one; or this registry does not have its schema.
                pass
        return _as_text(value)


def _print_raw(value: bytes) -> None:
    """Writes a value's own bytes and a line end; to a terminal as text without control characters."""
    if is_terminal():
        write(value.decode(errors="backslashreplace") + "\n")
    else:
        write_bytes(value + b"\n")


def _print_json(record: ConsumerRecord, value: Any) -> None:
    row = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _as_text(record.key),
        "value": value,
        "headers": {name: _header(name, data) for name, data in record.headers},
    }
    write(json_text(row) + "\n")


def _print_line(record: ConsumerRecord, shown: str) -> None:
    # Escaped here, too: rich leaves some control characters out instead of showing them.
    key = escape(escaped_lines(_as_text(record.key) or ""))
    place = f"{record.partition}:{record.offset}  {in_time(record.timestamp_ms)}"
    out.print(f"[dim]{place}[/]  [bold]{key}[/]", end="  ")
    out.print(escaped_lines(shown), markup=False)


def _as_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def _header(name: str, data: bytes | None) -> Any:
    if name == "published-ms" and data is not None and len(data) == 8:
        return int.from_bytes(data, "big")
    return _as_text(data)
