"""The canary's own table, apart from the site's tables: where it lies, its loads, and when a new one begins.

    <root>/_drills/<number>/headrace-drill/        the present one has the highest number

What a drill harms stays harmed for `KEEP_MS`: so long the report asks whether the audit still names it. A
table that a load cannot continue any more, for whatever reason, or that has grown too long, is replaced.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.audit.gathering.tests import verified_tables
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.drills import CANARY_TOPIC
from headrace.audit.topic.said_of_tables import PROBLEMS_PER_RECORD_MAX, RECENT
from headrace.drill.errors import DrillError
from headrace.drill.load_process import LoadFailedError, load_command, run_load
from headrace.process.clock import now_ms
from headrace.warehouse import api
from headrace.warehouse.change import TopicTable, hdfs_of
from headrace.warehouse.counting import NotParquetError, naming
from headrace.warehouse.doubles import HEADER_COLUMN
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsError, HdfsUnreachableError
from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.layout import HOUR_MS, hour_name
from headrace.warehouse.manifest import DataFile, ManifestError
from headrace.warehouse.options import WarehouseOptions

FOLDER: Final = "_drills"
SERVICE_FIELD: Final = "service"
KEEP_MS: Final = 30 * HOUR_MS
"""The report's day; the hours of a drill's files before its own; and the length of the longest drill."""
CHANGES_MAX: Final = 1_000
"""Of one table: each verification reads all of its manifests."""
PROBLEMS_MAX: Final = PROBLEMS_PER_RECORD_MAX - 20
"""Of one table: a verification can tell the audit of no more."""


class CanaryTable:
    """The canary's table in a warehouse. One thread uses it, of a drill that has the claim (`drill.claim`).

    `audit_store` is the URL of the audit's store. All calls raise `HdfsError`.
    """

    def __init__(self, warehouse: WarehouseOptions, audit_store: str) -> None:
        self.hdfs: HdfsClient = hdfs_of(warehouse)
        self._warehouse = warehouse
        self._audit_store = audit_store
        self._number = 1

    @property
    def options(self) -> WarehouseOptions:
        """The warehouse with the root of the present table."""
        return replace(self._warehouse, root=self._root(self._number))

    def prepare(self) -> None:
        """Chooses the table, and removes from it what is older than `KEEP_MS`."""
        self._number = max(self._numbers(), default=1)
        try:
            is_worn = self._is_worn()
            if not is_worn:
                self._remove_old()
        except HdfsUnreachableError:
            raise
        except (HdfsError, ManifestError):
            is_worn = True  # its commit log cannot be read or completed any more
        if is_worn:
            self._number += 1

    def load(self, stopping: Event) -> None:
        """Loads all that the copy has, by the job that the DAGs run. Raises `DrillError`."""
        try:
            run_load(load_command(self.options, CANARY_TOPIC), stopping)
        except LoadFailedError:
            # The topic was made again, or deleted events before they were loaded; or the table is damaged.
            self._number += 1
            run_load(load_command(self.options, CANARY_TOPIC), stopping)
        for number in self._numbers():
            if number < self._number:
                self.hdfs.delete(self._root(number))

    def file_of(self, service: str, hour_ms: int) -> DataFile:
        """Returns the file of an hour that has the events of a service. Raises `DrillError`."""
        files = self._table().log.state().hours().get(hour_ms, [])
        for file in sorted(files, key=lambda file: file.path, reverse=True):
            if has_events_of(self.hdfs, file, service):
                return file
        raise DrillError(f"no file of {hour_name(hour_ms)} has the events of {service}, which are loaded")

    def verify(self) -> None:
        """Verifies the table as the hourly DAG does, and tells the audit what it found."""
        api.verify_topics(self.options, [CANARY_TOPIC], audit_store=self._audit_store, checked=RECENT)

    def close(self) -> None:
        self.hdfs.close()

    def _root(self, number: int) -> str:
        return f"{self._warehouse.root.rstrip('/')}/{FOLDER}/{number}"

    def _numbers(self) -> list[int]:
        entries = self.hdfs.entries(f"{self._warehouse.root.rstrip('/')}/{FOLDER}")
        return sorted(int(each.name) for each in entries if each.is_dir and each.name.isdecimal())

    def _table(self) -> TopicTable:
        return TopicTable(CANARY_TOPIC, self.options, self.hdfs)

    def _is_worn(self) -> bool:
        """Whether the table is too long, or has more problems than a verification can tell."""
        store = AuditStore(self._audit_store, must_exist=True)
        try:
            with store.reading() as connection:
                verified = verified_tables(connection, CANARY_TOPIC)
        finally:
            store.close()
        problems = sum(each.problem_count for each in verified if each.warehouse == self.options.name)
        return problems > PROBLEMS_MAX or len(self.hdfs.entries(self._table().paths.log)) > CHANGES_MAX

    def _remove_old(self) -> None:
        """Removes hours, and what drills copied into their folders."""
        table, before_ms = self._table(), now_ms() - KEEP_MS
        files = table.log.state().files
        for path, _ in self.hdfs.walk(table.paths.hourly):
            hour_ms = table.paths.hour_of(path)
            if path not in files and hour_ms is not None and hour_ms + HOUR_MS <= before_ms:
                self.hdfs.delete(path)
        api.retain_topics(self.options, [CANARY_TOPIC], keep_ms=KEEP_MS)


def has_events_of(hdfs: HdfsClient, file: DataFile, service: str) -> bool:
    """Whether a file has events of a service; one that is gone, cut or unreadable has none."""
    status = hdfs.status(file.path)
    if status is None or status.size_bytes != file.size_bytes:
        return False
    try:
        with naming(file.path):
            parquet = pq.ParquetFile(RemoteFile(hdfs, file.path, file.size_bytes))
            rows = parquet.read(columns=[f"{HEADER_COLUMN}.{SERVICE_FIELD}"]).combine_chunks()
            services = pc.struct_field(rows.column(HEADER_COLUMN).combine_chunks(), SERVICE_FIELD)
    except NotParquetError:
        return False
    return service in services.to_pylist()
