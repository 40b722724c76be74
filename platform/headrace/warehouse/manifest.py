"""Manifests, which commit the changes of a topic's table, and the table state that they add up to.

Owns the JSON of `_log/`. Pure: `commitlog` reads and writes it. A committed manifest never changes; the
state of a table is a fold over its manifests in order of their sequence.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple

from headrace.warehouse.checked import check
from headrace.warehouse.layout import hour_name
from headrace.wire.content import from_hex

FORMAT: Final = 1
MOVE_FORMAT: Final = 2
"""The format of moves. A headrace that does not know them must stop at one, and not complete it."""
DEDUPE_FORMAT: Final = 3
"""The format of dedupes, for the same reason."""
LOG_FORMAT: Final = 4
"""The format of changes that name the topic whose addresses they have, for the same reason."""
Kind = Literal["load", "replay", "compact", "retain", "move", "refill", "dedupe"]
_FORMATS: Final = {"move": MOVE_FORMAT, "dedupe": DEDUPE_FORMAT}
SUMS: Final = ("written", "deleted", "counted")
"""The fields of a `TableState` that add up rows since the change `counted_from`."""


class ManifestError(Exception):
    """A file of the commit log is invalid: changed by hand, or written by a newer headrace."""


@dataclass(frozen=True)
class HourCount:
    """Rows of one partition whose Kafka timestamp is in one hour. The audit compares these counts."""

    hour_ms: int
    rows: int
    distinct_offsets: int
    dead_lettered: int = 0
    content: str | None = None
    """Of the batches that begin in this hour, as they were read (`wire.content`), in hexadecimal digits."""


@dataclass(frozen=True)
class LoadedRange:
    """Addresses `[from_address, to_address)` of a partition that a change consumed, and their rows.

    Of a dedupe: the offsets of rows that it removed.
    """

    partition: int
    from_address: int
    to_address: int
    hours: tuple[HourCount, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    """By which the log of a load is known again: of batches in it the address behind them, and the CRC."""
    begins_at: int | None = None
    """From this load on, the partition's addresses from here on are those of another log, which was made in
    the place of the one before.
    """
    log: int = 0
    """Of a dedupe or a replay, the log of its rows; see `DataFile.log`."""

    @property
    def rows(self) -> int:
        return sum(hour.rows for hour in self.hours)

    @property
    def dead_lettered(self) -> int:
        return sum(hour.dead_lettered for hour in self.hours)


@dataclass(frozen=True)
class LoadGap:
    """Addresses that the brokers deleted before any load; a load continues after them with --accept-gap."""

    partition: int
    from_address: int
    to_address: int
    reason: str


class FileSchema(NamedTuple):
    """The schema that names a file's columns: its id, and whose registry means it by that id.

    The datacenter is None where all registries mean the same.
    """

    schema_id: int
    datacenter: str | None = None


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of one hour of event time.

    `staged` is its path when the change was committed; of a move, that is the path which the move removes.
    """

    path: str
    staged: str
    hour_ms: int
    rows: int
    size_bytes: int
    schema_id: int
    """The reader schema that it was written with, which names its columns."""
    schema_datacenter: str | None = None
    """See `FileSchema`."""
    checksum: str = ""
    """The SHA-256 of its bytes, in hexadecimal digits; empty if an older headrace wrote it."""
    log: int = 0
    """The logs that its rows are of: those since the load of this number began one (`warehouse.lineage`)."""

    @property
    def schema(self) -> FileSchema:
        return FileSchema(self.schema_id, self.schema_datacenter)


@dataclass(frozen=True)
class DeadFile:
    """A Parquet file of records that could not be decoded."""

    path: str
    staged: str
    rows: int
    size_bytes: int
    log: int = 0
    """See `DataFile.log`."""


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
    """Paths of data files and dead-letter files that this change removes."""
    schema_id: int | None = None
    """The newest schema, which names the table's columns from here on."""
    schema_datacenter: str | None = None
    """See `FileSchema`."""
    writer_ids: tuple[int, ...] = ()
    note: str = ""
    topic_id: str = ""
    """Kafka's id of the topic whose addresses are in `ranges` and `gaps`; "" if it is not known."""
    previous: str = ""
    """The digest of the manifest before it (`digest_of`): a chain, in which no earlier one can be changed."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def begun(self) -> dict[int, int]:
        """The partitions whose logs are other ones from this load on, and from which address on."""
        return {each.partition: each.begins_at for each in self.ranges if each.begins_at is not None}

    def hours(self) -> dict[int, int]:
        """Returns the rows in new files by hour of event time."""
        rows: dict[int, int] = {}
        for file in self.files:
            rows[file.hour_ms] = rows.get(file.hour_ms, 0) + file.rows
        return dict(sorted(rows.items()))

    def to_json(self) -> bytes:
        known_from = LOG_FORMAT if self.topic_id else _FORMATS.get(self.kind, FORMAT)
        data = _without_unset({"format": known_from, **asdict(self), "rows": self.rows})
        if not self.previous:
            del data["previous"]
        data["hours"] = {hour_name(hour): rows for hour, rows in self.hours().items()}
        return json.dumps(data, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Manifest":
        with reading(where):
            raw = parsed(data, where, FORMAT, *_FORMATS.values(), LOG_FORMAT)
            del raw["rows"], raw["hours"]
            ranges = tuple(_range(loaded) for loaded in raw.pop("ranges"))
            made = cls(
                ranges=ranges,
                gaps=tuple(LoadGap(**gap) for gap in raw.pop("gaps")),
                files=tuple(DataFile(**file) for file in raw.pop("files")),
                dead_files=tuple(DeadFile(**file) for file in raw.pop("dead_files")),
                removed=tuple(raw.pop("removed")),
                writer_ids=tuple(raw.pop("writer_ids")),
                **raw,
            )
            check(made, cls, "it")
            for hour in (hour for loaded in made.ranges for hour in loaded.hours):
                from_hex(hour.content)
            return made


def _range(loaded: dict[str, Any]) -> LoadedRange:
    hours = tuple(HourCount(**hour) for hour in loaded["hours"])
    marks = tuple((address, crc) for address, crc in loaded.get("marks", ()))
    return LoadedRange(**{**loaded, "hours": hours, "marks": marks})


@dataclass(frozen=True)
class TableState:
    """The state that the commit log up to `sequence` adds up to; -1 if the log is empty."""

    sequence: int = -1
    ends: dict[int, int] = field(default_factory=dict)
    """The address where the next load begins, by partition."""
    files: dict[str, DataFile] = field(default_factory=dict)
    dead_files: dict[str, DeadFile] = field(default_factory=dict)
    schema_id: int | None = None
    schema_datacenter: str | None = None
    changed: dict[int, int] = field(default_factory=dict)
    """The sequence of the last change that added or removed rows, by hour of event time."""
    written: dict[int, int] = field(default_factory=dict)
    """The rows that loads, replays and refills wrote, less what was removed, by hour of event time."""
    deleted: int = 0
    """The rows that retention has deleted, and those that dedupes have removed."""
    counted: dict[int, int] = field(default_factory=dict)
    """All rows that were ever written, by hour of Kafka timestamps, as the audit counts them."""
    counted_from: int = 0
    """The first change in `written` and `counted`: states of an older headrace do not have them."""
    topic_ids: dict[int, str] = field(default_factory=dict)
    """Kafka's id of the topic of which each partition was loaded last, if it is known."""
    log: int = 0
    """The last load that began a log; see `DataFile.log`."""

    @property
    def next_sequence(self) -> int:
        return self.sequence + 1

    def after(self, manifest: Manifest) -> "TableState":
        """Returns the state with one more change. Raises `ManifestError` if it does not follow."""
        if manifest.sequence != self.next_sequence:
            raise ManifestError(f"manifest {manifest.sequence} can't follow manifest {self.sequence}")
        ends, topic_ids = {**self.ends, **manifest.begun}, dict(self.topic_ids)
        for gap in manifest.gaps:
            ends[gap.partition] = gap.to_address
        for loaded in manifest.ranges if manifest.kind == "load" else ():
            if ends.get(loaded.partition, loaded.from_address) != loaded.from_address:
                raise ManifestError(
                    f"manifest {manifest.sequence} loads partition {loaded.partition} from "
                    f"{loaded.from_address}, but the log's end is {ends[loaded.partition]}"
                )
            ends[loaded.partition] = loaded.to_address
            if manifest.topic_id:
                topic_ids[loaded.partition] = manifest.topic_id
        changed = dict(self.changed)
        if manifest.kind not in ("compact", "move"):
            changed.update(dict.fromkeys(manifest.hours(), manifest.sequence))
        removed = set(manifest.removed)
        gone = [self.files[path] for path in removed & self.files.keys()]
        if manifest.kind == "dedupe":
            # Of files that only repeat others nothing is left: then there is no new file of the hour.
            changed.update((file.hour_ms, manifest.sequence) for file in gone)
        files = {path: file for path, file in self.files.items() if path not in removed}
        files.update((file.path, file) for file in manifest.files)
        dead = {path: file for path, file in self.dead_files.items() if path not in removed}
        dead.update((file.path, file) for file in manifest.dead_files)
        schema: TableState | Manifest = self if manifest.schema_id is None else manifest
        names = (schema.schema_id, schema.schema_datacenter)
        written, counted = Counter(self.written), Counter(self.counted)
        if manifest.kind in ("load", "replay", "refill", "dedupe"):
            written.update(manifest.hours())
        if manifest.kind in ("load", "replay", "refill"):
            for hour in (hour for loaded in manifest.ranges for hour in loaded.hours):
                counted[hour.hour_ms] += hour.rows
        for file in gone if manifest.kind in ("retain", "refill", "dedupe") else ():
            written[file.hour_ms] -= file.rows
        deleted = self.deleted
        if manifest.kind in ("retain", "dedupe"):
            deleted += sum(file.rows for file in gone) - manifest.rows
        sums = (dict(written), deleted, dict(counted), self.counted_from)
        log = manifest.sequence if manifest.begun else self.log
        return TableState(manifest.sequence, ends, files, dead, *names, changed, *sums, topic_ids, log)

    def hours(self) -> dict[int, list[DataFile]]:
        """Returns the table's files by hour of event time, in order."""
        found: dict[int, list[DataFile]] = {}
        for file in sorted(self.files.values(), key=lambda file: (file.hour_ms, file.path)):
            found.setdefault(file.hour_ms, []).append(file)
        return found

    def to_json(self) -> bytes:
        data = {
            "format": FORMAT,
            "sequence": self.sequence,
            "ends": self.ends,
            "files": [asdict(file) for file in self.files.values()],
            "dead_files": [asdict(file) for file in self.dead_files.values()],
            "schema_id": self.schema_id,
            "schema_datacenter": self.schema_datacenter,
            "changed": self.changed,
            "written": self.written,
            "deleted": self.deleted,
            "counted": self.counted,
            "counted_from": self.counted_from,
            "topic_ids": self.topic_ids,
            "log": self.log,
        }
        return json.dumps(_without_unset(data)).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "TableState":
        with reading(where):
            raw = parsed(data, where, FORMAT)
            made = cls(
                sequence=raw["sequence"],
                ends={int(partition): end for partition, end in raw["ends"].items()},
                files={file["path"]: DataFile(**file) for file in raw["files"]},
                dead_files={file["path"]: DeadFile(**file) for file in raw["dead_files"]},
                schema_id=raw["schema_id"],
                schema_datacenter=raw.get("schema_datacenter"),
                changed={int(hour): sequence for hour, sequence in raw["changed"].items()},
                written={int(hour): rows for hour, rows in raw.get("written", {}).items()},
                deleted=raw.get("deleted", 0),
                counted={int(hour): rows for hour, rows in raw.get("counted", {}).items()},
                counted_from=raw.get("counted_from", raw["sequence"] + 1),
                topic_ids={int(number): topic_id for number, topic_id in raw.get("topic_ids", {}).items()},
                log=raw.get("log", 0),
            )
            check(made, cls, "it")
            return made


def digest_of(data: bytes) -> str:
    """Returns the digest of a manifest's bytes, as the next one holds it."""
    return hashlib.sha256(data).hexdigest()


_UNSET: Final[tuple[tuple[str, object], ...]] = (
    *(("schema_datacenter", None), ("checksum", ""), ("content", None)),
    *(("marks", ()), ("begins_at", None), ("log", 0), ("topic_id", ""), ("topic_ids", {})),
)


def _without_unset(data: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what is not there, of the fields that older versions do not know."""
    kept = {name: value for name, value in data.items() if (name, value) not in _UNSET}
    for name in ("files", "dead_files", "ranges", "hours"):
        if isinstance(kept.get(name), list | tuple):
            kept[name] = [_without_unset(each) for each in kept[name]]
    return kept


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turns whatever a malformed file raises into a `ManifestError` that names the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"[:500]
        raise ManifestError(f"{where} can't be read: {problem}") from error


def parsed(data: bytes, where: str, *known_formats: int) -> dict[str, Any]:
    """Returns the JSON object in `data` without its format. Raises `ManifestError` for an unknown format."""
    raw: dict[str, Any] = json.loads(data)
    if raw.pop("format") not in known_formats:
        raise ManifestError(f"{where} has an unknown format; a newer headrace wrote it")
    return raw
