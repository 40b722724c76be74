"""Whether seals still say what was sealed, and what the commit log says of their hours. Changes nothing.

A seal that was edited has another digest than its content. One that was made again with a fitting digest, or
that an older headrace wrote without any, is compared with the commit log: the hour's files and rows, and what
the loads had counted of it, as of some moment between the change that it names and the hour's next one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths, hour_name
from headrace.warehouse.manifest import Manifest, ManifestError, TableState
from headrace.warehouse.seal import SEALS_AT_ONCE, Seal, read_seal, seal_files, sealed_to
from headrace.warehouse.sealed_rows import may_be_forgotten, rows_proven

_COUNTING: Final = ("load", "replay", "refill")
_SAME_ROWS: Final = ("compact", "move")
"""Kinds of changes that write an hour's rows into other files."""


class _Moment(NamedTuple):
    """What the commit log says of an hour up to one change. `changes`: whether that change's rows are new."""

    sequence: int
    changes: bool
    paths: frozenset[str]
    rows: int
    counted: int


@dataclass
class _Hour:
    """One hour while the manifests are read: its files with their rows, and what loads counted of it."""

    files: dict[str, int] = field(default_factory=dict)
    counted: int = 0
    moments: list[_Moment] = field(default_factory=list)


def problems_of_seals(
    hdfs: HdfsClient,
    paths: TopicPaths,
    manifests: Iterable[Manifest],
    state: TableState,
    hours: Collection[int] | None = None,
) -> list[str]:
    """Returns one line for each seal of a table that is wrong. `hours`: look only at the seals of these.

    `manifests`: all of the table; `state`: what they add up to. Raises `HdfsError`.
    """
    wanted = [each for each in seal_files(hdfs, paths) if hours is None or each[0] in hours]
    with ThreadPoolExecutor(SEALS_AT_ONCE, thread_name_prefix="seals") as pool:
        read = list(pool.map(lambda each: _read(hdfs, each[2]), wanted))
    moments = _moments(manifests, {hour_ms for hour_ms, _, _ in wanted})
    found: list[str] = []
    known = {(each[0], each[1]): seal for each, seal in zip(wanted, read, strict=True)}
    for (hour_ms, version, where), seal in zip(wanted, read, strict=True):
        if isinstance(seal, str):
            found.append(seal)
        elif (seal.topic, seal.hour_ms, seal.version) != (paths.topic, hour_ms, version):
            found.append(
                f"{where} is a seal of {seal.topic[:80]!r}, {hour_name(seal.hour_ms)}, version {seal.version}"
            )
        elif problem := _compared(
            seal, moments[hour_ms], known.get((hour_ms, version - 1)), is_summed_up=not state.counted_from
        ):
            found.append(f"{where}: {problem}")
    return found


def _read(hdfs: HdfsClient, where: str) -> Seal | str:
    try:
        return read_seal(hdfs, where)
    except ManifestError as error:
        return str(error)


def _moments(manifests: Iterable[Manifest], wanted: set[int]) -> dict[int, list[_Moment]]:
    """Returns, for each wanted hour, what the commit log said of it after each change that concerns it."""
    hours: defaultdict[int, _Hour] = defaultdict(_Hour)
    hour_of: dict[str, int] = {}
    for manifest in manifests:
        touched = {hour_of[path] for path in manifest.removed if path in hour_of}
        for path in (path for path in manifest.removed if path in hour_of):
            hours[hour_of.pop(path)].files.pop(path, None)
        for file in (file for file in manifest.files if file.hour_ms in wanted):
            hour_of[file.path] = file.hour_ms
            hours[file.hour_ms].files[file.path] = file.rows
        changed = manifest.hours().keys() & wanted
        if manifest.kind == "dedupe":
            changed |= touched
        for hour_ms, rows in _counted(manifest):
            if hour_ms in wanted:
                hours[hour_ms].counted += rows
                touched.add(hour_ms)
        for hour_ms in touched | changed:
            hour = hours[hour_ms]
            is_change = hour_ms in changed and manifest.kind not in _SAME_ROWS
            rows = sum(hour.files.values())
            hour.moments.append(
                _Moment(manifest.sequence, is_change, frozenset(hour.files), rows, hour.counted)
            )
    return {hour_ms: hours[hour_ms].moments for hour_ms in wanted}


def _counted(manifest: Manifest) -> Iterator[tuple[int, int]]:
    """Yields the rows that a change consumed, with their hour of Kafka timestamps."""
    if manifest.kind in _COUNTING:
        for loaded in manifest.ranges:
            for hour in loaded.hours:
                yield hour.hour_ms, hour.rows


def _compared(
    seal: Seal, moments: Collection[_Moment], before: Seal | str | None, *, is_summed_up: bool
) -> str:
    """Returns what of a seal the commit log never said while the seal was the hour's newest. Pure.

    `before`: the seal of the version before, or why that is not believed.
    """
    window: list[_Moment] = []
    for moment in moments:
        if moment.sequence > seal.sequence and moment.changes:
            break
        window = [*window, moment] if moment.sequence > seal.sequence else [moment]
    window = window or [_Moment(seal.sequence, False, frozenset(), 0, 0)]
    if not any((each.paths, each.rows) == (frozenset(seal.files), seal.rows) for each in window):
        return (
            f"it says {seal.rows} rows in {len(seal.files)} files, the commit log had {window[-1].rows} rows "
            f"in {len(window[-1].paths)} files after change {seal.sequence}, or other files"
        )
    try:
        proven = rows_proven(seal.proof)
        if proven is None or not is_summed_up or proven in {each.counted for each in window}:
            return ""
        counted = max(each.counted for each in window)
        to = sealed_to(before) if isinstance(before, Seal) else -1
        sealed = max((each.counted for each in moments if each.sequence <= to), default=0)
        is_forgotten = may_be_forgotten(seal.proof, seal.hour_ms, proven, counted)
        if is_forgotten and counted - proven <= (counted if isinstance(before, str) else sealed):
            return ""
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        return f"its proof can't be read: {type(error).__name__}: {str(error)[:200]}"
    return f"its proof says {proven} rows, the loads had counted {counted}"
