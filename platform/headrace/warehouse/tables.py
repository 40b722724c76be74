"""Reads a table through the commit log, so that no incomplete change is visible.

Owns Spark's data frames of a table: its files wherever they are at the time, under the newest schema's
names, with the schema's docs as comments. Other tools may read the plain paths below `hourly/`, where a
change may be visible in part while it is completed.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from headrace.registry.client import SchemaConflictError
from headrace.warehouse.change import hdfs_of
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.completing import path_now, wait_until_complete
from headrace.warehouse.decode import ADDRESS_COLUMNS, ADDRESS_FIELDS, with_comments
from headrace.warehouse.evolution import columns
from headrace.warehouse.evolved_columns import evolved_frame
from headrace.warehouse.layout import TopicPaths, hour_of, parse_hour
from headrace.warehouse.manifest import FileSchema
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import Registries, SchemasError
from headrace.warehouse.types import arrow_fields, commented
from headrace.warehouse.versions import LocatedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Hours = Iterable[int | str] | None


class NoSuchTableError(Exception):
    """The warehouse has no rows of this topic (in these hours)."""


def read(
    spark: "SparkSession",
    topic: str,
    hours: Hours = None,
    *,
    warehouse: WarehouseOptions,
    by_schema: bool = True,
) -> "DataFrame":
    """Returns the rows of a topic, of all hours or of these (`"2026-11-20T18"`, or the beginning in ms).

    Columns are the newest schema's: a column that an older file lacks is null, a renamed one (by an alias)
    has its new name. `by_schema=False` leaves columns as the files have them, and needs no registry. Raises
    `NoSuchTableError`.
    """
    wanted = (
        None
        if hours is None
        else {hour_of(hour) if isinstance(hour, int) else parse_hour(hour) for hour in hours}
    )
    with hdfs_of(warehouse) as hdfs:
        log = CommitLog(hdfs, TopicPaths(warehouse.root, topic))
        staged = wait_until_complete(log)
        state = log.state()
        located = [
            LocatedFile(file, path_now(hdfs, file, staged))
            for hour_ms, files in state.hours().items()
            if wanted is None or hour_ms in wanted
            for file in files
        ]
    if not located:
        where = "" if wanted is None else " in these hours"
        raise NoSuchTableError(f"the warehouse {warehouse.name} has no rows of {topic}{where}")
    newest = None if state.schema_id is None else FileSchema(state.schema_id, state.schema_datacenter)
    return spark_frame(spark, warehouse, located, newest if by_schema else None)


def spark_frame(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    files: Sequence[LocatedFile],
    newest: FileSchema | None,
    chosen: "Callable[[DataFrame, str], DataFrame]" = lambda rows, _: rows,
) -> "DataFrame":
    """Returns the rows of these files. Columns are those of `newest`; None: as the files have them.

    `chosen`: which rows of files of one schema, by the columns that these files have, and by that schema.
    """
    if newest is None:
        paths = [warehouse.url(located.path) for located in files]
        return spark.read.option("mergeSchema", "true").parquet(*paths)
    by_schema: dict[FileSchema, list[str]] = {}
    for located in files:
        by_schema.setdefault(located.file.schema, []).append(warehouse.url(located.path))
    tables = {schema: spark.read.parquet(*paths) for schema, paths in by_schema.items()}
    texts = schema_texts(warehouse, newest, {schema: frame.columns for schema, frame in tables.items()})
    fields = [*arrow_fields(texts[newest]), *ADDRESS_FIELDS]
    frames = [
        evolved_frame(chosen(rows, texts[schema]), fields, columns(texts[newest], texts[schema]))
        for schema, rows in tables.items()
    ]
    rows = reduce(lambda left, right: left.unionByName(right), frames)
    return with_comments(rows, commented(rows.schema.jsonValue(), fields))


def schema_texts(
    warehouse: WarehouseOptions, newest: FileSchema, columns: Mapping[FileSchema, Sequence[str]]
) -> dict[FileSchema, str]:
    """Returns the Avro schemas of files, whose columns are given, and of the newest.

    Raises `SchemasError`, and errors of the registries.
    """
    with Registries(warehouse.registry_url) as registries:
        return {schema: _text(registries, schema, columns.get(schema)) for schema in {*columns, newest}}


def _text(registries: Registries, schema: FileSchema, columns: Sequence[str] | None) -> str:
    """Returns the schema that files of these columns were written with (None: there are no such files).

    Where registries mean different schemas by its id, the manifest says whose was meant. If the registry that
    contradicts came later, the manifest does not say it, and the columns do.
    """
    if schema.datacenter is not None:
        with registries.of_datacenter(schema.datacenter) as own:
            text = own.text(schema.schema_id)
    else:
        text = _text_with(registries, schema.schema_id, columns)
    if text is None:
        raise SchemasError(
            f"no registry knows schema id {schema.schema_id}, with which files of the table were written"
        )
    return text


def _text_with(registries: Registries, schema_id: int, columns: Sequence[str] | None) -> str | None:
    try:
        return registries.text(schema_id)
    except SchemaConflictError:
        for _, text in registries.texts(schema_id):
            names = [field["name"] for field in _fields(text)]
            if columns is not None and [*names, *ADDRESS_COLUMNS] == list(columns):
                return text
        raise


def _fields(schema: str) -> list[dict[str, Any]]:
    parsed = json.loads(schema)
    return list(parsed.get("fields", [])) if isinstance(parsed, dict) else []
