"""Reading a table the safe way: through the commit log, so that no half-done change is ever seen.

Owns `read`. The plain paths below `hourly/` serve any other tool; there a change that is being finished
may be seen in part for a moment. Here a reader gets exactly the files of one state of the log, wherever
they lie at the time.
"""

import json
import time
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.decode import ADDRESS_COLUMNS
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths, hour_of, parse_hour
from headrace.warehouse.manifest import DataFile
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import Registries, SchemasError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINISH_WAIT_S: Final = 5.0

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
    """The rows of a topic, of all hours or of these (`"2026-11-20T18"`, or the beginning in ms).

    Columns are the newest schema's: what an older file lacks is null, what was renamed (by an alias) has
    its new name. `by_schema=False` leaves columns as the files have them, and asks no registry. Raises
    `NoSuchTableError`.
    """
    wanted = (
        None
        if hours is None
        else {hour_of(each) if isinstance(each, int) else parse_hour(each) for each in hours}
    )
    with HdfsClient(warehouse.webhdfs_url, user=warehouse.user, patience_s=warehouse.patience_s) as hdfs:
        log = CommitLog(hdfs, TopicPaths(warehouse.root, topic))
        unfinished = _wait_until_finished(log)
        files = [
            each
            for hour_ms, found in log.state().hours().items()
            for each in found
            if wanted is None or hour_ms in wanted
        ]
        located = [(each, _where(hdfs, each, unfinished)) for each in files]
        newest_id = log.state().schema_id
    if not located:
        where = "" if wanted is None else " in these hours"
        raise NoSuchTableError(f"the warehouse {warehouse.name} has no rows of {topic}{where}")
    if not by_schema or newest_id is None:
        return spark.read.option("mergeSchema", "true").parquet(*[warehouse.url(path) for _, path in located])
    return _with_newest_columns(spark, warehouse, located, newest_id)


def hours_between(from_ms: int, to_ms: int) -> list[int]:
    """The hours that overlap `[from_ms, to_ms)`, for `read`."""
    return list(range(hour_of(from_ms), to_ms, HOUR_MS))


def renames(newest: str, older: str) -> dict[str, str]:
    """Top-level columns of `older` that `newest` knows under another name, by an alias: old name → new
    name.
    """
    old_names = {field["name"] for field in _fields(older)}
    new_names = {field["name"] for field in _fields(newest)}
    return {
        alias: field["name"]
        for field in _fields(newest)
        for alias in field.get("aliases", ())
        if alias in old_names and alias not in new_names and field["name"] not in old_names
    }


def _with_newest_columns(
    spark: "SparkSession", warehouse: WarehouseOptions, files: Sequence[tuple[DataFile, str]], newest_id: int
) -> "DataFrame":
    by_schema: dict[int, list[str]] = {}
    for each, path in files:
        by_schema.setdefault(each.schema_id, []).append(warehouse.url(path))
    with Registries(warehouse.registry_url) as registries:
        texts = {schema_id: _text(registries, schema_id) for schema_id in {*by_schema, newest_id}}
    frames: list[DataFrame] = []
    for schema_id, paths in by_schema.items():
        frame = spark.read.parquet(*paths)
        for old, new in renames(texts[newest_id], texts[schema_id]).items():
            frame = frame.withColumnRenamed(old, new)
        frames.append(frame)
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    names = [field["name"] for field in _fields(texts[newest_id])]
    present = [name for name in names if name in rows.columns]
    return rows.select(*present, *ADDRESS_COLUMNS)


def _text(registries: Registries, schema_id: int) -> str:
    text = registries.text(schema_id)
    if text is None:
        raise SchemasError(
            f"no registry knows schema id {schema_id}, which files of the table were written with"
        )
    return text


def _wait_until_finished(log: CommitLog) -> set[str]:
    """Change ids that are committed but not finished, after waiting a little for those that are just
    being finished.
    """
    deadline = time.monotonic() + FINISH_WAIT_S
    while True:
        left = {each.change_id for each in log.unfinished() if each.manifest is not None}
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.2)


def _where(hdfs: HdfsClient, each: DataFile, unfinished: set[str]) -> str:
    """Where the file lies: in its place, or still staged if whoever committed it died before moving it."""
    change_id = each.staged.split("/_staging/")[-1].split("/")[0]
    if change_id in unfinished and hdfs.status(each.path) is None:
        return each.staged
    return each.path


def _fields(schema: str) -> list[dict[str, Any]]:
    parsed = json.loads(schema)
    return list(parsed.get("fields", [])) if isinstance(parsed, dict) else []
