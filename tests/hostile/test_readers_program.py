"""Arbitrary bytes against the compiled loops: nothing out of bounds, no endless loop; fastavro judges."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.warehouse.layout import DEAD_HOUR, HOUR_MS
from headrace.warehouse.source.events import Events, Payloads, decode
from headrace.warehouse.source.kernel import OWN_TIMESTAMPS, copy_records, empty_columns
from headrace.warehouse.source.program import compile_program

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {
            "name": "header",
            "type": {
                "type": "record",
                "name": "Header",
                "fields": [{"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
            },
        },
        {"name": "text", "type": "string"},
        {"name": "maybe", "type": ["null", "bytes"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "key", "type": {"type": "fixed", "name": "Key", "size": 4}},
        {"name": "flag", "type": "boolean"},
        {"name": "ratio", "type": "double"},
        {"name": "small", "type": "int"},
    ],
}
NARROW = SCHEMA | {"fields": [SCHEMA["fields"][0]]}
"""A reader that skips all but the first field."""
WHOLE, SKIPPING = (
    compile_program(json.dumps(reader), {7: json.dumps(SCHEMA)}) for reader in (SCHEMA, NARROW)
)
GOOD = {
    "header": {"time": 3 * HOUR_MS},
    "text": "some text",
    "maybe": b"bytes",
    "kind": "B",
    "key": b"1234",
    "flag": True,
    "ratio": 0.5,
    "small": -3,
}


def packed(event: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, event)
    return out.getvalue()


def decoded(values: list[bytes], program: Any = WHOLE, schema_id: int = 7) -> Events:
    """Decodes values that lie between bytes which no record may touch."""
    data = b"\x02" * 16 + b"".join(values) + b"\x02" * 16
    ends = np.cumsum([16, *map(len, values)]).astype(np.int64)
    ids = np.full(len(values), schema_id, np.int32)
    return decode(Payloads(np.frombuffer(data, np.uint8), ends[:-1], ends[1:], ids), program, None)


def is_sound(value: bytes, reader: dict[str, Any]) -> bool:
    """Whether fastavro reads a whole record whose time has an hour."""
    data = io.BytesIO(value)
    try:
        event: Any = fastavro.schemaless_reader(data, RAW, reader)
    except Exception:  # any, for arbitrary bytes
        return False
    return data.tell() == len(value) and 0 <= event["header"]["time"] < 253_402_300_800_000


RAW: dict[str, Any] = {
    **SCHEMA,
    "fields": [
        {
            "name": "header",
            "type": {"type": "record", "name": "Header", "fields": [{"name": "time", "type": "long"}]},
        },
        *SCHEMA["fields"][1:],
    ],
}
RAW_NARROW = RAW | {"fields": [RAW["fields"][0]]}
VARINTS = st.sampled_from(
    [
        b"\xff" * 9 + b"\x01",  # the least long
        b"\xfe" + b"\xff" * 8 + b"\x01",  # the greatest
        b"\x80" * 9 + b"\x01",  # 2^62
        b"\xff" * 11,  # longer than any number
        b"\x80" * 40,
        b"\x01",
        b"\x04",
        b"\x80\x80\x80\x80\x10",  # 2^31: no int
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_hostile_values_are_refused_and_their_neighbours_decoded(choices: st.DataObject) -> None:
    good = packed(GOOD)
    at = choices.draw(st.integers(0, len(good)))
    hostile = choices.draw(
        st.one_of(
            st.binary(max_size=60),
            st.just(good[:at]),
            st.binary(min_size=1, max_size=20).map(lambda noise: good[:at] + noise + good[at:]),
            VARINTS.map(lambda number: good[:at] + number + good[at + 1 :]),
            st.lists(VARINTS, max_size=8).map(b"".join),
        )
    )
    for program in (WHOLE, SKIPPING):
        events = decoded([good, hostile, good], program)
        assert (events.hours[0], events.hours[2]) == (3, 3)
        if events.hours[1] == DEAD_HOUR:
            continue
        for column in events.columns:
            column.validate(full=True)
        assert is_sound(hostile, RAW if program is WHOLE else RAW_NARROW)
    assert list(decoded([good, hostile], schema_id=8).hours) == [DEAD_HOUR] * 2


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=120), st.integers(1, 60), st.booleans(), st.booleans())
def test_the_record_loop_writes_into_its_columns_alone(
    noise: bytes, count: int, with_keys: bool, is_unframing: bool
) -> None:
    suffix = np.frombuffer(b"12345678" if is_unframing else b"", np.uint8)
    room = len(noise) + count * suffix.size
    columns = empty_columns(count + 8, room + 8, room + 8)
    for column in columns[1:]:
        column[:] = 77
    columns.key_ends[0] = columns.value_ends[0] = 0
    base = (count, 0, count - 1, 2**63 - 1, OWN_TIMESTAMPS)
    selection = (-(1 << 62), 1 << 62, with_keys, is_unframing, suffix)
    copy_records(np.frombuffer(noise, np.uint8), base, selection, tuple(columns))
    rows, key_bytes, value_bytes, is_broken = columns.state.tolist()
    assert (rows == 0) == bool(is_broken)
    assert rows in (0, count)
    assert key_bytes <= len(noise) and value_bytes <= room
    for column in (columns.offsets, columns.timestamps_us, columns.schema_ids, columns.value_valid):
        assert set(column[count:].tolist()) == {77}
    assert set(columns.values[room:].tolist()) == set(columns.keys[room:].tolist()) == {77}


BOUNDS_CHECKED = """
import random, sys
import numpy as np
sys.path.insert(0, {tests!r})
from test_readers_program import GOOD, SKIPPING, WHOLE, decoded, packed
from headrace.warehouse.source.kernel import OWN_TIMESTAMPS, copy_records, empty_columns

rng = random.Random(11)
good = packed(GOOD)
odd = [b"\\xff" * 9 + b"\\x01", b"\\xfe" + b"\\xff" * 8 + b"\\x01"]
odd += [b"\\x80" * 9 + b"\\x01", b"\\x80" * 12, b"\\x7f"]
for _ in range(4000):
    at = rng.randrange(len(good))
    spoiled = good[:at] + rng.choice(odd) + good[at + 1 :]
    value = rng.choice([rng.randbytes(rng.randrange(40)), good[:at], spoiled])
    decoded([value], rng.choice([WHOLE, SKIPPING]))
    noise = rng.choice([value, bytes([2 * rng.randrange(1, 20)]) + rng.choice(odd) + value])
    columns = empty_columns(3, len(noise), len(noise) + 24)
    suffix = np.zeros(8, np.uint8)
    fields = (3, 0, 2, 2**63 - 1, OWN_TIMESTAMPS)
    selection = (0, 3, True, rng.random() < 0.5, suffix)
    copy_records(np.frombuffer(noise, np.uint8), fields, selection, tuple(columns))
print("within bounds")
"""


@pytest.mark.slow
def test_no_loop_leaves_its_arrays(tmp_path: Path) -> None:
    """numba checks each index here, which it does not in a load."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    program = BOUNDS_CHECKED.format(tests=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "within bounds\n", done.stderr[-3000:]
