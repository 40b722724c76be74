"""From Avro schemas to a program that the compiled loop (`interpreter`) runs for each record. Pure.

Owns the columns of an event, and what a writer's field becomes in the reader's column: Avro's schema
resolution. Handles records, primitive types, enums, fixed, the logical types of dates and timestamps, and
unions of one type with null. `NoProgramError` says what it does not handle (arrays, maps, decimals,
other unions): `from_avro` decodes such events.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.warehouse.source.opcodes import Op
from headrace.warehouse.types import LOGICAL, PLAIN

CONSTANT_SIZE_MAX_BYTES: Final = 1024
"""A default value is copied into every row that lacks the field."""
COLUMNS_MAX: Final = 500
LONG_MAX: Final = (1 << 63) - 1

# The types that the table's files have, without columns of nulls alone; Spark has no type for a time of day.
_PLAIN: Final = {kind: each for kind, each in PLAIN.items() if kind != "null"}
_LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = LOGICAL | {
    ("string", "uuid"): pa.string(),
    ("int", "time-millis"): pa.int32(),
    ("long", "time-micros"): pa.int64(),
}
_TEXTS: Final = ("string", "bytes")
_REALS: Final = ("float", "double")
_READ: Final[dict[str, Op]] = {
    "boolean": Op.BOOLEAN,
    "int": Op.INT,
    "long": Op.LONG,
    "string": Op.TEXT,
    "bytes": Op.TEXT,
}
_READ_REAL: Final[dict[str, Op]] = {
    "int": Op.REAL_OF_INT,
    "long": Op.REAL_OF_LONG,
    "float": Op.REAL_OF_FLOAT,
    "double": Op.REAL_OF_DOUBLE,
}
_SKIP: Final[dict[str, Op]] = {
    "int": Op.SKIP_INT,
    "enum": Op.SKIP_INT,
    "long": Op.SKIP_LONG,
    "string": Op.SKIP_TEXT,
    "bytes": Op.SKIP_TEXT,
}
_SKIP_SIZE_BYTES: Final = {"float": 4, "double": 8}


class NoProgramError(Exception):
    """No program can decode events of this schema. The message says which part of it."""


@dataclass(frozen=True)
class EventColumn:
    """One column of the event: a leaf, or a record with `children`."""

    name: str
    type: pa.DataType
    kind: str
    """What holds the values: `integer`, `real`, `text` or `record`."""
    slot: int
    """The row of the array of that kind; -1 for a record."""
    valid_slot: int
    scale: int = 1
    children: tuple["EventColumn", ...] = ()


@dataclass(frozen=True)
class Program:
    """What `interpreter.run` needs, and the columns that it fills."""

    columns: tuple[EventColumn, ...]
    entries: Mapping[int, int]
    """Where the program of each schema id begins."""
    ops: npt.NDArray[np.int64]
    tables: npt.NDArray[np.int64]
    pool: npt.NDArray[np.uint8]
    integers: int
    reals: int
    texts: int
    valids: int

    @property
    def fields(self) -> list[pa.Field]:
        """The event's columns in Arrow's types, as Spark's Avro reader has them."""
        return [pa.field(column.name, column.type) for column in self.columns]

    def leaf(self, *path: str) -> EventColumn:
        """Returns the column at this path. Raises `KeyError`."""
        columns, found = self.columns, None
        for name in path:
            found = next((column for column in columns if column.name == name), None)
            if found is None:
                raise KeyError(".".join(path))
            columns = found.children
        assert found is not None
        return found


def compile_program(reader: str, writers: Mapping[int, str]) -> Program:
    """Returns the program that decodes records of these schemas, by id, to the columns of `reader`.

    Raises `NoProgramError`.
    """
    parsed = _expanded(reader)
    if _kind(parsed) != "record":
        raise NoProgramError("the event is no record")
    columns = _Columns()
    event = columns.of("event", parsed)
    code = _Code()
    entries: dict[int, int] = {}
    for schema_id, text in writers.items():
        entries[schema_id] = len(code.ops)
        code.value(_expanded(text), parsed, event)
        code.add(Op.END)
    return Program(
        columns=event.children,
        entries=entries,
        ops=np.array(code.ops, np.int64),
        tables=np.array([*code.tables, 0], np.int64),
        pool=np.frombuffer(bytes(code.pool) + b"\0", np.uint8),
        integers=columns.counts["integer"],
        reals=columns.counts["real"],
        texts=columns.counts["text"],
        valids=columns.valids,
    )


class _Columns:
    """Gives every column of the reader's schema its slots."""

    def __init__(self) -> None:
        self.counts = {"integer": 0, "real": 0, "text": 0, "record": 0}
        self.valids = 0

    def of(self, name: str, schema: Any) -> EventColumn:
        schema = _without_null(schema)
        kind = _kind(schema)
        valid_slot = self.valids
        self.valids += 1
        if self.valids > COLUMNS_MAX:
            raise NoProgramError(f"the event has more than {COLUMNS_MAX} columns")
        if kind == "record":
            children = tuple(self.of(field["name"], field["type"]) for field in schema["fields"])
            names = [child.name.lower() for child in children]
            if not names or len(set(names)) < len(names):
                raise NoProgramError(f"record {name} has no fields, or names that differ in case only")
            fields = [pa.field(child.name, child.type) for child in children]
            return EventColumn(name, pa.struct(fields), "record", -1, valid_slot, children=children)
        held = "text" if kind in (*_TEXTS, "enum", "fixed") else "real" if kind in _REALS else "integer"
        slot = self.counts[held]
        self.counts[held] += 1
        return EventColumn(name, _arrow_type(schema), held, slot, valid_slot, _unit_us(schema) or 1)


class _Code:
    """The operations so far. Each `value` leaves the position after the value that it reads."""

    def __init__(self) -> None:
        self.ops: list[tuple[int, int, int, int]] = []
        self.tables: list[int] = []
        self.pool = bytearray()

    def add(self, op: Op, column: EventColumn | None = None, first: int = 0, second: int = 0) -> int:
        """Appends an operation; returns its place. It gets the slots of `column`, or else the numbers."""
        if column is not None:
            self.ops.append((op, column.slot, column.valid_slot, first))
        else:
            self.ops.append((op, first, second, 0))
        return len(self.ops) - 1

    def value(self, writer: Any, reader: Any, column: EventColumn) -> None:
        """Reads a value of the type `writer` into the column, whose type is `reader`."""
        if isinstance(writer, list):
            self._branches(writer, reader, column)
            return
        if writer == "null":
            if not isinstance(reader, list) or "null" not in reader:
                raise NoProgramError(f"{column.name} may be null, but not in the reader's schema")
            self._null(column)
            return
        reader = _without_null(reader)
        kind, into = _kind(writer), _kind(reader)
        if {kind, into} & {"record", "enum", "fixed"}:
            self._named(writer, reader, column)
        elif column.kind == "real" and kind in _READ_REAL and (kind, into) != ("double", "float"):
            self.add(_READ_REAL[kind], column, int(into == "float"))
        elif kind == into or (kind, into) == ("int", "long") or {kind, into} == set(_TEXTS):
            if kind not in _READ:
                raise NoProgramError(f"{column.name}: {kind} is not handled")
            # A time is what its writer means by it; a plain number counts the reader's units.
            is_time = _unit_us(reader) and _unit_us(writer)
            self.add(_READ[kind], column, _unit_us(writer) if is_time else column.scale)
        else:
            raise NoProgramError(f"{column.name}: {kind} can't be read as {into}")

    def _branches(self, writer: list[Any], reader: Any, column: EventColumn) -> None:
        def read(branch: Any) -> None:
            self.value(branch, reader, column)

        self._each_branch(writer, read)

    def _each_branch(self, branches: list[Any], emit: Any) -> None:
        at = len(self.tables)
        self.tables += [0] * len(branches)
        self.add(Op.BRANCH, None, at, len(branches))
        jumps = []
        for index, branch in enumerate(branches):
            self.tables[at + index] = len(self.ops)
            emit(branch)
            jumps.append(self.add(Op.JUMP))
        for jump in jumps:
            self.ops[jump] = (Op.JUMP, len(self.ops), 0, 0)

    def _named(self, writer: Any, reader: Any, column: EventColumn) -> None:
        kind = _kind(writer)
        if kind != _kind(reader) or not _same_name(writer, reader):
            raise NoProgramError(f"{column.name}: the types of writer and reader differ")
        if kind == "record":
            self._record(writer, reader, column)
        elif kind == "fixed":
            if writer["size"] != reader["size"]:
                raise NoProgramError(f"{column.name}: the sizes of writer and reader differ")
            self.add(Op.FIXED, column, writer["size"])
        else:
            self._enum(writer, reader, column)

    def _record(self, writer: Any, reader: Any, column: EventColumn) -> None:
        read_by: dict[str, tuple[Any, EventColumn]] = {}
        written = {field["name"] for field in writer["fields"]}
        own = written & {field["name"] for field in reader["fields"]}
        for field, child in zip(reader["fields"], column.children, strict=True):
            names = [field["name"], *(alias for alias in field.get("aliases", ()) if alias not in own)]
            source = next((name for name in names if name in written and name not in read_by), None)
            if source is not None:
                read_by[source] = (field["type"], child)
            elif "default" in field:
                self._constant(field["type"], field["default"], child)
            else:
                raise NoProgramError(f"{child.name} is in no field of the writer, and has no default")
        for field in writer["fields"]:
            if field["name"] in read_by:
                self.value(field["type"], *read_by[field["name"]])
            else:
                self._skip(field["type"])

    def _enum(self, writer: Any, reader: Any, column: EventColumn) -> None:
        at = len(self.tables)
        symbols = [
            symbol if symbol in reader["symbols"] else reader.get("default") for symbol in writer["symbols"]
        ]
        for symbol in symbols:
            # A symbol that the reader lacks, without default, can't be decoded: its size is -1.
            self.tables += self._pooled(symbol.encode()) if symbol is not None else (0, -1)
        first = len(self.tables)
        self.tables += [at, len(symbols)]
        self.add(Op.ENUM, column, first)

    def _skip(self, schema: Any) -> None:
        """Reads a value of a field that the reader lacks."""
        if isinstance(schema, list):
            self._each_branch(schema, self._skip)
            return
        kind = _kind(schema)
        if kind == "record":
            for field in schema["fields"]:
                self._skip(field["type"])
        elif kind == "boolean":
            self.add(Op.SKIP_BOOLEAN)
        elif kind in _SKIP:
            self.add(_SKIP[kind], None, len(schema["symbols"]) if kind == "enum" else -1)
        elif kind in _SKIP_SIZE_BYTES or kind == "fixed":
            self.add(Op.SKIP_FIXED, None, schema["size"] if kind == "fixed" else _SKIP_SIZE_BYTES[kind])
        elif kind != "null":
            raise NoProgramError(f"a field that the reader lacks: {kind} is not handled")

    def _null(self, column: EventColumn) -> None:
        self.add(Op.NULL_RECORD if column.kind == "record" else _NULL[column.kind], column)
        for child in column.children:
            self._null(child)

    def _constant(self, schema: Any, value: Any, column: EventColumn) -> None:
        """Gives the column a default value of the reader's schema in every row."""
        if value is None:
            if not (isinstance(schema, list) and "null" in schema):
                raise NoProgramError(f"{column.name}: the default is null, the type is not")
            self._null(column)
            return
        schema = _without_null(schema)
        kind = _kind(schema)
        if kind == "record":
            for field, child in zip(schema["fields"], column.children, strict=True):
                name = field["name"]
                if name not in value and "default" not in field:
                    raise NoProgramError(f"{child.name} has no default")
                self._constant(field["type"], value.get(name, field.get("default")), child)
        elif column.kind == "text":
            data = value.encode("latin-1" if kind in ("bytes", "fixed") else "utf-8")
            if len(data) > CONSTANT_SIZE_MAX_BYTES:
                raise NoProgramError(
                    f"the default of {column.name} is longer than {CONSTANT_SIZE_MAX_BYTES} bytes"
                )
            at = len(self.tables)
            self.tables += self._pooled(data)
            self.add(Op.CONSTANT_TEXT, column, at)
        elif column.kind == "real":
            at = len(self.tables)
            self.tables.append(int(np.float64(value).view(np.int64)))
            self.add(Op.CONSTANT_REAL, column, at)
        else:
            # A time beyond any number of a column is none that can be shown, so the decoder refuses its rows.
            number = min(max(int(value) * column.scale, -LONG_MAX), LONG_MAX)
            self.add(Op.CONSTANT_INTEGER, column, number)

    def _pooled(self, data: bytes) -> tuple[int, int]:
        at = len(self.pool)
        self.pool += data
        return at, len(data)


_NULL: Final = {"integer": Op.NULL_INTEGER, "real": Op.NULL_REAL, "text": Op.NULL_TEXT}


def _expanded(schema: str) -> Any:
    """The parsed schema, in which every named type is written out. A recursive one has a name left."""
    # Imported here because executors run programs and compile none.
    import fastavro.schema

    return fastavro.schema.expand_schema(json.loads(schema))


def _kind(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        raise NoProgramError("a union in a union")
    kind = schema["type"]
    if isinstance(kind, str):
        return kind
    return _kind(kind)


def _without_null(schema: Any) -> Any:
    """The type of a column, of which a union may have one besides null."""
    if not isinstance(schema, list):
        return schema
    others = [branch for branch in schema if branch != "null"]
    if len(others) != 1:
        raise NoProgramError(f"a union of {len(others)} types besides null")
    return others[0]


def _logical(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _unit_us(schema: Any) -> int:
    """Returns the unit of a time; 0 if the type is none."""
    if (_kind(schema), _logical(schema)) not in LOGICAL or _kind(schema) != "long":
        return 0
    return 1000 if str(_logical(schema)).endswith("millis") else 1


def _arrow_type(schema: Any) -> pa.DataType:
    kind, logical = _kind(schema), _logical(schema)
    found = _PLAIN.get(kind) if logical is None else _LOGICAL.get((kind, logical))
    if found is None:
        raise NoProgramError(f"{kind}{f' with logical type {logical}' if logical else ''}")
    return found


def _same_name(writer: Any, reader: Any) -> bool:
    """Whether two named types match: by name, without namespace, or by an alias of the reader's."""
    names = {_last(name) for name in (reader["name"], *reader.get("aliases", ()))}
    return _last(writer["name"]) in names


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]
