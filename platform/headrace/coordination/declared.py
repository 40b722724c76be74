"""What a topic's configuration declares about its producers: whether they report their counts to the audit.

Owns the names and values of both settings, and the text in which a topic keeps when its declaration changed.
The brokers write the history, so that no client changes what was declared for an hour that has begun. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

PRODUCERS: Final = "headrace.producers"
HISTORY: Final = "headrace.producers.history"
REPORTING: Final = "reporting"
ANY: Final = "any"
DECLARATIONS: Final = (REPORTING, ANY)
WRITTEN_BY_BROKERS: Final = f"{HISTORY} is written by the brokers alone; change {PRODUCERS}"

CHANGES_MAX: Final = 500
HOUR_MS: Final = 3_600_000
_HOUR_FORMAT: Final = "%Y-%m-%dT%HZ"


class Change(NamedTuple):
    """What is declared for the hours from `from_ms` on; None: for all hours until the next change."""

    producers: str
    from_ms: int | None = None

    def __str__(self) -> str:
        if self.from_ms is None:
            return self.producers
        return f"{self.producers}@{datetime.fromtimestamp(self.from_ms / 1000, UTC).strftime(_HOUR_FORMAT)}"


def parse_history(text: str) -> tuple[Change, ...]:
    """Returns the changes in `reporting,any@2026-11-22T15Z`; "" has none. Raises `ValueError`."""
    changes: list[Change] = []
    for word in filter(None, text.split(",")):
        producers, at, hour = word.partition("@")
        from_ms = _hour_ms(hour) if at else None
        before = changes[-1].from_ms if changes else None
        is_ordered = (from_ms is None) == (not changes) and (before is None or (from_ms or 0) > before)
        if producers not in DECLARATIONS or not is_ordered:
            raise ValueError("must be such as reporting,any@2026-11-22T15Z, in the order of the hours")
        changes.append(Change(producers, from_ms))
    if len(changes) > CHANGES_MAX:
        raise ValueError(f"has {len(changes)} changes, at most {CHANGES_MAX}")
    return tuple(changes)


def _hour_ms(text: str) -> int:
    parsed = datetime.strptime(text, _HOUR_FORMAT).replace(tzinfo=UTC)
    return int(parsed.timestamp()) * 1000


def history_of(config: Mapping[str, str]) -> tuple[Change, ...]:
    """Returns the changes of a topic with this configuration, the first one for all hours before.

    A history that cannot be read, or that does not end with what is declared, counts as `reporting`: the
    audit then asks for more, never for less. Never empty.
    """
    declared = config.get(PRODUCERS) or REPORTING
    try:
        changes = parse_history(config.get(HISTORY, ""))
    except ValueError:
        return (Change(REPORTING),)
    if not changes:
        return (Change(declared),)
    return changes if changes[-1].producers == declared else (Change(REPORTING),)


def with_history(
    present: Mapping[str, str], wanted: Mapping[str, str], now_ms: int, latest_ms: int | None = None
) -> dict[str, str]:
    """Returns a topic's new configuration with its history: a change applies to the hours after this one.
    `latest_ms`: the present time may be as late as that, where clocks differ: from then on the audit may ask
    for less, and from `now_ms` on for more.

    Raises `ValueError` if `wanted` changes the history itself, or if it would have too many changes.
    """
    kept = present.get(HISTORY, "")
    if wanted.get(HISTORY, kept) != kept:
        raise ValueError(WRITTEN_BY_BROKERS)
    result = dict(wanted)
    if kept:
        result[HISTORY] = kept  # AlterConfigs replaces all settings
    before, after = (config.get(PRODUCERS) or REPORTING for config in (present, wanted))
    if before == after:
        return result
    at_ms = now_ms if after == REPORTING else max(now_ms, latest_ms or now_ms)
    from_ms = at_ms - at_ms % HOUR_MS + HOUR_MS
    earlier = [change for change in history_of(present) if change.from_ms is None or change.from_ms < from_ms]
    changes = [*earlier, Change(after, from_ms)]
    if earlier[-1].producers == after:
        changes.pop()  # it was changed and changed back within one hour
    if len(changes) > CHANGES_MAX:
        raise ValueError(f"{PRODUCERS} was changed {CHANGES_MAX} times, which is the most that a topic keeps")
    result[HISTORY] = ",".join(map(str, changes))
    return result
