"""The records that tests of Kafka clients produce (`Sample`), what clients read (`Got`), and its checker.

Nothing here depends on a client: the adapters are those of `fix_clients`.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, overload

import pytest

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
EVENT_TIME_MS: Final = 1_300_000_000_000
STEP_MS: Final = 10


class Sample(NamedTuple):
    """What is produced."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Got(NamedTuple):
    """What was read."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Read:
    """`count` records of a partition, from `offset`, or from the first not before `timestamp_ms`.

    `fetch_bytes` bounds what the client requests by one fetch; a batch may be larger.
    """

    topic: str
    count: int
    offset: int = 0
    timestamp_ms: int | None = None
    fetch_bytes: int | None = None
    partition: int = 0


class Samples(Sequence[Sample]):
    """Records that contain their number, half compressible, 10 to 110 bytes, 50 keys, 10 ms apart.

    They are made at their first use: every test process imports all tests.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._seed = seed

    @cached_property
    def _made(self) -> list[Sample]:
        draw = random.Random(self._seed)
        return [
            Sample(
                EVENT_TIME_MS + i * STEP_MS,
                b"member-%02d" % (i % 50),
                b"%08d|" % i
                + draw.randbytes(draw.randrange(25)).hex().encode()
                + b"view" * draw.randrange(12),
            )
            for i in range(self._count)
        ]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> list[Sample]: ...
    def __getitem__(self, place: int | slice) -> Sample | list[Sample]:
        return self._made[place]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._made)


def make_samples(count: int, *, seed: int = 2011) -> Samples:
    return Samples(count, seed)


def check_rows(rows: Sequence[Got], expected: Sequence[Sample], *, times: bool = True) -> None:
    """Every record once and in order, at increasing offsets. Names the first problem."""
    for position, (row, sample) in enumerate(zip(rows, expected, strict=False)):
        if (row.key, row.value) != (sample.key, sample.value):
            pytest.fail(f"record {position} at {row.offset} is {row.value!r:.60}, not {sample.value!r:.60}")
        if times and row.timestamp_ms != sample.timestamp_ms:
            pytest.fail(f"record {position} at {row.offset} has the time {row.timestamp_ms}")
    assert len(rows) == len(expected), f"read {len(rows)} records, not {len(expected)}"
    for earlier, later in itertools.pairwise(rows):
        assert earlier.offset < later.offset, f"offset {later.offset} came after {earlier.offset}"
