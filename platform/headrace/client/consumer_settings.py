"""The settings of a consumer, checked once. Owns their bounds; `Consumer` has the defaults."""

from __future__ import annotations

from typing import Final, Literal

from headrace.client.backoff import Backoff
from headrace.client.calls import EARLIEST, LATEST
from headrace.client.fetching import FetchSettings
from headrace.client.settings import check_minimum

Reset = Literal["earliest", "latest", "error"]
OnCorrupt = Literal["raise", "skip"]

_RESET: Final = {"earliest": EARLIEST, "latest": LATEST, "error": None}
_FIELD_MAX: Final = 2**31 - 1
"""What a Fetch can say: its bounds and its wait are 32 bits with a sign."""


def check_reading(*, on_corrupt: OnCorrupt, max_poll_records: int, request_timeout_ms: float) -> None:
    """Raises `ValueError` naming the invalid option and its valid values."""
    if on_corrupt not in ("raise", "skip"):
        raise ValueError(f'on_corrupt is "raise" or "skip", not {on_corrupt!r}')
    check_minimum(1, max_poll_records=max_poll_records, request_timeout_ms=request_timeout_ms)


def fetch_settings(
    *,
    fetch_min_bytes: int,
    fetch_max_wait_ms: int,
    fetch_max_bytes: int,
    max_partition_fetch_bytes: int,
    buffer_memory_bytes: int,
    auto_offset_reset: Reset,
    retry_backoff_ms: float,
    retry_backoff_max_ms: float,
) -> FetchSettings:
    """Returns the options in the units of the fetcher. Raises `ValueError` naming the invalid option."""
    if auto_offset_reset not in _RESET:
        raise ValueError(f"auto_offset_reset is one of {', '.join(_RESET)}, not {auto_offset_reset!r}")
    check_minimum(0, fetch_min_bytes=fetch_min_bytes, fetch_max_wait_ms=fetch_max_wait_ms)
    check_minimum(0, retry_backoff_ms=retry_backoff_ms)
    check_minimum(
        1,
        fetch_max_bytes=fetch_max_bytes,
        max_partition_fetch_bytes=max_partition_fetch_bytes,
        buffer_memory_bytes=buffer_memory_bytes,
    )
    _check_fits(
        fetch_min_bytes=fetch_min_bytes,
        fetch_max_wait_ms=fetch_max_wait_ms,
        fetch_max_bytes=fetch_max_bytes,
        max_partition_fetch_bytes=max_partition_fetch_bytes,
    )
    return FetchSettings(
        min_bytes=fetch_min_bytes,
        max_wait_ms=fetch_max_wait_ms,
        max_bytes=fetch_max_bytes,
        partition_max_bytes=max_partition_fetch_bytes,
        buffer_memory_bytes=buffer_memory_bytes,
        reset=_RESET[auto_offset_reset],
        backoff=Backoff(retry_backoff_ms, max(retry_backoff_ms, retry_backoff_max_ms)),
    )


def _check_fits(**options: int) -> None:
    for name, value in options.items():
        if value > _FIELD_MAX:
            raise ValueError(f"{name} must be at most {_FIELD_MAX}, not {value}")
