"""What a valid record is, and that the two scanners, in Python and in LuaJIT, never differ."""

import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.checking import (
    ANY_TIMESTAMP,
    InvalidRecordError,
    InvalidTimestampError,
    Scan,
    Scanner,
    TimestampDeltas,
    check_record,
    deltas_within,
    is_plain_record,
    scan_records,
)
from headrace.wire.checking_fast import make_scanner
from headrace.wire.records import pack_record
from headrace.wire.varints import zigzag

FAST, IS_FAST = make_scanner()
HEADERS: Final = (("h", b"v"), ("", None))

needs_lupa = pytest.mark.skipif(not IS_FAST, reason="the package lupa is not installed")


def packed(count: int = 3, delta_ms: int = 5) -> bytearray:
    return bytearray(b"".join(pack_record(i, delta_ms * i, b"key", b"value", HEADERS) for i in range(count)))


def body(*fields: bytes) -> bytearray:
    """A record of these fields, with the right length before them."""
    inside = b"".join(fields)
    return bytearray(zigzag(len(inside)) + inside)


NO_ATTRIBUTES, ZERO, NULL = b"\x00", b"\x00", b"\x01"
PLAIN: Final = (NO_ATTRIBUTES, ZERO, ZERO, NULL, NULL, ZERO)


def with_field(place: int, field: bytes) -> bytearray:
    return body(*PLAIN[:place], field, *PLAIN[place + 1 :])


INVALID: Final = {
    "negative length": bytearray(zigzag(-7) + bytes(8)),
    "length beyond the end": bytearray(zigzag(50) + bytes(8)),
    "too short for its fields": bytearray(zigzag(5) + bytes(5)),
    "length in a longer form": bytearray(b"\x8c\x00") + body(*PLAIN)[1:],
    "length of six bytes": bytearray(b"\x8c\x80\x80\x80\x80\x00") + body(*PLAIN)[1:],
    "length beyond 32 bits": bytearray(b"\x8c\x80\x80\x80\x10") + body(*PLAIN)[1:],
    "attributes": with_field(0, b"\x01"),
    "timestamp delta in a longer form": with_field(1, b"\x80\x00"),
    "timestamp delta of eight bytes": with_field(1, b"\x80" * 7 + b"\x01"),
    "offset delta": with_field(2, zigzag(1)),
    "negative offset delta": with_field(2, zigzag(-1)),
    "negative key": with_field(3, zigzag(-2)),
    "key beyond the record": with_field(3, zigzag(3)),
    "absurd value": with_field(4, zigzag(2**31 - 1)),
    "negative number of headers": with_field(5, zigzag(-1)),
    "more headers than bytes": with_field(5, zigzag(2)),
    "absurd number of headers": with_field(5, zigzag(2**31 - 1)),
    "header without a name": body(*PLAIN[:5], zigzag(1), NULL, NULL),
    "header of a negative value": body(*PLAIN[:5], zigzag(1), ZERO, zigzag(-2)),
    "header beyond the record": body(*PLAIN[:5], zigzag(1), zigzag(2), b"n", NULL),
    "bytes after the last header": body(*PLAIN, b"\x00"),
    "ends inside a varint": body(*PLAIN[:5], b"\x80"),
}


@pytest.mark.parametrize("raw", INVALID.values(), ids=INVALID.keys())
def test_what_a_record_must_not_be(raw: bytearray) -> None:
    with pytest.raises(InvalidRecordError, match="record 0: "):
        check_record(raw, 0, 0, ANY_TIMESTAMP)
    assert scan_records(raw, 1, ANY_TIMESTAMP) == FAST(raw, 1, ANY_TIMESTAMP) == (0, 0, None)
    following = pack_record(0, 0, None, b"v", ()) + raw
    assert scan_records(following, 2, ANY_TIMESTAMP) == FAST(following, 2, ANY_TIMESTAMP)


def test_valid_records_and_their_latest_timestamp() -> None:
    for scan in (scan_records, FAST):
        assert scan(packed(), 3, ANY_TIMESTAMP) == (3, len(packed()), 10)
        assert scan(packed(delta_ms=-5), 3, ANY_TIMESTAMP) == (3, len(packed(delta_ms=-5)), 0)
        assert scan(bytes(packed()), 3, ANY_TIMESTAMP).valid == 3, "read-only memory"
        assert scan(packed() + b"more", 3, ANY_TIMESTAMP).at == len(packed())
        assert scan(packed(), 4, ANY_TIMESTAMP) == (3, len(packed()), 10), "fewer records than announced"
        assert scan(b"", 1, ANY_TIMESTAMP) == (0, 0, None)
        assert scan(packed()[:-1], 3, ANY_TIMESTAMP).valid == 2


def test_timestamps_out_of_bounds_are_found_by_their_record() -> None:
    for scan in (scan_records, FAST):
        assert scan(packed(), 3, (0, 9, -100)).valid == 2
        assert scan(packed(), 3, (1, 10, -100)).valid == 0
        assert scan(packed(), 3, (5, 10, 0)).valid == 3, "the first one has no timestamp"
    with pytest.raises(InvalidTimestampError) as caught:
        check_record(packed(1, 0), 0, 0, (1, 2, -1))
    assert (caught.value.index, caught.value.delta_ms) == (0, 0)


@pytest.mark.parametrize("base_ms", [0, -1, 1_700_000_000_000, 2**63 - 1, -(2**63)])
def test_bounds_stay_numbers_that_both_scanners_compare_exactly(base_ms: int) -> None:
    deltas = deltas_within(0, 2**63 - 1, base_ms)
    assert all(abs(delta_ms) <= 2**48 + 1 for delta_ms in deltas)
    assert scan_records(packed(), 3, deltas) == FAST(packed(), 3, deltas)


def test_a_record_without_a_key_where_each_must_have_one() -> None:
    keys = (b"k", b"", None, b"k")
    raw = bytearray(b"".join(pack_record(at, 0, key, b"v", ()) for at, key in enumerate(keys)))
    for scan in (scan_records, FAST):
        assert scan(raw, 4, ANY_TIMESTAMP).valid == 4
        found = scan(raw, 4, ANY_TIMESTAMP, needs_keys=True)
        assert found.valid == 2
        with pytest.raises(InvalidRecordError, match="record 2: it has no key"):
            check_record(raw, found.at, found.valid, ANY_TIMESTAMP, needs_key=True)


# --- single records ---


@given(st.one_of(st.binary(max_size=40), st.binary(max_size=300).map(lambda inside: bytes(body(inside)))))
def test_no_arbitrary_bytes_are_a_plain_record_unless_they_are_valid(data: bytes) -> None:
    if is_plain_record(data, 0, len(data)):
        assert scan_records(data, 1, (0, 0, 0)) == (1, len(data), 0)


@given(
    st.sampled_from([None, b"", b"k", b"k" * 63, b"k" * 64, b"k" * 8_000]),
    st.sampled_from([None, b"", b"v", b"v" * 63, b"v" * 64, b"v" * 8_100, b"v" * 9_000]),
    st.data(),
)
def test_mutated_single_records(key: bytes | None, value: bytes | None, data: st.DataObject) -> None:
    raw = bytearray(pack_record(0, 0, key, value, ()))
    assert is_plain_record(raw, 0, len(raw)) == (len(raw) < 8_194)
    assert is_plain_record(b"--" + raw, 2, 2 + len(raw)) == (len(raw) < 8_194)
    at = data.draw(st.integers(0, min(12, len(raw) - 1)))
    raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    if is_plain_record(raw, 0, len(raw)):
        assert scan_records(raw, 1, (0, 0, 0)) == (1, len(raw), 0)


# --- the two scanners ---

DELTAS = st.sampled_from([ANY_TIMESTAMP, (0, 100, -1), (-(2**40), 2**47, 7)])


@needs_lupa
@given(st.binary(max_size=200), st.integers(1, 20), DELTAS, st.booleans())
def test_scanners_agree_on_arbitrary_bytes(
    data: bytes, count: int, deltas: TimestampDeltas, needs_keys: bool
) -> None:
    found = scan_records(data, count, deltas, needs_keys=needs_keys)
    assert found == FAST(data, count, deltas, needs_keys=needs_keys)


SIZES = st.sampled_from([0, 1, 3, 63, 64, 127, 128, 8191, 8192])
SIZED = st.one_of(st.none(), SIZES.map(bytes))
RECORDS = st.lists(
    st.tuples(
        st.one_of(st.integers(-5, 300), st.integers(-(2**50), 2**50)),
        SIZED,
        SIZED,
        st.lists(st.tuples(st.sampled_from(["", "n", "name" * 20]), SIZED), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


@needs_lupa
@given(RECORDS, DELTAS, st.booleans(), st.data())
def test_scanners_agree_on_mutated_batches(
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    deltas: TimestampDeltas,
    needs_keys: bool,
    data: st.DataObject,
) -> None:
    def scanned(scan: Scanner) -> Scan:
        return scan(raw, len(records), deltas, needs_keys=needs_keys)

    raw = bytearray(b"".join(pack_record(i, *fields) for i, fields in enumerate(records)))
    assert scanned(scan_records) == scanned(FAST)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not raw:
            return
    assert scanned(scan_records) == scanned(FAST)


@needs_lupa
def test_scanners_agree_on_batches_that_are_compiled() -> None:
    """LuaJIT interprets short batches; long ones run as machine code."""
    dice = random.Random(2011)
    for _ in range(6):
        raw = bytearray(
            b"".join(
                pack_record(
                    i,
                    dice.choice((0, 5, 300, 20_000, -3, 2**40)),
                    dice.choice((None, b"", b"k" * 9)),
                    dice.choice((None, b"v" * 90, b"v" * 9_000)),
                    HEADERS * dice.choice((0, 0, 1, 3)),
                )
                for i in range(2_000)
            )
        )
        for needs in (False, True):
            assert FAST(raw, 2_000, ANY_TIMESTAMP, needs_keys=needs) == scan_records(
                raw, 2_000, ANY_TIMESTAMP, needs_keys=needs
            )
        for _ in range(5):
            raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
            assert FAST(raw, 2_000, ANY_TIMESTAMP) == scan_records(raw, 2_000, ANY_TIMESTAMP)
