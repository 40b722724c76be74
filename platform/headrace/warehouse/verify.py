"""Verifying: the files against the manifests, the manifests against the audit. Changes nothing.

Owns what is compared. Every file's rows are read back and counted; the audit's counts are what its store
has folded from the load reports, so a report that never arrived shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.audit.report import report
from headrace.audit.store import AuditStore
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.counting import (
    FileCount,
    GroupCount,
    NotParquetError,
    count_file,
    distinct_offsets,
    may_repeat,
)
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths, hour_name
from headrace.warehouse.manifest import Manifest, TableState
from headrace.warehouse.options import WarehouseOptions

PROBLEMS_MAX: Final = 1000


@dataclass(frozen=True)
class VerifyResult:
    """What a verification found. Sound means: nothing is wrong."""

    topic: str
    problems: tuple[str, ...]
    files: int
    rows: int
    changes: int
    audited_hours: int

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify_topic(
    topic: str, warehouse: WarehouseOptions, hdfs: HdfsClient, *, audit_store: str | None = None
) -> VerifyResult:
    """Recount a topic. `audit_store` is the URL of the audit's store; None compares no audit."""
    paths = TopicPaths(warehouse.root, topic)
    log = CommitLog(hdfs, paths)
    manifests = log.manifests()
    state = log.state()
    problems = [
        f"change {each.manifest.sequence} is committed but not finished; the next load finishes it"
        for each in log.unfinished()
        if each.manifest is not None
    ]
    present = {path: entry.size_bytes for path, entry in hdfs.walk(paths.hourly)}
    problems += _strange_files(state, present)
    counts: list[FileCount] = []
    for path, each in sorted(state.files.items()):
        if path not in present:
            problems.append(f"{path} is missing ({each.rows} rows)")
            continue
        try:
            count = count_file(hdfs, path, present[path])
        except NotParquetError as error:
            problems.append(str(error))
            continue
        counts.append(count)
        if count.rows != each.rows:
            problems.append(f"{path} has {count.rows} rows, its manifest says {each.rows}")
    problems += _repeated(hdfs, counts, present)
    problems += _unbalanced(manifests)
    loaded = loaded_hours(manifests)
    if audit_store is not None:
        problems += _unaudited(topic, loaded, audit_store)
    return VerifyResult(
        topic=topic,
        problems=tuple(problems[:PROBLEMS_MAX]),
        files=len(counts),
        rows=sum(each.rows for each in counts),
        changes=len(manifests),
        audited_hours=len(loaded) if audit_store is not None else 0,
    )


def loaded_hours(manifests: Iterable[Manifest]) -> dict[int, int]:
    """Rows loaded by hour of Kafka timestamps, over all changes: what the audit should have been told."""
    found: dict[int, int] = {}
    for hour in (hour for each in manifests for loaded in each.ranges for hour in loaded.hours):
        found[hour.hour_ms] = found.get(hour.hour_ms, 0) + hour.rows
    return dict(sorted(found.items()))


def _strange_files(state: TableState, present: Mapping[str, int]) -> list[str]:
    strange = [f"{path} is in no manifest" for path in sorted(present) if path not in state.files]
    resized = [
        f"{path} has {present[path]} bytes, its manifest says {each.size_bytes}"
        for path, each in sorted(state.files.items())
        if path in present and present[path] != each.size_bytes
    ]
    return strange + resized


def _repeated(hdfs: HdfsClient, counts: Iterable[FileCount], sizes: Mapping[str, int]) -> list[str]:
    groups = [group for each in counts for group in each.groups]
    problems = [
        f"{each.path} holds {each.rows - each.distinct_offsets} rows of partition {each.partition} "
        "more than once"
        for each in groups
        if each.rows != each.distinct_offsets
    ]
    by_place: dict[tuple[int, int], list[GroupCount]] = {}
    for each in groups:
        by_place.setdefault((each.partition, each.timestamp_hour_ms), []).append(each)
    for (partition, hour_ms), found in sorted(by_place.items()):
        if not may_repeat(found):
            continue
        paths = sorted({each.path for each in found})
        distinct = distinct_offsets(hdfs, {path: sizes[path] for path in paths})[partition, hour_ms]
        repeated = sum(each.distinct_offsets for each in found) - distinct
        if repeated:
            problems.append(
                f"{repeated} rows of partition {partition} and hour {hour_name(hour_ms)} are in "
                "several files: " + ", ".join(paths)
            )
    return problems


def _unbalanced(manifests: Iterable[Manifest]) -> list[str]:
    return [
        f"change {each.sequence}: its files hold {each.rows} rows, its ranges {loaded}"
        for each in manifests
        if each.kind in ("load", "replay") and each.rows != (loaded := sum(part.rows for part in each.ranges))
    ]


def _unaudited(topic: str, loaded: Mapping[int, int], store_url: str) -> list[str]:
    if not loaded:
        return []
    store = AuditStore(store_url)
    try:
        judged = report(store, topic, min(loaded), max(loaded) + HOUR_MS)
    finally:
        store.close()
    said: dict[int, int] = {}
    for each in judged.verdicts:
        said[each.hour_ms] = said.get(each.hour_ms, 0) + each.counts.warehouse
    return [
        f"hour {hour_name(hour_ms)}: {rows} rows are loaded, the audit knows of {said.get(hour_ms, 0)}"
        for hour_ms, rows in loaded.items()
        if said.get(hour_ms, 0) != rows
    ]
