"""The settings of a producer, checked once. Owns the bounds between them; `Producer` has the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self

from headrace.client.backoff import Backoff
from headrace.client.ordering import WINDOW_MAX
from headrace.wire.compression import Codec

Acks = Literal["all", 0, 1, -1, "0", "1", "-1"]

_ACKS: Final = {"all": -1, "-1": -1, -1: -1, "1": 1, 1: 1, "0": 0, 0: 0}


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The options of `Producer` in the units of the sender and the accumulator. Created by `checked`."""

    acks: int
    idempotent: bool
    codec: Codec
    batch_size_bytes: int
    linger_s: float
    buffer_memory_bytes: int
    blocks_when_full: bool
    max_block_s: float
    max_request_size_bytes: int
    delivery_timeout_s: float
    request_timeout_ms: int
    retry_backoff: Backoff
    in_flight_max: int
    boundary_ms: int | None

    @classmethod
    def checked(
        cls,
        *,
        acks: Acks,
        idempotent: bool | None,
        compression: str | Codec,
        batch_size_bytes: int,
        linger_ms: float,
        buffer_memory_bytes: int,
        on_full: Literal["block", "raise"],
        max_block_ms: float,
        max_request_size_bytes: int,
        delivery_timeout_ms: float,
        request_timeout_ms: float,
        retry_backoff_ms: float,
        retry_backoff_max_ms: float,
        max_in_flight: int,
        batch_boundary_ms: int | None,
    ) -> Self:
        """Raises `ValueError` naming the invalid option and its valid values."""
        acks_code, idempotent = _checked_acks(acks, idempotent, max_in_flight)
        if on_full not in ("block", "raise"):
            raise ValueError(f'on_full is "block" or "raise", not {on_full!r}')
        check_minimum(
            1,
            batch_boundary_ms=1 if batch_boundary_ms is None else batch_boundary_ms,
            batch_size_bytes=batch_size_bytes,
            max_request_size_bytes=max_request_size_bytes,
            max_in_flight=max_in_flight,
            request_timeout_ms=request_timeout_ms,
        )
        check_minimum(0, linger_ms=linger_ms, max_block_ms=max_block_ms, retry_backoff_ms=retry_backoff_ms)
        if buffer_memory_bytes < batch_size_bytes:
            raise ValueError(
                f"buffer_memory_bytes ({buffer_memory_bytes}) must hold one batch of {batch_size_bytes} bytes"
            )
        if delivery_timeout_ms < linger_ms + request_timeout_ms:
            raise ValueError(
                f"delivery_timeout_ms ({delivery_timeout_ms:g}) must be at least"
                f" linger_ms + request_timeout_ms ({linger_ms + request_timeout_ms:g})"
            )
        return cls(
            acks=acks_code,
            idempotent=idempotent,
            codec=Codec(compression) if isinstance(compression, Codec) else Codec.parse(compression),
            batch_size_bytes=min(batch_size_bytes, max_request_size_bytes),
            linger_s=linger_ms / 1000,
            buffer_memory_bytes=buffer_memory_bytes,
            blocks_when_full=on_full == "block",
            max_block_s=max_block_ms / 1000,
            max_request_size_bytes=max_request_size_bytes,
            delivery_timeout_s=delivery_timeout_ms / 1000,
            request_timeout_ms=int(request_timeout_ms),
            retry_backoff=Backoff(retry_backoff_ms, max(retry_backoff_ms, retry_backoff_max_ms)),
            in_flight_max=max_in_flight,
            boundary_ms=batch_boundary_ms,
        )


def _checked_acks(acks: Acks, idempotent: bool | None, max_in_flight: int) -> tuple[int, bool]:
    """Returns the protocol's acks and whether the producer is idempotent (None: if acks allow it)."""
    if acks not in _ACKS:
        raise ValueError(f'acks is "all", 1 or 0, not {acks!r}')
    code = _ACKS[acks]
    if idempotent is None:
        idempotent = code == -1
    if idempotent and code != -1:
        raise ValueError(f'an idempotent producer needs acks="all", not {acks!r}; or set idempotent=False')
    if idempotent and not 1 <= max_in_flight <= WINDOW_MAX:
        raise ValueError(f"max_in_flight of an idempotent producer is 1 to {WINDOW_MAX}, not {max_in_flight}")
    return code, idempotent


def check_minimum(minimum: int, **options: float) -> None:
    """Raises `ValueError` naming the first option below the minimum."""
    for name, value in options.items():
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")
