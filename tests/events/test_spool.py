"""What a publisher's spool keeps: bounded, of the newest, whatever happens to the process or the bytes."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from pathlib import Path

import pytest

from headrace.client import BatchIdentity
from headrace.events import journal as journal_module
from headrace.events.journal import Journal
from headrace.events.spool import (
    ENTRY,
    EVENT,
    FIRST_SIZE_BYTES,
    HEAD,
    KEPT_S,
    SPOOLS_MAX_BYTES,
    Spool,
    open_spool,
    packed,
    prune,
)
from headrace.events.spooled import about, read_spool
from headrace.wire.batch import renumber
from headrace.wire.compression import Codec
from headrace.wire.records import Record, encode_batch

ABOUT: dict[str, str | int] = {
    "publisher": "p-1",
    "service": "frontend",
    "datacenter": "east",
    "bucket_ms": 600_000,
}
TIME_MS = 1_431_860_400_000


def batch(
    first: int, values: list[bytes], producer_id: int = 7, epoch: int = 0
) -> tuple[BatchIdentity, bytearray]:
    records = [Record(0, TIME_MS, b"k", value) for value in values]
    data = bytearray(encode_batch(records, codec=Codec.ZSTD))
    renumber(data, 0, producer_id, epoch, first)
    return BatchIdentity("t", 2, producer_id, epoch, first, len(values), TIME_MS, TIME_MS), data


def test_what_was_numbered_and_what_was_not_are_told_apart(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "p-1.spool", ABOUT, 1 << 20)
    for number in range(6):
        spool.hand_over("t", TIME_MS + number, b"k" if number else None, b"event %d" % number)
    back = spool.hand_over("t", TIME_MS, b"k", b"refused")
    spool.take_back(back)
    spool.batch_encoded(*batch(0, [b"event 0", b"event 1", b"event 2"]))
    # Read as a SIGKILL leaves it: nothing was closed.
    content = read_spool(tmp_path / "p-1.spool")
    assert content is not None and content.about == ABOUT
    (held,) = content.batches
    assert held.identity == batch(0, [b""] * 3)[0]
    assert [record.value for record in held.records()] == [b"event 0", b"event 1", b"event 2"]
    assert [event.value for event in content.unnumbered("t")] == [b"event 3", b"event 4", b"event 5"]
    assert content.events[0].key is None and content.unnumbered("other") == []
    spool.delete()


def test_a_batch_has_its_last_numbers(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "p-1.spool", ABOUT, 1 << 20)
    old, data = batch(10, [b"a", b"b"])
    new = batch(0, [b"a", b"b"], epoch=1)[0]
    spool.batch_encoded(old, data)
    spool.batch_renumbered(old, new)
    content = read_spool(spool.folder)
    assert content is not None and [each.identity for each in content.batches] == [new]
    spool.delete()


def test_the_newest_stay_within_the_bound(tmp_path: Path) -> None:
    limit = 8 * FIRST_SIZE_BYTES
    spool = Spool(tmp_path / "p-1.spool", ABOUT, limit)
    values = [os.urandom(900) for _ in range(2_000)]
    for value in values:
        spool.hand_over("t", TIME_MS, None, value)
    assert sum(path.stat().st_size for path in spool.folder.iterdir()) <= limit + 1_000
    content = read_spool(spool.folder)
    assert content is not None
    kept = [event.value for event in content.events]
    assert len(kept) > 60 and kept == values[-len(kept) :]
    assert spool.hand_over("t", TIME_MS, None, bytes(limit)) is None  # larger than all
    spool.delete()


@pytest.mark.parametrize("numbered", [True, False])
def test_events_stay_after_the_end_only_if_one_of_them_has_no_number(tmp_path: Path, numbered: bool) -> None:
    spool = open_spool(tmp_path, "p-1", ABOUT)
    assert spool is not None
    spool.hand_over("t", TIME_MS, b"k", b"a")
    if numbered:
        spool.batch_encoded(*batch(0, [b"a"]))
    spool.close()
    assert spool.hand_over("t", TIME_MS, b"k", b"late") is None
    content = read_spool(tmp_path / "p-1.spool")
    assert content is not None
    assert (len(content.batches), len(content.events)) == ((1, 0) if numbered else (0, 1))
    assert sum(path.stat().st_size for path in spool.folder.iterdir()) < FIRST_SIZE_BYTES


def test_a_publisher_without_events_leaves_nothing(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, "p-1", ABOUT)
    assert spool is not None
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_spools_of_the_ended_are_bounded_in_age_and_bytes(tmp_path: Path) -> None:
    now_s = 1_800_000_000.0
    ages_s = {"new": 1.0, "older": 50.0, "oldest": 60.0, "expired": KEPT_S + 1, "lives": 70.0}
    for name, age_s in ages_s.items():
        folder = tmp_path / f"{name}.spool"
        folder.mkdir()
        with (folder / "batches-0").open("wb") as stream:
            stream.truncate(SPOOLS_MAX_BYTES // 2)
        os.utime(folder / "batches-0", (now_s - age_s, now_s - age_s))
    (tmp_path / "lives.journal").touch()
    assert prune(tmp_path, now_s) == 2
    assert sorted(path.name for path in tmp_path.glob("*.spool")) == [
        "lives.spool",
        "new.spool",
        "older.spool",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_any_kind_cost_no_more_than_their_size(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    spool = Spool(tmp_path / "p-1.spool", ABOUT, 1 << 20)
    for number in range(20):
        spool.hand_over("t", TIME_MS, b"k", b"event %d" % number)
        spool.batch_encoded(*batch(number, [b"event %d" % number]))
    spool._events.close(), spool._batches.close()
    for path in spool.folder.glob("*-0"):
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(HEAD.size if rng.random() < 0.7 else 0, len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.5 else data)
    content = read_spool(spool.folder)
    assert content is not None and len(content.events) <= 20 and len(content.batches) <= 20


@pytest.mark.parametrize("ring", ["events", "batches"])
def test_what_rots_is_never_brought_again(tmp_path: Path, ring: str) -> None:
    """A flipped bit in any byte: what is read is what was written, or not there."""
    spool = Spool(tmp_path / "p-1.spool", ABOUT, 1 << 20)
    values = [b"event %d" % number for number in range(4)]
    for number, value in enumerate(values):
        spool.hand_over("t", TIME_MS, b"k", value)
        spool.batch_encoded(*batch(number, [value]))
    spool._events.close(), spool._batches.close()
    path = spool.folder / f"{ring}-0"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        content = read_spool(spool.folder)
        assert content is not None
        assert {(each.topic, each.time_ms, each.key, each.value) for each in content.events} <= {
            ("t", TIME_MS, b"k", value) for value in values
        }
        assert {each.data for each in content.batches} <= {
            bytes(batch(number, [value])[1]) for number, value in enumerate(values)
        }


@pytest.mark.parametrize(
    ("name", "lie"),
    [*(("bucket_ms", lie) for lie in (0, -1, 7, 1e400, None, "x", (), True)), ("publisher", ())],
)
def test_a_spool_that_does_not_say_whose_it_is_is_left_out(tmp_path: Path, name: str, lie: object) -> None:
    """A repair divided by its buckets, and ended with a traceback."""
    spool = Spool(tmp_path / "p-1.spool", ABOUT, 1 << 20)
    spool.hand_over("t", TIME_MS, None, b"event")
    spool._events.close(), spool._batches.close()
    assert about(spool.folder) == ABOUT
    (spool.folder / "about.json").write_text(json.dumps({**ABOUT, name: lie}))
    assert about(spool.folder) is None and read_spool(spool.folder) is None


def test_an_event_that_looks_like_entries_is_none_of_them(tmp_path: Path) -> None:
    """What follows a damaged length is an event's own bytes, which somebody chose."""
    spool = Spool(tmp_path / "p-1.spool", ABOUT, 1 << 20)
    spool.hand_over("t", TIME_MS, None, packed(EVENT, -1, TIME_MS, b"other", None, b"forged") * 3)
    spool._events.close(), spool._batches.close()
    path = spool.folder / "events-0"
    data = bytearray(path.read_bytes())
    struct.pack_into("@q", data, HEAD.size + ENTRY.size - 8, 7)  # the length of its value
    path.write_bytes(data)
    content = read_spool(spool.folder)
    assert content is not None and content.events == []


def test_a_pipe_in_place_of_a_file_holds_up_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "p-1.spool", ABOUT, 1 << 20)
    spool._events.close(), spool._batches.close()
    (spool.folder / "events-0").unlink()
    os.mkfifo(spool.folder / "events-0")
    content = read_spool(spool.folder)
    assert content is not None and content.events == []


@pytest.mark.parametrize("lives", [True, False])
def test_the_spool_of_a_quiet_publisher_stays_while_it_lives(tmp_path: Path, lives: bool) -> None:
    """A month's billing: what it sends next must be there if it never arrives."""
    who: dict[str, str | int] = {
        "publisher": "a",
        "datacenter": "east",
        "service": "s",
        "server": "h",
        "bucket_ms": 600_000,
    }
    journal = Journal(tmp_path / "a.journal", who, 1)
    spool = open_spool(tmp_path, "a", who)
    assert spool is not None
    spool.hand_over("t", 1, None, b"v0")
    if not lives:
        journal_module._close(journal._file, journal._map)  # as the end of its process does
    old_s = time.time() - KEPT_S - 60
    for path in (*spool.folder.iterdir(), spool.folder):
        os.utime(path, (old_s, old_s))
    assert prune(tmp_path) == 0, "it has reported a moment ago"
    os.utime(journal.path, (old_s, old_s))
    assert prune(tmp_path) == (0 if lives else 1)
    assert spool.folder.exists() == lives
    if lives:
        journal.delete()


def test_the_largest_spool_is_read_to_its_end(tmp_path: Path) -> None:
    """Of a file above 64 MiB nothing was read: a publisher with a larger spool had none."""
    spool = Spool(tmp_path / "p-1.spool", ABOUT, SPOOLS_MAX_BYTES)
    data = bytes(1 << 20)
    count = 0
    while not (spool.folder / "batches-1").exists():
        identity, made = batch(count, [b"v"])
        spool.batch_encoded(identity, bytes(made) + data)
        count += 1
    content = read_spool(spool.folder)
    assert content is not None and len(content.batches) == count > 80
    spool.delete()
