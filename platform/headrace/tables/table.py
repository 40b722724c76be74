"""One table of the warehouse, in the reader's own tool.

Owns `Table`, and its errors where there is nothing to read. Spark reads the files by itself; Arrow, pandas
and DuckDB get them over WebHDFS by a few threads.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.warehouse.arrow_tables import Steps, TimeRange, batches, column_names
from headrace.warehouse.change import hdfs_of
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.ddl import create_table, table_name
from headrace.warehouse.decode import ADDRESS_FIELDS, TIMESTAMP_COLUMN
from headrace.warehouse.dialect import Dialect
from headrace.warehouse.evolution import columns as columns_of
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths, hour_name
from headrace.warehouse.manifest import FileSchema
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import has_event_time
from headrace.warehouse.tables import NoSuchTableError, schema_texts, spark_frame
from headrace.warehouse.types import arrow_fields, comment_of
from headrace.warehouse.versions import LocatedFile, Version, Wanted, choose

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Table:
    """The rows of one topic that `wanted` describes, in the columns of its newest schema.

    Each call reads the commit log anew, and sees one version of the table from then on. All calls raise
    `NoSuchTableError` where there is nothing to read, `VersionError`, `HdfsError`, and errors of registries.
    """

    warehouse: WarehouseOptions
    topic: str
    wanted: Wanted

    def __post_init__(self) -> None:
        TopicPaths(self.warehouse.root, self.topic)  # refuses names that no table has

    def hours(self) -> list[str]:
        """Returns the hours that would be read, such as `2026-11-20T18`, in order."""
        with hdfs_of(self.warehouse) as hdfs:
            return [hour_name(hour_ms) for hour_ms in self._version(hdfs).hours]

    def files(self) -> list[str]:
        """Returns the URLs of the files that would be read, `hdfs://…`; each holds rows of one hour."""
        with hdfs_of(self.warehouse) as hdfs:
            return [self.warehouse.url(located.path) for located in self._version(hdfs).files]

    def fields(self) -> list[pa.Field]:
        """Returns the columns of the newest schema, with its docs as comments, and those of the addresses."""
        with hdfs_of(self.warehouse) as hdfs:
            version = self._version(hdfs)
            assert version.schema is not None, "a change that adds files names its schema"
            texts = schema_texts(self.warehouse, version.schema, _columns_of_files(hdfs, version.files))
        return self._fields(texts[version.schema])

    def ddl(self, dialect: Dialect, name: str | None = None) -> str:
        """Returns the statements that make a table of Hive or Spark SQL over all loaded hours.

        `name`: the table's, by default the topic's, with underscores. Raises also `TableNameError` and
        `NoTypeError`.
        """
        location = self.warehouse.url(TopicPaths(self.warehouse.root, self.topic).hourly)
        return create_table(name or table_name(self.topic), self.fields(), location, dialect)

    @staticmethod
    def _fields(text: str) -> list[pa.Field]:
        return [*arrow_fields(text), *ADDRESS_FIELDS]

    def spark(self, session: "SparkSession") -> "DataFrame":
        """Returns a data frame of Spark. Its columns have the schema's docs as comments."""
        with hdfs_of(self.warehouse) as hdfs:
            version = self._version(hdfs)
        return spark_frame(session, self.warehouse, version.files, version.schema, self._in_time)

    def _in_time(self, rows: "DataFrame", text: str) -> "DataFrame":
        """Returns those of the rows, of files of this schema, that are in the wanted part of an hour."""
        if not self._has_partial_hours:
            return rows
        # Imported here because programs without Spark import this module, too.
        from pyspark.sql import functions as f

        time_ms = f.unix_millis(f.col(".".join(_time_path(text))))
        for bound_ms, is_from in ((self.wanted.from_ms, True), (self.wanted.until_ms, False)):
            if bound_ms is not None:
                rows = rows.where(time_ms >= bound_ms if is_from else time_ms < bound_ms)
        return rows

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns all rows as an Arrow table in memory; `columns` names top-level columns to read."""
        with closing(self.batches(columns)) as reader:
            return reader.read_all()

    def pandas(self, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """Returns all rows as a data frame of pandas."""
        frame: pd.DataFrame = self.arrow(columns).to_pandas()
        return frame

    def duckdb(
        self, connection: Any, columns: Sequence[str] | None = None, *, view: str | None = None
    ) -> Any:
        """Returns a relation of this DuckDB connection over the rows, which are in memory as Arrow.

        `view`: also makes a view of this name, for SQL. Its columns have the schema's docs as comments.
        """
        rows = self.arrow(columns)
        relation = connection.from_arrow(rows)
        if view is not None:
            relation.create_view(view, replace=True)
            for field in rows.schema:
                if comment := comment_of(field):
                    column = f"{_quoted(view)}.{_quoted(field.name)}"
                    connection.execute(f"COMMENT ON COLUMN {column} IS {_text(comment)}")
        return relation

    def batches(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Returns a reader of record batches, for tables that do not fit into memory.

        It reads while it is iterated, and holds a few files at a time. Close it, or read it to its end.
        """
        hdfs = hdfs_of(self.warehouse)
        try:
            version = self._version(hdfs)
            schema, steps, times = self._columns(hdfs, version, columns)
        except BaseException:
            hdfs.close()
            raise

        def rows() -> Iterator[pa.RecordBatch]:
            with hdfs:
                yield from batches(hdfs, version.files, schema, steps, times)

        return pa.RecordBatchReader.from_batches(schema, rows())

    @property
    def _has_partial_hours(self) -> bool:
        bounds = (self.wanted.from_ms, self.wanted.until_ms)
        return any(bound is not None and bound % HOUR_MS for bound in bounds)

    def _version(self, hdfs: HdfsClient) -> Version:
        version = choose(CommitLog(hdfs, TopicPaths(self.warehouse.root, self.topic)), self.wanted)
        if version.files:
            return version
        if version.unsealed:
            raise NoSuchTableError(
                f"no hour of {self.topic} is sealed here (loaded: {len(version.unsealed)}); the DAG "
                f"seal-{self.topic} seals an hour once the audit has proven it complete; sealed=False reads "
                "all that is loaded"
            )
        raise NoSuchTableError(
            f"the warehouse {self.warehouse.name} has no rows of {self.topic} in this time and version; "
            "`headrace warehouse ls` shows what is loaded"
        )

    def _columns(
        self, hdfs: HdfsClient, version: Version, names: Sequence[str] | None
    ) -> tuple[pa.Schema, dict[str, Steps], dict[str, TimeRange]]:
        """The columns to read, how each file's become these, and its range of times where hours do not do."""
        assert version.schema is not None, "a change that adds files names its schema"
        texts = schema_texts(self.warehouse, version.schema, _columns_of_files(hdfs, version.files))
        newest = texts[version.schema]
        fields = self._fields(newest)
        known = {field.name: field for field in fields}
        unknown = [name for name in names or () if name not in known]
        if unknown:
            raise NoSuchColumnError(f"{self.topic} has no column {unknown[0]!r}; it has {', '.join(known)}")
        schema = pa.schema(fields if names is None else [known[name] for name in names])
        of_schema = {each: columns_of(newest, text) for each, text in texts.items()}
        steps = {located.path: of_schema[located.file.schema] for located in version.files}
        if not self._has_partial_hours:
            return schema, steps, {}
        bounds = (self.wanted.from_ms, self.wanted.until_ms)
        ranges = {each: TimeRange(*bounds, _time_path(text)) for each, text in texts.items()}
        return schema, steps, {located.path: ranges[located.file.schema] for located in version.files}


class NoSuchColumnError(ValueError):
    """The table has no such column."""


def _time_path(text: str) -> tuple[str, ...]:
    """Returns the path to the time by which rows of files of this schema have their hour."""
    return ("header", "time") if has_event_time(text) else (TIMESTAMP_COLUMN,)


def _columns_of_files(hdfs: HdfsClient, files: Sequence[LocatedFile]) -> dict[FileSchema, list[str]]:
    """The columns that the files of each schema have, from one file each."""
    first: dict[FileSchema, LocatedFile] = {}
    for located in files:
        first.setdefault(located.file.schema, located)
    return {schema: column_names(hdfs, located) for schema, located in first.items()}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
