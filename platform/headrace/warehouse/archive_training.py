"""`python -m headrace.warehouse.archive_training FILE`: runs Spark once, and archives its classes in FILE.

Owns the small load that it runs, so that the archive holds the classes that a real load needs.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.warehouse.archive import QUIET
from headrace.warehouse.session import spark_session

ROWS: Final = 3_000
SCHEMA: Final = (
    '{"type": "record", "name": "Row", "fields": '
    '[{"name": "number", "type": ["long", "null"]}, {"name": "word", "type": ["string", "null"]}]}'
)


class _Reader(DataSourceReader):  # type: ignore[misc]
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        return ((number, str(number)) for number in range(ROWS))


class _Numbers(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number long, word string"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader()


def main(path: Path) -> None:
    """Runs a small load; the JVM writes the archive when it exits."""
    options = f'-XX:+UseSerialGC "-XX:ArchiveClassesAtExit={path}" {QUIET}'
    spark = spark_session(
        "archive Spark's classes", master="local[2]", conf={"spark.driver.extraJavaOptions": options}
    )
    with tempfile.TemporaryDirectory() as scratch:
        _load(spark, f"{Path(scratch).as_uri()}/table")
    spark.stop()


def _load(spark: Any, table: str) -> None:
    spark.dataSource.register(_Numbers)
    rows = spark.read.format("numbers").load()
    coded = rows.select(to_avro(f.struct("number", "word"), SCHEMA).alias("value"))
    decoded = coded.select(from_avro("value", SCHEMA).alias("event")).select("event.*")
    hours = decoded.withColumn("hour", (f.col("number") % 3).cast("int"))
    hours.write.mode("overwrite").partitionBy("hour").parquet(table)
    spark.read.parquet(table).groupBy("hour").count().collect()
    # A client of HDFS is created, which sends no request.
    jvm = spark.sparkContext._jvm
    nowhere = jvm.java.net.URI.create("hdfs://127.0.0.1:9")
    jvm.org.apache.hadoop.fs.FileSystem.get(nowhere, spark.sparkContext._jsc.hadoopConfiguration())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
