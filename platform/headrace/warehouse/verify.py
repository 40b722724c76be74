"""Verification: compares the files with the manifests, and the manifests with the audit. Changes nothing.

Owns what is compared. The rows of every file are read back and counted, and its checksum is compared. Seals
are compared with their digests and with the manifests (`seal_checks`). The audit's counts are those in its
store, folded from the load reports, so a report that never arrived shows.

A large table is read bit by bit: a *recent* verification reads the hours with new files, those in which
something was wrong, and one of `SHARES` parts of all others, which is another one each hour. Whether a file
is there, with its size, is compared for all.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.audit.gathering.tests import verified_tables
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.said_of_tables import ALL, NO_HOUR_MS, RECENT, TableProblem
from headrace.warehouse.beside import files_beside
from headrace.warehouse.change import TopicTable
from headrace.warehouse.checksums import read_checksum
from headrace.warehouse.completing import wait_until_complete
from headrace.warehouse.counting import (
    UNREADABLE,
    FileCount,
    GroupCount,
    count_file,
    distinct_offsets,
    may_repeat,
)
from headrace.warehouse.doubles import Doubles, find_doubles
from headrace.warehouse.hdfs.errors import HdfsMissingError
from headrace.warehouse.layout import HOUR_MS, hour_name
from headrace.warehouse.lineage import Lineage
from headrace.warehouse.manifest import DataFile, Manifest, TableState
from headrace.warehouse.seal_checks import problems_of_seals
from headrace.warehouse.sealed_rows import FORGOTTEN_AFTER_MS
from headrace.warehouse.verify_ranges import forgotten_rows, otherwise_reported, outside_of_ranges

PROBLEMS_MAX: Final = 1000
LISTINGS_MAX: Final = 5
"""How often a table is listed that changes meanwhile."""
SHARES: Final = 168
"""Parts of a table, one an hour: all of it is read within a week."""
NEW_MS: Final = 3 * HOUR_MS
"""A change that was committed so long ago, at most, is new: an hourly verification may be late twice."""


@dataclass(frozen=True)
class VerifyResult:
    """What a verification found. `files` and `rows` are those that it read. `checked`: all, or recent."""

    topic: str
    problems: tuple[str, ...]
    files: int
    rows: int
    changes: int
    audited_hours: int
    checked: str = ALL
    of_files: tuple[TableProblem, ...] = ()
    """Those of the problems that are of single files."""
    doubles: tuple[Doubles, ...] = ()
    """What the hours that were read have more than once, by guid: a finding of the audit alone."""

    @property
    def placed(self) -> tuple[TableProblem, ...]:
        """All problems, those of single files first."""
        named = {each.text for each in self.of_files}
        others = (text for text in self.problems if text not in named)
        return (*self.of_files, *(TableProblem(NO_HOUR_MS, "", 0, False, text) for text in others))

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify_topic(
    table: TopicTable, *, audit_store: str | None = None, checked: str = ALL, suspects: Iterable[int] = ()
) -> VerifyResult:
    """Verifies a topic. `audit_store` is the URL of the audit's store; None leaves the audit out. Raises
    `StoreMissingError` if there is none: an empty one would say that nothing was loaded.

    `suspects`: hours (ms) that a recent verification reads, too.
    """
    hours = set(suspects)
    for _ in range(LISTINGS_MAX - 1):
        try:
            return _verified(table, audit_store, checked, hours)
        except HdfsMissingError:
            # A compaction, or somebody, took a file between its listing and its reading.
            continue
    return _verified(table, audit_store, checked, hours)


def _verified(table: TopicTable, audit_store: str | None, checked: str, suspects: set[int]) -> VerifyResult:
    log = table.log
    if broken := log.broken_links():
        # Nothing that such a log says can be compared with anything.
        return VerifyResult(table.topic, tuple(broken[:PROBLEMS_MAX]), 0, 0, 0, 0, checked)
    manifests, state, present, incomplete = _at_rest(table)
    problems = [
        f"change {manifest.sequence} is committed but not complete; the next load completes it"
        for manifest in incomplete
    ]
    if problem := log.problem_of_state(manifests):
        problems.append(problem)
    hours = None
    if checked == RECENT:
        hours = recent_hours(state, manifests, table.clock_ms()) | suspects
    moving = _moving(table, incomplete, present)
    state = replace(state, files={path: file for path, file in state.files.items() if path not in moving})
    present = {path: size_bytes for path, size_bytes in present.items() if path not in moving}
    beside = files_beside(table, state, present, hours)
    problems += [each.text for each in beside]
    counts, of_files = _count_all(table, state, present, hours)
    problems += [each.text for each in of_files]
    logs, lineage = {path: file.log for path, file in state.files.items()}, Lineage(manifests)
    problems += _repeated(table, counts, present, logs, lineage)
    problems += _unbalanced(manifests)
    problems += problems_of_seals(table.hdfs, table.paths, manifests, state, hours)
    problems += outside_of_ranges(manifests, counts, logs, lineage)
    loaded = loaded_hours(manifests)
    if audit_store is not None:
        problems += otherwise_reported(table.topic, manifests, audit_store)
        before_ms = table.clock_ms() - FORGOTTEN_AFTER_MS
        forgotten = forgotten_rows(table.topic, manifests, audit_store, before_ms)
        problems += _unaudited(table.topic, loaded, forgotten, lineage.hours_of_earlier(), audit_store)
    return VerifyResult(
        topic=table.topic,
        problems=tuple(problems[:PROBLEMS_MAX]),
        files=len(counts),
        rows=sum(count.rows for count in counts),
        changes=len(manifests),
        audited_hours=len(loaded) if audit_store is not None else 0,
        checked=checked,
        of_files=tuple([*of_files, *(each for each in beside if each.path)][:PROBLEMS_MAX]),
        doubles=_doubles(table, state, hours, of_files),
    )


def _at_rest(
    table: TopicTable,
) -> tuple[list[Manifest], TableState, dict[str, int], list[Manifest]]:
    """Returns the manifests, the state, the files in the hours' folders with their sizes, and the changes
    that are not complete: of one moment between two changes, as far as loads leave one.
    """
    log, before = table.log, list[Manifest]()
    for _ in range(LISTINGS_MAX):
        wait_until_complete(log)
        manifests, state = log.manifests(), log.state()
        present = {path: entry.size_bytes for path, entry in table.hdfs.walk(table.paths.hourly)}
        incomplete = log.to_complete()
        is_same = len(manifests) - 1 == state.sequence == log.state().sequence
        if is_same and incomplete == before:
            break
        before = incomplete
    return manifests, state, present, incomplete


def _moving(table: TopicTable, incomplete: Iterable[Manifest], present: Mapping[str, int]) -> set[str]:
    """Returns the files that the next run brings from their staging to their places, and those that it takes
    to the trash: nothing is wrong with them, and none of their rows is lost.
    """
    found: set[str] = set()
    for manifest in incomplete:
        staged = table.hdfs.walk(table.paths.staged(manifest.change_id))
        sizes = {**present, **{path: entry.size_bytes for path, entry in staged}}
        found.update(manifest.removed)
        found.update(
            file.path
            for file in manifest.files
            if file.path not in present and sizes.get(file.staged) == file.size_bytes
        )
    return found


def _doubles(
    table: TopicTable, state: TableState, hours: set[int] | None, of_files: Iterable[TableProblem]
) -> tuple[Doubles, ...]:
    """Compares the guids of the hours that were read, but for those of which a file cannot be read."""
    broken = {each.hour_ms for each in of_files}
    wanted = (hour for hour in state.hours() if (hours is None or hour in hours) and hour not in broken)
    found = (find_doubles(table, state, hour_ms) for hour_ms in wanted)
    return tuple(each for each in found if each.extra)


def suspect_hours(audit_store: str, topic: str) -> set[int]:
    """Returns the hours in which the last verification found something wrong. Raises `StoreMissingError`."""
    store = AuditStore(audit_store, must_exist=True)
    try:
        with store.reading() as connection:
            found = verified_tables(connection, topic)
    finally:
        store.close()
    return {each.hour_ms for table in found for each in table.problems if each.hour_ms != NO_HOUR_MS}


def recent_hours(state: TableState, manifests: Iterable[Manifest], now_ms: int) -> set[int]:
    """Returns the hours with files of new changes, and the share of all others whose turn it is. Pure."""
    new = {
        hour_ms
        for manifest in manifests
        if manifest.committed_ms >= now_ms - NEW_MS
        for hour_ms in manifest.hours()
    }
    turn = now_ms // HOUR_MS % SHARES
    return {hour_ms for hour_ms in state.hours() if hour_ms in new or share_of(hour_ms) == turn}


def share_of(hour_ms: int) -> int:
    """Returns the share of a table to which an hour belongs: the same one everywhere, for ever. Pure."""
    digest = hashlib.blake2b(str(hour_ms).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % SHARES


def _count_all(
    table: TopicTable, state: TableState, present: Mapping[str, int], hours: set[int] | None
) -> tuple[list[FileCount], list[TableProblem]]:
    """Counts the present files, those of `hours` if it is not None; also returns the problems of files."""
    problems: list[TableProblem] = []
    counts: list[FileCount] = []

    def add(file: DataFile, text: str, *, is_gone: bool = False) -> None:
        problems.append(TableProblem(file.hour_ms, file.path, file.rows, is_gone, text))

    for path, file in sorted(state.files.items()):
        if path not in present:
            add(file, f"{path} is missing ({file.rows} rows)", is_gone=True)
            continue
        if present[path] != file.size_bytes:
            add(file, f"{path} has {present[path]} bytes, its manifest has {file.size_bytes}")
        if hours is not None and file.hour_ms not in hours:
            continue
        try:
            counts.append(count_file(table.hdfs, path, present[path]))
            if counts[-1].rows != file.rows:
                add(file, f"{path} has {counts[-1].rows} rows, its manifest has {file.rows}")
            elif file.checksum and read_checksum(table.hdfs, path, present[path]) != file.checksum:
                add(file, f"{path} has {file.rows} rows, and other bytes than when it was written")
        except UNREADABLE as error:
            add(file, str(error))
    return counts, problems


def loaded_hours(manifests: Iterable[Manifest]) -> dict[int, int]:
    """Returns the rows loaded by hour of Kafka timestamps, over all changes, as reported to the audit."""
    rows: Counter[int] = Counter()
    for hour in (hour for manifest in manifests for loaded in manifest.ranges for hour in loaded.hours):
        rows[hour.hour_ms] += hour.rows
    # Dead letters alone may have any time, also one that no report can span.
    return {hour_ms: count for hour_ms, count in sorted(rows.items()) if count}


def _repeated(
    table: TopicTable,
    counts: Iterable[FileCount],
    sizes: Mapping[str, int],
    logs: Mapping[str, int],
    lineage: Lineage,
) -> list[str]:
    """Compares the offsets of rows of one log. `logs`: see `DataFile.log`, by path."""
    groups = [group for count in counts for group in count.groups]
    problems = [
        f"{group.path} holds {group.rows - group.distinct_offsets} rows of partition {group.partition} "
        "more than once"
        for group in groups
        if group.rows != group.distinct_offsets
    ]
    by_place: dict[tuple[int, int, int], list[GroupCount]] = {}
    for group in groups:
        number = lineage.number(group.partition, logs.get(group.path, 0))
        by_place.setdefault((group.partition, group.timestamp_hour_ms, number), []).append(group)
    for (partition, hour_ms, _), found in sorted(by_place.items()):
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


def _unaudited(
    topic: str,
    loaded: Mapping[int, int],
    forgotten: Mapping[int, int],
    shared: Collection[int],
    store_url: str,
) -> list[str]:
    """Compares the rows of each hour with the audit's, but for those that it has forgotten, and for hours of
    which a log was loaded that is there no more: whether the audit still counts that depends on what took
    its place.
    """
    if not loaded:
        return []
    store = AuditStore(store_url, must_exist=True)
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
        if audited[hour_ms] + forgotten.get(hour_ms, 0) != rows and hour_ms not in shared
    ]
