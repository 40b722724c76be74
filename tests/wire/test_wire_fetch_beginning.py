"""Where a Fetch response's first records begin, told by its first bytes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.fetch import (
    TOPIC_IDS_FROM,
    VERSION_MAX,
    FetchPartitionResult,
    FetchResponse,
    FetchTopicResult,
    encode_response,
)
from headrace.wire.fetch_beginning import FirstRecords, first_records
from headrace.wire.primitives import Buffer

ID = UUID(int=7)
RECORDS = b"r" * 5_000


def frame(
    records: Buffer | None = RECORDS,
    *,
    version: int = VERSION_MAX,
    aborted: tuple[tuple[int, int], ...] | None = None,
) -> memoryview:
    """Returns the response without its length."""
    results = [
        FetchPartitionResult(3, 0, 10, records, aborted=aborted),
        FetchPartitionResult(4, 0, 10, b"other"),
    ]
    pieces = encode_response(
        FetchResponse([FetchTopicResult("t", ID, results)], session_id=9), version=version, correlation_id=1
    )
    whole = b"".join(bytes(piece) for piece in pieces if not isinstance(piece, int))
    return memoryview(whole)[4:]


@pytest.mark.parametrize("version", range(TOPIC_IDS_FROM, VERSION_MAX + 1))
def test_it_is_where_the_decoder_finds_them(version: int) -> None:
    first = first_records(frame(version=version), version)
    assert first == FirstRecords(ID, 3, bytes(frame(version=version)).index(RECORDS))


@given(st.integers(0, 200))
def test_a_beginning_tells_all_or_nothing(size_bytes: int) -> None:
    whole = frame()
    first = first_records(whole, VERSION_MAX)
    assert first is not None
    told = first_records(whole[:size_bytes], VERSION_MAX)
    assert told == (first if size_bytes >= first.at else None)


@given(st.binary(max_size=120), st.integers(0, VERSION_MAX + 1))
def test_any_bytes_are_taken(beginning: bytes, version: int) -> None:
    first = first_records(memoryview(beginning), version)
    assert first is None or first.at > 0


@pytest.mark.parametrize(
    "beginning",
    [frame(None), frame(b""), frame(aborted=((1, 2),)), frame(version=TOPIC_IDS_FROM - 1)],
    ids=["no records", "empty records", "aborted transactions", "by name"],
)
def test_other_answers_have_no_place(beginning: memoryview) -> None:
    version = TOPIC_IDS_FROM - 1 if beginning == frame(version=TOPIC_IDS_FROM - 1) else VERSION_MAX
    assert first_records(beginning, version) is None
