"""Verification: compares the files with the manifests, and the manifests with the audit. Changes nothing.

Owns what is compared. The rows of every file are read back and counted. The audit's counts are those in its
store, folded from the load reports, so a report that never arrived shows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.audit.report import report
from headrace.audit.store import AuditStore
from headrace.warehouse.change import TopicTable
from headrace.warehouse.counting import (
    FileCount,
    GroupCount,
    NotParquetError,
    count_file,
    distinct_offsets,
    may_repeat,
)
from headrace.warehouse.layout import HOUR_MS, hour_name
from headrace.warehouse.manifest import Manifest, TableState

PROBLEMS_MAX: Final = 1000


@dataclass(frozen=True)
class VerifyResult:
    """What a verification found."""

    topic: str
    problems: tuple[str, ...]
    files: int
    rows: int
    changes: int
    audited_hours: int

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify_topic(table: TopicTable, *, audit_store: str | None = None) -> VerifyResult:
    """Verifies a topic. `audit_store` is the URL of the audit's store; None leaves the audit out."""
    log = table.log
    if broken := log.broken_links():
        # Nothing that such a log says can be compared with anything.
        return VerifyResult(table.topic, tuple(broken[:PROBLEMS_MAX]), 0, 0, 0, 0)
    manifests = log.manifests()
    state = log.state()
    problems = [
        f"change {manifest.sequence} is committed but not complete; the next load completes it"
        for manifest in log.to_complete()
    ]
    present = {path: entry.size_bytes for path, entry in table.hdfs.walk(table.paths.hourly)}
    counts, of_files = _count_all(table, state, present)
    problems += of_files
    problems += _repeated(table, counts, present)
    problems += _unbalanced(manifests)
    loaded = loaded_hours(manifests)
    if audit_store is not None:
        problems += _unaudited(table.topic, loaded, audit_store)
    return VerifyResult(
        topic=table.topic,
        problems=tuple(problems[:PROBLEMS_MAX]),
        files=len(counts),
        rows=sum(count.rows for count in counts),
        changes=len(manifests),
        audited_hours=len(loaded) if audit_store is not None else 0,
    )


def _count_all(
    table: TopicTable, state: TableState, present: Mapping[str, int]
) -> tuple[list[FileCount], list[str]]:
    """Counts the present files; also returns the problems of single files."""
    problems = [f"{path} is in no manifest" for path in sorted(present) if path not in state.files]
    counts: list[FileCount] = []
    for path, file in sorted(state.files.items()):
        if path not in present:
            problems.append(f"{path} is missing ({file.rows} rows)")
            continue
        if present[path] != file.size_bytes:
            problems.append(f"{path} has {present[path]} bytes, its manifest has {file.size_bytes}")
        try:
            counts.append(count_file(table.hdfs, path, present[path]))
        except NotParquetError as error:
            problems.append(str(error))
            continue
        if counts[-1].rows != file.rows:
            problems.append(f"{path} has {counts[-1].rows} rows, its manifest has {file.rows}")
    return counts, problems


def loaded_hours(manifests: Iterable[Manifest]) -> dict[int, int]:
    """Returns the rows loaded by hour of Kafka timestamps, over all changes, as reported to the audit."""
    rows: Counter[int] = Counter()
    for hour in (hour for manifest in manifests for loaded in manifest.ranges for hour in loaded.hours):
        rows[hour.hour_ms] += hour.rows
    # Dead letters alone may have any time, also one that no report can span.
    return {hour_ms: count for hour_ms, count in sorted(rows.items()) if count}


def _repeated(table: TopicTable, counts: Iterable[FileCount], sizes: Mapping[str, int]) -> list[str]:
    groups = [group for count in counts for group in count.groups]
    problems = [
        f"{group.path} holds {group.rows - group.distinct_offsets} rows of partition {group.partition} "
        "more than once"
        for group in groups
        if group.rows != group.distinct_offsets
    ]
    by_place: dict[tuple[int, int], list[GroupCount]] = {}
    for group in groups:
        by_place.setdefault((group.partition, group.timestamp_hour_ms), []).append(group)
    for (partition, hour_ms), found in sorted(by_place.items()):
        if not may_repeat(found):
            continue
        paths = sorted({group.path for group in found})
        distinct = distinct_offsets(table.hdfs, {path: sizes[path] for path in paths})[partition, hour_ms]
        repeated = sum(group.distinct_offsets for group in found) - distinct
        if repeated:
            problems.append(
                f"{repeated} rows of partition {partition} and hour {hour_name(hour_ms)} are in "
                "several files: " + ", ".join(paths)
            )
    return problems


def _unbalanced(manifests: Iterable[Manifest]) -> list[str]:
    return [
        f"change {manifest.sequence}: its files hold {manifest.rows} rows, its ranges {loaded}"
        for manifest in manifests
        if manifest.kind in ("load", "replay")
        and manifest.rows != (loaded := sum(part.rows for part in manifest.ranges))
    ]


def _unaudited(topic: str, loaded: Mapping[int, int], store_url: str) -> list[str]:
    if not loaded:
        return []
    store = AuditStore(store_url)
    try:
        verdicts = report(store, topic, min(loaded), max(loaded) + HOUR_MS).verdicts
    finally:
        store.close()
    audited: Counter[int] = Counter()
    for verdict in verdicts:
        audited[verdict.hour_ms] += verdict.counts.warehouse
    return [
        f"hour {hour_name(hour_ms)}: {rows} rows are loaded, the audit has {audited[hour_ms]}"
        for hour_ms, rows in loaded.items()
        if audited[hour_ms] != rows
    ]
