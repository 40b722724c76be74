"""A change of one topic's table: what loads, replays, compactions and retention have in common.

Owns the staging directory of a change until its commit; `commitlog` owns the steps from there on. Needs no
Spark.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from headrace.process.clock import now_ms
from headrace.warehouse.commitlog import CommitConflictError, CommitLog, Publish, Rebase
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.manifest import Kind, Manifest, TableState
from headrace.warehouse.options import WarehouseOptions


def hdfs_of(warehouse: WarehouseOptions) -> HdfsClient:
    """Returns a client of the warehouse's HDFS."""
    return HdfsClient(warehouse.webhdfs_url, user=warehouse.user, patience_s=warehouse.patience_s)


@dataclass(frozen=True)
class TopicTable:
    """The table of one topic, with what a change of it needs."""

    topic: str
    warehouse: WarehouseOptions
    hdfs: HdfsClient
    publish: Publish | None = None
    """Reports a committed change to the audit; None in a warehouse that reports nothing."""
    clock_ms: Callable[[], int] = now_ms

    @cached_property
    def paths(self) -> TopicPaths:
        return TopicPaths(self.warehouse.root, self.topic)

    @cached_property
    def log(self) -> CommitLog:
        return CommitLog(self.hdfs, self.paths)


class Change:
    """One change of a table."""

    def __init__(self, table: TopicTable, kind: Kind) -> None:
        self.table = table
        self.kind = kind
        self.change_id = f"{kind}-{uuid.uuid4().hex}"
        self.staging = table.paths.staged(self.change_id)

    @contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """Deletes the staging directory if the block raises, which fills it."""
        try:
            yield
        except BaseException:
            self.table.log.discard(self.change_id)
            raise

    def manifest(self, now: TableState) -> Manifest:
        """Returns this change's manifest on top of `now`, still without contents."""
        return Manifest(
            sequence=now.next_sequence,
            kind=self.kind,
            topic=self.table.topic,
            change_id=self.change_id,
            committed_ms=self.table.clock_ms(),
            warehouse=self.table.warehouse.name,
        )

    def commit(self, rebase: Rebase) -> Manifest:
        """Commits the manifest that `rebase` makes of the current state, and completes it.

        Raises `CommitConflictError`. After any other error the staging directory stays if the change may be
        committed.
        """
        try:
            manifest = self.table.log.commit(self.change_id, rebase)
        except CommitConflictError:
            self.table.log.discard(self.change_id)
            raise
        except Exception:
            self.table.log.take_back(self.change_id)
            raise
        self.table.log.complete(manifest, self.table.publish)
        return manifest
