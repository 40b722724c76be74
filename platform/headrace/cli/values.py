"""Values on the command line: times, durations, sizes, NAME=VALUE pairs. Pure.

Every command reads them here: all accept the same forms, and every error names the value and the forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import TIME_MAX_MS
from headrace.process.clock import now_ms
from headrace.process.timestamps import time_problem

NUMBER_MAX: Final = 2**63 - 1
"""Of milliseconds and bytes: settings and requests have numbers of 64 bits."""
PARTITIONS_MAX: Final = 2000
"""Of a new topic: `coordination.topics.PARTITIONS_PER_CHANGE_MAX`, which takes long to import."""
UNIX_DIGITS_MIN: Final = 9
"""A number of so many digits is meant as a Unix time, in whatever unit; one of eight is a date."""
TIME_FORMS: Final = (
    "2015-05-17, 2015-05-17T10, 2015-05-17T10:05:00Z, now, -1h (an hour ago), or Unix milliseconds"
)
DURATION_FORMS: Final = "a number with ms, s, m, h, d or w, such as 90s, 12h, 7d or 1h30m"
SIZE_FORMS: Final = "a number with B, KiB, MiB, GiB, TiB, kB, MB, GB or TB, such as 512KiB or 10GiB"

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|min|m|h|d|w))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d|w)")
_SIZES: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


def parse_time_ms(text: str, at_ms: int | None = None) -> int:
    """Returns Unix ms of one of `TIME_FORMS`; a time without a zone is UTC. `at_ms` is now.

    A number of seconds or microseconds is refused by that word.
    """
    candidate = text.strip()
    present_ms = now_ms() if at_ms is None else at_ms
    if candidate == "now":
        return present_ms
    if candidate[:1] in ("-", "+") and _DURATION.fullmatch(candidate[1:]):
        return _in_range(text, present_ms + parse_signed(candidate, parse_duration_ms))
    if candidate.isascii() and candidate.isdigit() and len(candidate) >= UNIX_DIGITS_MIN:
        if problem := time_problem(int(candidate)):
            raise CommandError(f"{text!r} is not a time: {problem}; write {TIME_FORMS}", ExitCode.USAGE)
        return int(candidate)
    if len(candidate) == len("2015-05-17T10"):
        candidate += ":00"
    try:
        moment = datetime.fromisoformat(candidate)
    except ValueError:
        raise CommandError(f"{text!r} is not a time; write {TIME_FORMS}", ExitCode.USAGE) from None
    return _in_range(text, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def is_day(text: str) -> bool:
    """Whether a text is a date without a time of day: as a time it is the day's first moment."""
    try:
        date.fromisoformat(text.strip())
    except ValueError:
        return False
    return True


def _in_range(text: str, moment_ms: int) -> int:
    """Returns the moment. Negative ones have other meanings in requests: -1 is the end of a log."""
    if not 0 <= moment_ms <= TIME_MAX_MS:
        raise CommandError(f"{text!r} is not a time from 1970 to 9999; write {TIME_FORMS}", ExitCode.USAGE)
    return moment_ms


def parse_duration_ms(text: str) -> int:
    """Returns the ms of one of `DURATION_FORMS`."""
    candidate = text.strip().lower()
    if not _DURATION.fullmatch(candidate):
        raise CommandError(f"{text!r} is not a duration; write {DURATION_FORMS}", ExitCode.USAGE)
    duration_ms = sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(candidate))
    if duration_ms > float(NUMBER_MAX):
        raise CommandError(
            f"{text[:40]!r} is more than {NUMBER_MAX} ms, the longest duration", ExitCode.USAGE
        )
    return round(duration_ms)


def parse_span_ms(text: str, unit: str, *, option: str, least_ms: int = 0, most_ms: int | None = None) -> int:
    """Returns the ms of a duration, or of a bare number in `unit`: options such as --keep-hours take both.

    Errors name the option.
    """
    candidate = text.strip()
    is_bare = re.fullmatch(r"\d+(\.\d+)?", candidate)
    span_ms = _named(option, parse_duration_ms, candidate + unit if is_bare else candidate)
    if span_ms < least_ms or (most_ms is not None and span_ms > most_ms):
        most = "" if most_ms is None else f" and at most {most_ms / _UNITS_MS[unit]:g}{unit}"
        raise CommandError(
            f"{option} {text!r} must be at least {least_ms / _UNITS_MS[unit]:g}{unit}{most}", ExitCode.USAGE
        )
    return span_ms


def parse_size_bytes(text: str) -> int:
    """Returns the bytes of one of `SIZE_FORMS`; a bare number is bytes."""
    found = _SIZE.fullmatch(text.strip())
    factor = _SIZES.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise CommandError(f"{text!r} is not a size; write {SIZE_FORMS}", ExitCode.USAGE)
    if float(found[1]) * factor > float(NUMBER_MAX):
        raise CommandError(f"{text[:40]!r} is more than {NUMBER_MAX} bytes, the largest size", ExitCode.USAGE)
    return round(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor


def parse_signed(text: str, parse: Callable[[str], int]) -> int:
    """Returns what `parse` makes of the text without its sign, with that sign."""
    sign, rest = (text[0], text[1:]) if text[:1] in ("-", "+") else ("+", text)
    value = parse(rest)
    return -value if sign == "-" else value


def _named(name: str, parse: Callable[[str], int], text: str) -> int:
    """Returns what `parse` makes of the text; its error begins with the name of what the text is for."""
    try:
        return parse(text)
    except CommandError as error:
        raise CommandError(f"{name}: {error}", error.exit_code) from None


def given_bytes(word: str) -> bytes:
    """Returns the bytes of a word of the command line as they were given: they need not be UTF-8."""
    return word.encode(errors="surrogateescape")


def parse_pairs(words: Iterable[str], option: str) -> list[tuple[str, str]]:
    """Parses `["retention.ms=1000"]` into `[("retention.ms", "1000")]`. Errors name the option."""
    pairs = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise CommandError(f"{option} {word!r} is not NAME=VALUE", ExitCode.USAGE)
        pairs.append((name, value))
    return pairs


def parse_settings(words: Iterable[str], option: str = "--config") -> dict[str, str]:
    """Like `parse_pairs`, for settings: `retention.ms=7d` and `retention.bytes=10GiB` become plain numbers.

    A value that has no unit stays as it is: the broker checks it.
    """
    return {name: _setting(name, value) for name, value in parse_pairs(words, option)}


def _setting(name: str, value: str) -> str:
    if not value or re.fullmatch(r"[+-]?\d+", value):
        return value
    if name.endswith(".ms"):
        return str(_named(name, parse_duration_ms, value))
    if name.endswith(".bytes"):
        return str(_named(name, parse_size_bytes, value))
    return value


def where_given(option: str) -> Callable[[str | None], str | None]:
    """Returns a check of what says where a command works: an empty word, such as a variable that is not set,
    must not mean the default instead of what was meant.
    """

    def check(text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise CommandError(
                f"{option} {text!r} names nothing: give a value, or leave the option out", ExitCode.USAGE
            )
        return text

    return check


def given_path(text: str) -> Path:
    """Returns a path of the command line. The path of an empty word would be the folder where one happens to
    be, and a backup, say, would go there day after day.
    """
    if not text:
        raise CommandError(
            "'' is no path: is a variable not set? `.` is the folder where you are", ExitCode.USAGE
        )
    return Path(text)


def registry_urls(text: str | None) -> str | None:
    """Checks what --registry gives: one URL, or several."""
    if text is not None:
        from headrace.registry.urls import parse_urls

        try:
            if not parse_urls(text):
                raise ValueError(f"{text!r} is no registry's URL")
        except ValueError as error:
            raise CommandError(f"--registry: {error}", ExitCode.USAGE) from None
    return text
