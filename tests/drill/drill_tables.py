"""Tables for a drill: Parquet and manifests in a folder that stands for HDFS, and an audit store."""

from __future__ import annotations

import io
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
LOADS: Final = 3


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

    def now_ms(self, scratch: str) -> int:
        return 1 << 62  # later than any clock of a test

    def rename(self, source: str, target: str) -> bool:
        if not self.at(source).exists() or self.at(target).exists():
            return False
        self.at(source).rename(self.at(target))
        return True

    def delete_empty(self, path: str) -> bool:
        return not self.entries(path) and self.delete(path)

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


class Drilled(NamedTuple):
    """A table before anything is planted, and an audit store that was told of its loads."""

    table: Table
    topic_table: TopicTable
    store_url: str
    folder: str

    def problems(self) -> list[str]:
        """What `verify` says, or the error with which it ends."""
        try:
            return list(verify_topic(self.topic_table, audit_store=self.store_url).problems)
        except ManifestError as error:
            return [str(error)]

    def shown(self, file: Path) -> str:
        """The path that messages have of a file."""
        return str(file).removeprefix(self.folder)

    def contents(self) -> dict[str, bytes]:
        """Path → what is in the file."""
        return {
            self.shown(file): file.read_bytes() for file in Path(self.folder).rglob("*") if file.is_file()
        }


@contextmanager
def drilled_table(seed: str) -> Iterator[Drilled]:
    """A table of a few loads, which `verify` finds sound."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-drill-") as folder,
        tempfile.TemporaryDirectory(prefix="headrace-drill-audit-") as audit,
    ):
        hdfs, rng = FolderHdfs(Path(folder)), random.Random(seed)
        topic_table = table_of(hdfs, TOPIC)
        table = Table(hdfs, topic_table.log, rng)
        fill(table)
        drilled = Drilled(table, topic_table, f"sqlite:///{audit}/audit.db", folder)
        report_loads(drilled.store_url, table.log)
        if problems := drilled.problems():
            raise AssertionError(f"the table is not sound before anything is planted: {problems}")
        yield drilled


def table_of(hdfs: FolderHdfs, topic: str) -> TopicTable:
    options = WarehouseOptions(
        hdfs_url="hdfs://none", webhdfs_url="http://none", bootstrap="none:1", registry_url="http://none"
    )
    return TopicTable(topic, options, hdfs)


def fill(table: Table) -> None:
    """A few loads of some rows each."""
    start = 0
    for _ in range(LOADS):
        rows = table.rng.randint(20, 60)
        load(table, start, rows)
        start += 2 * rows * ADDRESSES_PER_ROW


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
        topic = table.log.paths.topic
        return Manifest(now.next_sequence, "load", topic, change_id, 0, "w", ranges, files=tuple(files))

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


def report_loads(store_url: str, log: CommitLog, first: int = 0) -> None:
    """Tells an audit store of the loads from one on, and whose events the table's partition holds."""
    position = PartitionPosition("east", TOPIC, 0, 0, 0, 0)
    records = [HeartbeatRecord(ANALYSIS_TIER, 1, 0, 1, (position,)), *map(load_report, log.manifests(first))]
    store = AuditStore(store_url)
    try:
        store.fold([received(record, datacenter="analysis") for record in records])
    finally:
        store.close()


class Tested(NamedTuple):
    """What came of one plant. `false`: how many whole files or hours were accused. `said`: all problems."""

    outcome: Outcome
    false: int
    said: tuple[str, ...] = ()


Run = Callable[[str, int], Tested]
"""Plants one failure of a kind, by a seed."""


def add_runs(score: Score, run: Run, kinds: Iterable[str], seeds: range) -> None:
    """Plants each kind with each seed, and adds what came of it."""
    for kind in kinds:
        for seed in seeds:
            began_s = time.monotonic()
            tested = run(kind, seed)
            found = score.of(kind)
            found.add(tested.outcome, tested.false, seed, f"seed {seed}", tested.said)
            found.seconds.append(time.monotonic() - began_s)
