"""Times as Avro's timestamp-millis, and back. fastavro writes datetimes, and reads datetimes or numbers."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.audit.times import OUTSIDE_MS, is_named


def hour_to_avro(hour_ms: int) -> datetime | int:
    """Returns the hour for Avro; that of times outside of year 1 to 9999 has no datetime."""
    return to_datetime(hour_ms) if is_named(hour_ms) else OUTSIDE_MS


def to_datetime(time_ms: int) -> datetime:
    """Returns the UTC datetime that fastavro writes as timestamp-millis."""
    seconds, ms = divmod(time_ms, 1_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1_000)


def to_ms(value: datetime | int) -> int:
    """Returns a timestamp-millis as milliseconds since the epoch; readers give a datetime or the number."""
    if isinstance(value, int):
        return value
    return int(value.replace(microsecond=0).timestamp()) * 1_000 + value.microsecond // 1_000
