"""Spark's classes, archived once on this machine, so that a driver's JVM starts in about half the time.

Owns the archive file (class data sharing, JEP 350) beside the jars, and the JVM options that use it. Nothing
depends on it: a JVM that does not find the archive, or finds that it is of another JVM or other jars, loads
its classes as ever.

`python -m headrace.warehouse.archive FILE` is the session whose classes go into FILE.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from headrace.warehouse.jars import headrace_home, java

TRAINING_TIMEOUT_S: Final = 300.0
TRAINING_ROWS: Final = 3_000
# It does everything once: an optimising compiler would cost it more than it gains.
_BRIEF_JVM: Final = "-XX:TieredStopAtLevel=1"
# What can't be archived, and an archive that doesn't fit, is nobody's trouble.
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_path(home: Path | None = None) -> Path:
    """Where the archive lies. It may not be there: see `ensure_archive`."""
    return (home or headrace_home()) / "jars" / "spark.jsa"


def archive_options(home: Path | None = None) -> str:
    """The JVM options of a driver on this machine; empty where there is no archive."""
    path = archive_path(home)
    return f'"-XX:SharedArchiveFile={path}" {_QUIET}' if path.exists() else ""


def ensure_archive(
    *,
    home: Path | None = None,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> bool:
    """Make the archive where there is none, or Java or Spark is newer; False where it can't be made."""
    path = archive_path(home)
    if path.exists() and path.stat().st_mtime > _newest_part():
        return True
    say(f"archiving Spark's classes in {path}, so that it starts faster (once, half a minute)")
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = [sys.executable, "-m", "headrace.warehouse.archive", str(made)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=TRAINING_TIMEOUT_S,
                check=False,
                env={"JDK_JAVA_OPTIONS": _BRIEF_JVM, **os.environ},
            )
            trouble = " | ".join(done.stderr.splitlines()[-3:])
        except subprocess.TimeoutExpired:
            trouble = f"no end after {TRAINING_TIMEOUT_S:.0f} s"
        if not made.exists():
            say(f"no archive was made, and Spark starts as slowly as ever: {trouble}")
            return False
        made.rename(path)
    return True


def _newest_part() -> float:
    import pyspark

    parts = (Path(java()).resolve(), Path(pyspark.__file__).parent / "jars")
    return max(part.stat().st_mtime for part in parts)


def _train(path: Path) -> None:
    """Do a little of what a load does; the JVM writes the archive at its end."""
    from headrace.warehouse.session import spark_session

    options = f'-XX:+UseSerialGC "-XX:ArchiveClassesAtExit={path}" {_QUIET}'
    spark = spark_session(
        "archive Spark's classes", master="local[2]", conf={"spark.driver.extraJavaOptions": options}
    )
    with tempfile.TemporaryDirectory() as scratch:
        _load(spark, f"{Path(scratch).as_uri()}/table")
    spark.stop()


def _load(spark: Any, table: str) -> None:
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro, to_avro
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):  # type: ignore[misc]
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0), InputPartition(1)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
            return ((number, str(number)) for number in range(TRAINING_ROWS))

    class Numbers(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number long, word string"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Numbers)
    rows = spark.read.format("numbers").load()
    schema = (
        '{"type": "record", "name": "Row", "fields": '
        '[{"name": "number", "type": ["long", "null"]}, {"name": "word", "type": ["string", "null"]}]}'
    )
    coded = rows.select(to_avro(f.struct("number", "word"), schema).alias("value"))
    decoded = coded.select(from_avro("value", schema).alias("event")).select("event.*")
    hours = decoded.withColumn("hour", (f.col("number") % 3).cast("int"))
    hours.write.mode("overwrite").partitionBy("hour").parquet(table)
    spark.read.parquet(table).groupBy("hour").count().collect()
    # The client of HDFS is made, and asks nobody anything.
    jvm = spark.sparkContext._jvm
    nowhere = jvm.java.net.URI.create("hdfs://127.0.0.1:9")
    jvm.org.apache.hadoop.fs.FileSystem.get(nowhere, spark.sparkContext._jsc.hadoopConfiguration())


if __name__ == "__main__":
    _train(Path(sys.argv[1]))
