"""One setting: its name, type, default and bounds, and how its text becomes a value.

Owns the types of settings and the errors for bad values. `config` has the tables of all settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.broker.network.connection_limits import parse_ip_overrides
from headrace.broker.settings import cleanup
from headrace.coordination import declared
from headrace.replication import gaps, throttling

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
HOUR_MS: Final = str(3600 * 1000)
WEEK_MS: Final = str(7 * 24 * 3600 * 1000)


class ConfigError(Exception):
    """An unknown name or a value out of range, caused by the caller. The message says what is allowed."""


class SettingKind(NamedTuple):
    """A type: its number in DescribeConfigs, its name in errors, and the parser of its text."""

    number: int
    name: str
    parse: Callable[[str], Any]
    explains_errors: bool = False  # the parser's ValueErrors are written for people


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _parse_double(text: str) -> float:
    if not text.isascii() or "_" in text:
        raise ValueError("Python reads it, and Java does not")
    return float(text)


BOOLEAN: Final = SettingKind(1, "boolean", _parse_bool)
STRING: Final = SettingKind(2, "string", str)
INT: Final = SettingKind(3, "number", int)
LONG: Final = SettingKind(5, "number", int)
DOUBLE: Final = SettingKind(6, "number", _parse_double)
LIST: Final = SettingKind(7, "list", str)
CLEANUP: Final = SettingKind(7, "list", cleanup.parse, explains_errors=True)
IP_COUNTS: Final = SettingKind(2, "string", parse_ip_overrides, explains_errors=True)
GAPS: Final = SettingKind(7, "list", gaps.parse, explains_errors=True)
THROTTLED: Final = SettingKind(7, "list", throttling.parse, explains_errors=True)
HISTORY: Final = SettingKind(2, "string", declared.parse_history, explains_errors=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """One configurable value. `inherits_from`: the broker setting that is a topic setting's default."""

    name: str
    kind: SettingKind
    default: str
    doc: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    inherits_from: str | None = None

    def parse(self, text: str) -> Any:
        """Returns the value. Raises `ConfigError`."""
        try:
            value = self.kind.parse(text)
        except ValueError as error:
            problem = str(error) if self.kind.explains_errors else f"not a {self.kind.name}"
            raise ConfigError(f"{self.name}={text!r}: {problem}") from None
        is_in_range = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        if not is_in_range:  # as is what is no number at all: nan
            raise ConfigError(f"{self.name}={text}: must be from {self.low} to {self.high}")
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.name}={text}: must be {' or '.join(self.choices)}")
        return value
