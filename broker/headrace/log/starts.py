"""Known starts: sparse addresses at which batches begin, and the greatest timestamp of each span.

The lookup structure of one segment. It does not read files: code that reads or writes batches records them
here, in order and without a gap; `log.index` stores them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

SPAN_BYTES: Final = 32 * 1024  # a lookup scans at most this much, plus one batch
SPARSE_SPAN_BYTES: Final = 1024 * 1024  # between the starts that a checkpoint stores
NO_TIMESTAMP: Final = -1


class KnownStarts:
    """Addresses of batches, at least `SPAN_BYTES` apart, from the segment's base up to `covered_address`."""

    __slots__ = ("_addresses", "_max_timestamps_ms", "covered_address", "max_timestamp_ms")

    def __init__(self, base_address: int) -> None:
        self._addresses = array("q", (base_address,))
        self._max_timestamps_ms = array("q", (NO_TIMESTAMP,))
        self.covered_address = base_address
        self.max_timestamp_ms = NO_TIMESTAMP

    def note(self, address: int, size_bytes: int, max_timestamp_ms: int) -> None:
        """Records the next batch, which begins at `covered_address`."""
        if address - self._addresses[-1] >= SPAN_BYTES:
            self._addresses.append(address)
            self._max_timestamps_ms.append(max_timestamp_ms)
        elif max_timestamp_ms > self._max_timestamps_ms[-1]:
            self._max_timestamps_ms[-1] = max_timestamp_ms
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
        self.covered_address = address + size_bytes

    def before(self, address: int) -> int:
        """Returns the greatest known start at or before `address`, which is not before the segment's base."""
        if address >= self.covered_address:
            return self.covered_address
        return self._addresses[bisect_right(self._addresses, address) - 1]

    def first_span_reaching(self, timestamp_ms: int) -> int | None:
        """Returns the start of the first span with a timestamp of `timestamp_ms` or later, or `None`."""
        if timestamp_ms > self.max_timestamp_ms:
            return None
        for index, greatest in enumerate(self._max_timestamps_ms):
            if greatest >= timestamp_ms:
                return self._addresses[index]
        return None

    def greatest_before(self, address: int) -> int:
        """Returns the greatest timestamp of the spans before `address`, a known start or the covered
        address."""
        return max(self._max_timestamps_ms[: bisect_left(self._addresses, address)], default=NO_TIMESTAMP)

    def sparse(self) -> list[int]:
        """Returns known starts behind the base, at least `SPARSE_SPAN_BYTES` apart."""
        found, at = [], bisect_left(self._addresses, self._addresses[0] + SPARSE_SPAN_BYTES)
        while at < len(self._addresses):
            found.append(self._addresses[at])
            at = bisect_left(self._addresses, found[-1] + SPARSE_SPAN_BYTES, at)
        return found

    def copy(self) -> KnownStarts:
        """Returns an independent copy, for any thread."""
        made = KnownStarts(self._addresses[0])
        made._addresses = self._addresses[:]
        made._max_timestamps_ms = self._max_timestamps_ms[:]
        made.covered_address = self.covered_address
        made.max_timestamp_ms = self.max_timestamp_ms
        return made

    @property
    def base_address(self) -> int:
        """The address of the segment's first byte."""
        return self._addresses[0]

    def after(self, address: int) -> int | None:
        """Returns the least known start after `address`, `None` if there is none."""
        at = bisect_right(self._addresses, address)
        return self._addresses[at] if at < len(self._addresses) else None

    def to_bytes(self) -> bytes:
        """Returns addresses, then timestamps, as little-endian int64."""
        return b"".join(
            _little_endian(values).tobytes() for values in (self._addresses, self._max_timestamps_ms)
        )

    @classmethod
    def from_bytes(cls, content: bytes, covered_address: int, max_timestamp_ms: int) -> KnownStarts:
        """The reverse of `to_bytes`. Raises `ValueError` for another size."""
        half = len(content) // 2
        addresses, timestamps_ms = array("q"), array("q")
        addresses.frombytes(content[:half])
        timestamps_ms.frombytes(content[half:])
        if not addresses or len(addresses) != len(timestamps_ms):
            raise ValueError(f"{len(content)} bytes are not pairs of int64")
        made = cls(0)
        made._addresses = _little_endian(addresses)
        made._max_timestamps_ms = _little_endian(timestamps_ms)
        made.covered_address = covered_address
        made.max_timestamp_ms = max_timestamp_ms
        return made

    def __len__(self) -> int:
        return len(self._addresses)


def thinned(addresses: Iterable[int], base_address: int) -> list[int]:
    """Returns those that are at least `SPARSE_SPAN_BYTES` behind the base and one another, ascending."""
    found = []
    for address in sorted(addresses):
        if address >= base_address + SPARSE_SPAN_BYTES:
            found.append(address)
            base_address = address
    return found


def _little_endian(values: array[int]) -> array[int]:
    """Returns the values with the bytes of each in the other order, on a big-endian machine."""
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped
