"""Files that rot or that somebody wrote: publishers' spools and journals, intents of repairs, manifests and
states of a table, its Parquet files and their footers.

Each is read or refused by its own kind of error, within bounds of time and memory. What is read of a spool
was written to one: nobody brings rotten events again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from fix_memory_hdfs import MemoryHdfs
from fuzzing.documents import ODD
from fuzzing.limits import bounded
from fuzzing.values import integer, mutate, uvarint
from fuzzing.world import World
from headrace.audit.repair.intents import Intent, Intents, ResendError
from headrace.audit.topic.resent import ResentRecord
from headrace.client import BatchIdentity
from headrace.events.arrived import Arrived
from headrace.events.journal import Journal
from headrace.events.journal_replay import JournalError, replay
from headrace.events.spool import Spool
from headrace.events.spooled import SpoolContent, read_spool
from headrace.warehouse import arrow_tables
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.counting import NotParquetError
from headrace.warehouse.footers import TRAILER_SIZE_BYTES, FooterError, footer_size, rows_of
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest, ManifestError, TableState
from headrace.warehouse.versions import LocatedFile
from headrace.wire.errors import WireError
from headrace.wire.records import Record, encode_batch

FILES: Final = 60
TIME_MS: Final = 1_431_860_400_000
ABOUT: Final[dict[str, str | int]] = {
    "publisher": "p-1",
    "datacenter": "east",
    "service": "checkout",
    "server": "co1",
    "bootstrap": "b:9092",
    "audit_topic": "_audit",
    "bucket_ms": 600_000,
}
PATHS: Final = TopicPaths("/data", "t")
WORDS: Final = (b"1e400", b"null", b"[" * 3_000, b'"\\ud800"', b"9" * 5_000, b"-1", b"\xff")
ROWS: Final = 200
UNPACKED_MAX_BYTES: Final = 64 << 20


def run(_world: World, rng: random.Random) -> list[str]:
    """Returns what the last file was."""
    logging.disable(logging.WARNING)  # what is left out is said for each file
    try:
        return [_files(rng)]
    finally:
        logging.disable(logging.NOTSET)


def _files(rng: random.Random) -> str:
    said = ""
    kinds = (_spool, _journal, _intents, _manifests, _footer, _table)
    with tempfile.TemporaryDirectory() as root:
        for number in range(FILES):
            folder = Path(root) / str(number)
            folder.mkdir()
            kind = kinds[number % len(kinds)]
            for said, read in kind(folder, rng):
                try:
                    with bounded(f"{kind.__name__}: {said}"):
                        read()
                except AssertionError:
                    raise
                except Exception as error:
                    raise AssertionError(f"{kind.__name__}: {error!r}: {said}") from error
    return said


Case = tuple[str, Callable[[], object]]


# --- publishers ---


def _identity(rng: random.Random, number: int) -> BatchIdentity:
    return BatchIdentity(rng.choice("tu"), rng.randrange(3), 7, 0, 10 * number, 1, TIME_MS, TIME_MS)


def _spool(folder: Path, rng: random.Random) -> Iterator[Case]:
    spool = Spool(folder / "p-1.spool", ABOUT, 1 << 20)
    values = [b"event %d" % number + bytes(rng.randrange(200)) for number in range(12)]
    for number, value in enumerate(values):
        spool.hand_over("t", TIME_MS, b"k", value)
        identity = _identity(rng, number)
        spool.batch_encoded(identity, encode_batch([Record(0, TIME_MS, b"k", value)]))
        if rng.random() < 0.2:
            spool.batch_renumbered(identity, identity._replace(producer_epoch=1, base_sequence=0))
    spool._events.close(), spool._batches.close()
    victim = rng.choice(sorted(spool.folder.iterdir()))
    if rng.random() < 0.3:
        victim = spool.folder / "about.json"
        changed = json.dumps({**ABOUT, rng.choice(list(ABOUT)): rng.choice(ODD)}).encode()
    else:
        changed = _changed(rng, victim.read_bytes())
    victim.write_bytes(changed)

    def read() -> None:
        content = read_spool(spool.folder)
        if content is None:
            return
        assert {event.value for event in content.events} <= set(values)
        for topic in ("t", "u"):
            _unnumbered(content, topic)
        json.dumps(content.about)
        assert 3_600_000 % content.about["bucket_ms"] == 0

    yield f"{victim.name}: {changed[:2000]!r}", read


def _unnumbered(content: SpoolContent, topic: str) -> None:
    try:
        content.unnumbered(topic)
    except WireError:
        return


def _journal(folder: Path, rng: random.Random) -> Iterator[Case]:
    path = folder / "p-1.journal"
    lies = {**ABOUT, rng.choice(list(ABOUT)): rng.choice(ODD)} if rng.random() < 0.3 else ABOUT
    journal = Journal(path, lies, 5)
    for number in range(rng.randint(1, 30)):
        journal.hand_over(rng.choice("tu"), TIME_MS, TIME_MS, rng.choice((1, 1, -1, 2**40)))
        identity = _identity(rng, number)
        journal.batch_closed(identity)
        if rng.random() < 0.3:
            journal.batch_renumbered(identity, identity._replace(producer_epoch=1))
        if rng.random() < 0.2:
            journal.finished([rng.randrange(4)])
        if rng.random() < 0.5:
            journal.begin_report(2)
            journal.report_arrived(Arrived(rng.choice((1, 2)), TIME_MS))
    good = path.read_bytes()[: journal._used]
    journal.delete()
    data = good if lies is not ABOUT else _changed(rng, good)
    for _ in range(rng.choice((0, 1, 3))):  # whole numbers, where a journal has them
        at = 8 * rng.randrange(1, max(2, len(data) // 8))
        data = data[:at] + struct.pack("@q", integer(rng, 64)) + data[at + 8 :]

    def read() -> None:
        try:
            dead = replay(path, data)
        except JournalError as error:
            assert str(path) in str(error) and len(str(error)) < 2_000
            return
        for tally in dead.counts.changed(closing=True):
            assert tally.bucket_start_ms % 1 == 0 and tally.topic
        assert isinstance(dead.description["publisher"], str)

    yield repr(data[:3000]), read


def _intents(folder: Path, rng: random.Random) -> Iterator[Case]:
    resent = ResentRecord("east", "t", TIME_MS, "p-1", 0, 7, 0, 0, 1, 5, 0, 9, "me")
    intents = Intents(folder)
    intents.write(Intent(resent, "checkout", ("0" * 64,), b"batch"))
    (path,) = folder.glob("*.json")
    raw = json.loads(path.read_bytes())
    place = rng.choice((raw, raw["resent"]))
    place[rng.choice(list(place))] = rng.choice(ODD)
    content = json.dumps(raw).encode() if rng.random() < 0.5 else _changed(rng, path.read_bytes())
    path.write_bytes(content)
    if rng.random() < 0.05:
        path.unlink()
        os.mkfifo(path)

    def read() -> None:
        try:
            for intent in intents.all():  # what a repair does with them
                assert isinstance(intent.resent.bucket_start_ms + intent.resent.record_count, int)
                assert isinstance("".join((intent.service, *intent.values)), str)
                intent.to_json()
        except ResendError as error:
            assert str(path) in str(error) and str(error).isprintable() and len(str(error)) < 2_000

    yield repr(content[:3000]), read


# --- tables ---


def _manifests(folder: Path, rng: random.Random) -> Iterator[Case]:
    file = DataFile(PATHS.data_file(0, 0, 0), f"{PATHS.staged('c')}/0", 0, 5, 1, 7, "", "0" * 64)
    loaded = LoadedRange(0, 0, 10, (HourCount(0, 5, 5, 0, "0" * 32),))
    made = Manifest(0, "load", "t", "c", 0, "w", ranges=(loaded,), files=(file,))
    state = TableState().after(made)
    manifest, known = made.to_json(), state.to_json()
    which = rng.random() < 0.6
    whole = manifest if which else known
    changed = _changed(rng, whole) if rng.random() < 0.5 else _lied(rng, whole)
    hdfs = MemoryHdfs()
    hdfs.files[PATHS.manifest(0)] = changed if which else manifest
    if not which:
        hdfs.files[PATHS.state(0)] = changed
    before = {name for name in hdfs.files if not name.startswith(f"{PATHS.base}/")}

    def read() -> None:
        for call in (CommitLog.state, CommitLog.manifests, CommitLog.broken_links):
            try:
                call(CommitLog(hdfs, PATHS))
            except ManifestError as error:
                assert "\n" not in str(error) and len(str(error)) < 2_000, str(error)[:3_000]
        with contextlib.suppress(ManifestError):
            CommitLog(hdfs, PATHS).complete_all(None)
        assert {name for name in hdfs.files if not name.startswith(f"{PATHS.base}/")} == before

    yield repr(changed[:3000]), read


def _lied(rng: random.Random, data: bytes) -> bytes:
    """A document with another value in one place, at any depth."""
    raw = json.loads(data)
    place: Any = raw
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        inner = [key for key in keys if isinstance(place[key], dict | list) and place[key]]
        if not inner or rng.random() < 0.4:
            break
        place = place[rng.choice(inner)]
    place[rng.choice(keys)] = rng.choice((*ODD, 2**63, -(2**63), "/etc/passwd", "../../x"))
    return json.dumps(raw).encode()


def _parquet(rng: random.Random) -> bytes:
    sink = BytesIO()
    texts = [rng.choice(("a", "bb", "c" * 300, None)) for _ in range(ROWS)]
    table = pa.table({"number": range(ROWS), "text": texts, "list": [[text] for text in texts]})
    codec = rng.choice(("none", "zstd", "snappy", "gzip", "lz4"))
    version = rng.choice(("1.0", "2.0"))
    pq.write_table(table, sink, compression=codec, data_page_version=version, row_group_size=90)
    return sink.getvalue()


def _footer(folder: Path, rng: random.Random) -> Iterator[Case]:
    whole = _parquet(rng)
    size = footer_size(whole[-TRAILER_SIZE_BYTES:], len(whole))
    footer = _changed(rng, whole[-TRAILER_SIZE_BYTES - size : -TRAILER_SIZE_BYTES])
    if rng.random() < 0.3:  # nests, or claims items without end
        step = rng.choice((b"\x1c", b"\x19\x1c", b"\x19\x19", b"\x1b\x01\xcc", b"\x19\xf1"))
        footer = step * rng.choice((10, 50, 1_000_000)) + uvarint(integer(rng, 64)) + footer

    def read() -> None:
        try:
            assert rows_of(footer) >= 0
        except FooterError as error:
            assert str(error).isprintable() and len(str(error)) < 500

    yield repr(footer[:3000]), read


def _table(folder: Path, rng: random.Random) -> Iterator[Case]:
    content = mutate(rng, _parquet(rng))
    hdfs = MemoryHdfs()
    path = PATHS.data_file(0, 0, 0)
    hdfs.files[path] = content
    located = LocatedFile(DataFile(path, path, 0, ROWS, len(content), 1), path)
    schema = pa.schema(
        [("number", pa.int64()), ("text", pa.string()), pa.field("list", pa.list_(pa.string()))]
    )

    def read() -> None:
        with patch.object(arrow_tables, "UNPACKED_MAX_BYTES", UNPACKED_MAX_BYTES):
            try:
                assert arrow_tables.read_file(hdfs, located, schema, {}).num_rows == ROWS
            except NotParquetError as error:
                assert path in str(error) and len(str(error)) < 1_000

    yield repr(content[:4000]), read


def _changed(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.15:
        return data[: rng.randrange(len(data) + 1)]
    return mutate(rng, data, WORDS)
