"""Reads a table through the commit log, so that no incomplete change is visible.

Owns `read`, which gives exactly the files of one state of the log, wherever they are at the time. Other
tools may read the plain paths below `hourly/`, where a change may be visible in part while it is completed.
"""

import json
import time
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from headrace.registry.client import SchemaConflictError
from headrace.warehouse.change import hdfs_of
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.decode import ADDRESS_COLUMNS
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths, hour_of, parse_hour
from headrace.warehouse.manifest import DataFile, FileSchema
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import Registries, SchemasError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPLETION_WAIT_S: Final = 5.0

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
        incomplete = _wait_until_complete(log)
        state = log.state()
        located = [
            (file, _path_now(hdfs, file, incomplete))
            for hour_ms, files in state.hours().items()
            if wanted is None or hour_ms in wanted
            for file in files
        ]
    if not located:
        where = "" if wanted is None else " in these hours"
        raise NoSuchTableError(f"the warehouse {warehouse.name} has no rows of {topic}{where}")
    if not by_schema or state.schema_id is None:
        return spark.read.option("mergeSchema", "true").parquet(*[warehouse.url(path) for _, path in located])
    newest = FileSchema(state.schema_id, state.schema_datacenter)
    return _with_newest_columns(spark, warehouse, located, newest)


def renames(newest: str, older: str) -> dict[str, str]:
    """Returns the top-level columns of `older` that an alias in `newest` renames: old name → new name."""
    old_names = {field["name"] for field in _fields(older)}
    new_names = {field["name"] for field in _fields(newest)}
    return {
        alias: field["name"]
        for field in _fields(newest)
        for alias in field.get("aliases", ())
        if alias in old_names and alias not in new_names and field["name"] not in old_names
    }


def _with_newest_columns(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    files: Sequence[tuple[DataFile, str]],
    newest: FileSchema,
) -> "DataFrame":
    by_schema: dict[FileSchema, list[str]] = {}
    for file, path in files:
        by_schema.setdefault(file.schema, []).append(warehouse.url(path))
    tables = {schema: spark.read.parquet(*paths) for schema, paths in by_schema.items()}
    with Registries(warehouse.registry_url) as registries:
        texts = {
            schema: _text(registries, schema, tables[schema].columns if schema in tables else None)
            for schema in {*by_schema, newest}
        }
    frames: list[DataFrame] = []
    for schema, frame in tables.items():
        for old, new in renames(texts[newest], texts[schema]).items():
            frame = frame.withColumnRenamed(old, new)
        frames.append(frame)
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    names = [field["name"] for field in _fields(texts[newest])]
    present = [name for name in names if name in rows.columns]
    return rows.select(*present, *ADDRESS_COLUMNS)


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


def _wait_until_complete(log: CommitLog) -> set[str]:
    """Waits briefly until committed changes are complete; returns the ids of those that are not."""
    deadline = time.monotonic() + COMPLETION_WAIT_S
    while True:
        incomplete = {manifest.change_id for manifest in log.to_complete()}
        if not incomplete or time.monotonic() >= deadline:
            return incomplete
        time.sleep(0.2)


def _path_now(hdfs: HdfsClient, file: DataFile, incomplete: set[str]) -> str:
    """The final path of a file, or its staged one if its change was interrupted before the move."""
    change_id = file.staged.split("/_staging/")[-1].split("/")[0]
    if change_id in incomplete and hdfs.status(file.path) is None:
        return file.staged
    return file.path


def _fields(schema: str) -> list[dict[str, Any]]:
    parsed = json.loads(schema)
    return list(parsed.get("fields", [])) if isinstance(parsed, dict) else []
