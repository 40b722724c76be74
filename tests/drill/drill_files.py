"""Physical plants in a table's own files: Parquet and manifests on a disk, which `verify` must name.

Each plant gets a table of its own, of a few committed loads, in a folder that stands for HDFS. One file of it
is changed as a careless hand, a program or a disk would change it; the truth is which path must be named.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from drill.drill_truth import Outcome, Score
from fix_audit_world import received
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.records import ANALYSIS_TIER, HeartbeatRecord, PartitionPosition
from headrace.warehouse.change import TopicTable
from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.decode import ADDRESS_FIELDS
from headrace.warehouse.hdfs.client import FileStatus, HdfsClient
from headrace.warehouse.hdfs.errors import HdfsExistsError, HdfsMissingError
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest, ManifestError, TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.report import load_report
from headrace.warehouse.verify import verify_topic

HOUR: Final = 1_431_860_400_000
ADDRESSES_PER_ROW: Final = 50
TOPIC: Final = "drilled"


class FolderHdfs(HdfsClient):
    """A folder of this disk with HDFS's rules for names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def at(self, path: str) -> Path:
        return self._folder / path.lstrip("/")

    def entries(self, path: str) -> list[FileStatus]:
        folder = self.at(path)
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return [FileStatus(each.name, each.is_dir(), each.stat().st_size, 0) for each in found]

    def status(self, path: str) -> FileStatus | None:
        file = self.at(path)
        return FileStatus(path, False, file.stat().st_size, 0) if file.is_file() else None

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if not self.at(path).is_file():
            raise HdfsMissingError(path)
        data = self.at(path).read_bytes()[offset:]
        return data if length is None else data[:length]

    def write(self, path: str, data: bytes, *, overwrite: bool = False) -> None:
        if self.at(path).exists() and not overwrite:
            raise HdfsExistsError(path)
        self.makedirs(path.rpartition("/")[0])
        self.at(path).write_bytes(data)

    def makedirs(self, path: str) -> None:
        self.at(path).mkdir(parents=True, exist_ok=True)

    def rename(self, source: str, target: str) -> bool:
        if not self.at(source).exists() or self.at(target).exists():
            return False
        self.at(source).rename(self.at(target))
        return True

    def delete(self, path: str) -> bool:
        file = self.at(path)
        if file.is_dir():
            shutil.rmtree(file)
            return True
        if file.exists():
            file.unlink()
            return True
        return False


class Table(NamedTuple):
    """A table of a few loads, for one plant."""

    hdfs: FolderHdfs
    log: CommitLog
    rng: random.Random

    @property
    def files(self) -> list[DataFile]:
        return sorted(self.log.state().files.values(), key=lambda file: file.path)

    def any_file(self) -> Path:
        return self.hdfs.at(self.rng.choice(self.files).path)

    def manifest(self, sequence: int) -> Path:
        return self.hdfs.at(self.log.paths.manifest(sequence))

    @property
    def last(self) -> int:
        return self.log.state().sequence


def load(table: Table, start: int, rows: int) -> None:
    """One load, as `warehouse.loading` commits it: a file for each of two hours."""
    state, rng = table.log.state(), table.rng
    change_id = f"load-{state.next_sequence}"
    files, hours = [], []
    for number in range(2):
        hour_ms, base = HOUR + number * HOUR_MS, start + number * rows * ADDRESSES_PER_ROW
        data = parquet(rng, hour_ms, base, rows)
        staged = f"{table.log.paths.staged(change_id)}/{number}"
        table.hdfs.write(staged, data)
        path = table.log.paths.data_file(hour_ms, state.next_sequence, number)
        checksum = checksum_of(data)
        files.append(DataFile(path, staged, hour_ms, rows, len(data), 7, checksum=checksum))
        hours.append(HourCount(hour_ms, rows, rows))
    end = start + 2 * rows * ADDRESSES_PER_ROW
    ranges = (LoadedRange(0, start, end, tuple(hours)),)

    def rebase(now: TableState) -> Manifest:
        return Manifest(now.next_sequence, "load", TOPIC, change_id, 0, "w", ranges, files=tuple(files))

    table.log.complete(table.log.commit(change_id, rebase), None)


def parquet(rng: random.Random, hour_ms: int, base: int, rows: int) -> bytes:
    offsets = [base + (row + 1) * ADDRESSES_PER_ROW - 1 for row in range(rows)]
    values: dict[str, Any] = {
        "path": [f"/{rng.randrange(10**9)}" for _ in range(rows)],
        "_partition": [0] * rows,
        "_offset": offsets,
        "_timestamp": [(hour_ms + row) * 1_000 for row in range(rows)],
        "_schema_id": [7] * rows,
    }
    fields = {field.name: field for field in ADDRESS_FIELDS}
    schema = pa.schema([pa.field("path", pa.string()), *(fields[name] for name in list(values)[1:])])
    arrays = [pa.array(values[field.name], field.type) for field in schema]
    return encoded(pa.Table.from_arrays(arrays, schema=schema))


def encoded(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="none", use_dictionary=False)
    return out.getvalue()


Plant = Callable[[Table], Path]
"""Changes one thing; returns the path that must be named. It is chosen before the change."""


def _rewritten(change: Callable[[pa.Table, random.Random], pa.Table]) -> Plant:
    def plant(table: Table) -> Path:
        file = table.any_file()
        file.write_bytes(encoded(change(pq.read_table(file), table.rng)))
        return file

    return plant


def _at(table: pa.Table, rng: random.Random) -> int:
    return rng.randrange(table.num_rows)


def rows_dropped(table: pa.Table, rng: random.Random) -> pa.Table:
    at = _at(table, rng)
    return pa.concat_tables([table.slice(0, at), table.slice(at + 1)])


def rows_doubled(table: pa.Table, rng: random.Random) -> pa.Table:
    return pa.concat_tables([table, table.slice(_at(table, rng), 1)])


def row_replaced(table: pa.Table, rng: random.Random) -> pa.Table:
    """One row gives its place to a copy of another: the number of rows stays."""
    return pa.concat_tables([table.slice(1), table.slice(1 + rng.randrange(table.num_rows - 1), 1)])


def addresses_moved(table: pa.Table, rng: random.Random) -> pa.Table:
    """The rows claim addresses that the load did not consume: their number and size stay."""
    column = table.column_names.index("_offset")
    moved = pa.array([each + 10**7 for each in table["_offset"].to_pylist()], pa.int64())
    return table.set_column(column, table.schema.field(column), moved)


def value_changed(table: Table) -> Path:
    """One byte of a value: the size and the number of rows stay."""
    file = table.any_file()
    data = bytearray(file.read_bytes())
    at = data.index(b"/", 8) + 1
    data[at] = data[at] ^ 1
    file.write_bytes(data)
    return file


def file_deleted(table: Table) -> Path:
    file = table.any_file()
    file.unlink()
    return file


def file_emptied(table: Table) -> Path:
    file = table.any_file()
    file.write_bytes(b"")
    return file


def file_cut(table: Table) -> Path:
    file = table.any_file()
    data = file.read_bytes()
    file.write_bytes(data[: table.rng.randrange(1, len(data))])
    return file


def file_zeroed(table: Table) -> Path:
    file = table.any_file()
    file.write_bytes(bytes(file.stat().st_size))
    return file


def footer_damaged(table: Table) -> Path:
    file = table.any_file()
    data = file.read_bytes()
    file.write_bytes(data[:-8] + b"\xff" * 4 + data[-4:])
    return file


def file_copied(table: Table) -> Path:
    file = table.any_file()
    beside = file.with_name(f"copy-of-{file.name}")
    shutil.copyfile(file, beside)
    return beside


def file_moved(table: Table) -> Path:
    file = table.any_file()
    other = file.parent.with_name("hour=23")
    other.mkdir(exist_ok=True)
    file.rename(other / file.name)
    return file


def files_swapped(table: Table) -> Path:
    """Two hours' files change places."""
    first, second = (table.hdfs.at(file.path) for file in table.rng.sample(table.files, 2))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    return first


def older_file(table: Table) -> Path:
    """A file of one load is put into the place of another load's of the same hour."""
    first, second = [table.hdfs.at(file.path) for file in table.files if file.hour_ms == HOUR][:2]
    second.write_bytes(first.read_bytes())
    return second


def _edited(change: Callable[[dict[str, Any]], None], *, is_last: bool) -> Plant:
    def plant(table: Table) -> Path:
        file = table.manifest(table.last if is_last else table.rng.randrange(table.last))
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data, indent=1))
        return file

    return plant


def _range_moved(data: dict[str, Any]) -> None:
    data["ranges"][0]["to_address"] += 30 * ADDRESSES_PER_ROW


def _rows_edited(data: dict[str, Any]) -> None:
    data["files"][0]["rows"] -= 1
    data["rows"] -= 1


def manifest_deleted(table: Table) -> Path:
    file = table.manifest(table.rng.randrange(table.last))
    file.unlink()
    return file


def manifest_cut(table: Table) -> Path:
    file = table.manifest(table.rng.randrange(table.last + 1))
    file.write_bytes(file.read_bytes()[:-40])
    return file


KINDS: Final[dict[str, Plant]] = {
    "Parquet: a row dropped": _rewritten(rows_dropped),
    "Parquet: a row doubled": _rewritten(rows_doubled),
    "Parquet: a row replaced by another": _rewritten(row_replaced),
    "Parquet: rows at other addresses": _rewritten(addresses_moved),
    "Parquet: a value changed": value_changed,
    "Parquet: a file deleted": file_deleted,
    "Parquet: a file emptied": file_emptied,
    "Parquet: a file cut": file_cut,
    "Parquet: a file zeroed": file_zeroed,
    "Parquet: a footer damaged": footer_damaged,
    "Parquet: a file copied beside": file_copied,
    "Parquet: a file moved to another hour": file_moved,
    "Parquet: two files swapped": files_swapped,
    "Parquet: an older load's file": older_file,
    "manifest: range moved": _edited(_range_moved, is_last=False),
    "manifest: range of the last one moved": _edited(_range_moved, is_last=True),
    "manifest: rows edited": _edited(_rows_edited, is_last=False),
    "manifest: rows of the last one edited": _edited(_rows_edited, is_last=True),
    "manifest: deleted": manifest_deleted,
    "manifest: cut": manifest_cut,
}

KNOWN_MISSES: Final[dict[str, str]] = {}
"""Kinds that `verify` does not see yet, and why. They make the drill fail as any other."""


def run(kind: str, seed: int) -> tuple[Outcome, int]:
    """Plants one failure; returns what `verify` made of it, and how many files it accused that are whole."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-drill-") as folder,
        tempfile.TemporaryDirectory(prefix="headrace-drill-audit-") as audit,
    ):
        store = f"sqlite:///{audit}/audit.db"
        hdfs, rng = FolderHdfs(Path(folder)), random.Random(f"{kind}/{seed}")
        options = WarehouseOptions(
            hdfs_url="hdfs://none", webhdfs_url="http://none", bootstrap="none:1", registry_url="http://none"
        )
        topic_table = TopicTable(TOPIC, options, hdfs)
        table = Table(hdfs, topic_table.log, rng)
        start = 0
        for _ in range(3):
            rows = rng.randint(20, 60)
            load(table, start, rows)
            start += 2 * rows * ADDRESSES_PER_ROW
        report_loads(store, table.log)
        if problems := verify_topic(topic_table, audit_store=store).problems:
            raise AssertionError(f"the table is not sound before anything is planted: {problems}")
        before = contents(folder)
        named = KINDS[kind](table)
        after = contents(folder)
        whole = {path for path, data in before.items() if after.get(path) == data}
        try:
            found = list(verify_topic(topic_table, audit_store=store).problems)
        except ManifestError as error:
            found = [str(error)]
    path = str(named).removeprefix(folder)
    # A manifest that says something else of a file accuses both: which of them is wrong, nobody can tell.
    others = [each for each in found if path not in each and named.suffix != ".json"]
    false = sum(each in problem for problem in others for each in whole if each.endswith(".parquet"))
    if not found:
        return Outcome.MISSED, false
    words = [path, f"change {int(named.stem)}:"] if named.suffix == ".json" else [path]
    is_named = any(word in problem for problem in found for word in words)
    return (Outcome.NAMED if is_named else Outcome.WRONG_PLACE), false


def report_loads(store_url: str, log: CommitLog) -> None:
    """Tells an audit store of all loads, and whose events the table's partition holds."""
    position = PartitionPosition("east", TOPIC, 0, 0, 0, 0)
    records = [HeartbeatRecord(ANALYSIS_TIER, 1, 0, 1, (position,)), *map(load_report, log.manifests())]
    store = AuditStore(store_url)
    try:
        store.fold([received(record, datacenter="analysis") for record in records])
    finally:
        store.close()


def contents(folder: str) -> dict[str, bytes]:
    """Path → what is in the file."""
    files = (file for file in Path(folder).rglob("*") if file.is_file())
    return {str(file).removeprefix(folder): file.read_bytes() for file in files}


def run_files(first_seed: int, seeds: int, kinds: Collection[str] = ()) -> Score:
    """Plants each kind with so many seeds."""
    score = Score()
    for kind in KINDS:
        if kinds and kind not in kinds:
            continue
        for seed in range(first_seed, first_seed + seeds):
            began_s = time.monotonic()
            outcome, false = run(kind, seed)
            found = score.of(kind)
            found.outcomes[outcome] += 1
            found.false += false
            found.seconds.append(time.monotonic() - began_s)
            if outcome is not Outcome.NAMED:
                found.seeds.setdefault(outcome, set()).add(seed)
    return score
