"""What a change of the warehouse is: the manifest that commits it, and what all manifests add up to.

Owns the JSON of `_log/`. Pure: `commitlog` reads and writes it. A manifest never changes once committed;
the state of a topic is a fold over them in order of their sequence.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from headrace.warehouse.layout import hour_name

FORMAT: Final = 1
Kind = Literal["load", "replay", "compact", "retain"]


class ManifestError(Exception):
    """A file of the commit log isn't what it should be.

    Somebody changed it by hand, or a newer headrace wrote it.
    """


@dataclass(frozen=True)
class HourCount:
    """Rows of one partition whose Kafka timestamp lies in one hour: what the audit compares."""

    hour_ms: int
    rows: int
    distinct_offsets: int
    dead_lettered: int = 0


@dataclass(frozen=True)
class LoadedRange:
    """Addresses `[from_address, to_address)` of a partition that this change consumed, and what they held."""

    partition: int
    from_address: int
    to_address: int
    hours: tuple[HourCount, ...] = ()

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.hours)

    @property
    def dead_lettered(self) -> int:
        return sum(each.dead_lettered for each in self.hours)


@dataclass(frozen=True)
class LoadGap:
    """Addresses that retention had eaten before a load came, stepped over because the operator said so."""

    partition: int
    from_address: int
    to_address: int
    reason: str


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of one hour of event time. `staged` is where it lay when the change was committed."""

    path: str
    staged: str
    hour_ms: int
    rows: int
    size_bytes: int
    schema_id: int
    """The reader schema it was written with: names its columns."""


@dataclass(frozen=True)
class DeadFile:
    """A Parquet file of records that couldn't be decoded."""

    path: str
    staged: str
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """One committed change of one topic."""

    sequence: int
    kind: Kind
    topic: str
    change_id: str
    committed_ms: int
    warehouse: str
    ranges: tuple[LoadedRange, ...] = ()
    gaps: tuple[LoadGap, ...] = ()
    files: tuple[DataFile, ...] = ()
    dead_files: tuple[DeadFile, ...] = ()
    removed: tuple[str, ...] = ()
    """Paths of data and dead files that this change takes away."""
    schema_id: int | None = None
    """The newest schema: the table's columns from here on."""
    writer_ids: tuple[int, ...] = ()
    note: str = ""

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    def hours(self) -> dict[int, int]:
        """Rows in new files by hour of event time."""
        found: dict[int, int] = {}
        for each in self.files:
            found[each.hour_ms] = found.get(each.hour_ms, 0) + each.rows
        return dict(sorted(found.items()))

    def to_json(self) -> bytes:
        data = {"format": FORMAT, **asdict(self), "rows": self.rows}
        data["hours"] = {hour_name(hour): rows for hour, rows in self.hours().items()}
        return json.dumps(data, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Manifest":
        try:
            raw = json.loads(data)
            if raw.pop("format") != FORMAT:
                raise ManifestError(f"{where} is of another format; a newer headrace wrote it")
            del raw["rows"], raw["hours"]
            ranges = tuple(
                LoadedRange(**{**each, "hours": tuple(HourCount(**hour) for hour in each["hours"])})
                for each in raw.pop("ranges")
            )
            return cls(
                ranges=ranges,
                gaps=tuple(LoadGap(**each) for each in raw.pop("gaps")),
                files=tuple(DataFile(**each) for each in raw.pop("files")),
                dead_files=tuple(DeadFile(**each) for each in raw.pop("dead_files")),
                removed=tuple(raw.pop("removed")),
                writer_ids=tuple(raw.pop("writer_ids")),
                **raw,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{where} can't be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class TableState:
    """What the commit log up to `sequence` adds up to; -1 when it is empty."""

    sequence: int = -1
    ends: dict[int, int] = field(default_factory=dict)
    """By partition the address where the next load begins."""
    files: dict[str, DataFile] = field(default_factory=dict)
    dead_files: dict[str, DeadFile] = field(default_factory=dict)
    schema_id: int | None = None
    changed: dict[int, int] = field(default_factory=dict)
    """By hour of event time the sequence of the last change that brought or took rows."""

    @property
    def next_sequence(self) -> int:
        return self.sequence + 1

    def after(self, manifest: Manifest) -> "TableState":
        """The state with one more change. Raises `ManifestError` where the change doesn't follow."""
        if manifest.sequence != self.next_sequence:
            raise ManifestError(f"manifest {manifest.sequence} can't follow manifest {self.sequence}")
        ends = dict(self.ends)
        for gap in manifest.gaps:
            ends[gap.partition] = gap.to_address
        for each in manifest.ranges if manifest.kind == "load" else ():
            if each.partition in ends and ends[each.partition] != each.from_address:
                raise ManifestError(
                    f"manifest {manifest.sequence} loads partition {each.partition} from "
                    f"{each.from_address}, "
                    f"but the log's end is {ends[each.partition]}"
                )
            ends[each.partition] = each.to_address
        gone = set(manifest.removed)
        changed = dict(self.changed)
        if manifest.kind != "compact":
            changed.update(dict.fromkeys(manifest.hours(), manifest.sequence))
        files = {path: each for path, each in self.files.items() if path not in gone}
        files.update((each.path, each) for each in manifest.files)
        dead = {path: each for path, each in self.dead_files.items() if path not in gone}
        dead.update((each.path, each) for each in manifest.dead_files)
        schema_id = self.schema_id if manifest.schema_id is None else manifest.schema_id
        return TableState(manifest.sequence, ends, files, dead, schema_id, changed)

    def hours(self) -> dict[int, list[DataFile]]:
        """The table's files by hour of event time, in order."""
        found: dict[int, list[DataFile]] = {}
        for each in sorted(self.files.values(), key=lambda file: (file.hour_ms, file.path)):
            found.setdefault(each.hour_ms, []).append(each)
        return found

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "sequence": self.sequence,
                "ends": self.ends,
                "files": [asdict(each) for each in self.files.values()],
                "dead_files": [asdict(each) for each in self.dead_files.values()],
                "schema_id": self.schema_id,
                "changed": self.changed,
            }
        ).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "TableState":
        try:
            raw: dict[str, Any] = json.loads(data)
            if raw["format"] != FORMAT:
                raise ManifestError(f"{where} is of another format; a newer headrace wrote it")
            return cls(
                sequence=raw["sequence"],
                ends={int(partition): end for partition, end in raw["ends"].items()},
                files={each["path"]: DataFile(**each) for each in raw["files"]},
                dead_files={each["path"]: DeadFile(**each) for each in raw["dead_files"]},
                schema_id=raw["schema_id"],
                changed={int(hour): sequence for hour, sequence in raw["changed"].items()},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{where} can't be read: {type(error).__name__}: {error}") from error


def fold(manifests: Iterable[Manifest], state: TableState | None = None) -> TableState:
    """What these manifests, in order of their sequence, add up to on top of `state`."""
    state = state or TableState()
    for manifest in manifests:
        state = state.after(manifest)
    return state
