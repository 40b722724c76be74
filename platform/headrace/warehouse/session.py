"""Spark sessions for loads, and the Python files that a cluster's executors need.

Owns the Spark configuration. Ordinary Spark configuration (`conf`, spark-submit, spark-defaults.conf)
overrides all of it; the master is `local[*]` unless it is configured.
"""

import io
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.warehouse.archive import archive_options
from headrace.warehouse.jars import ensure_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY: Final = "1g"
HOURS_OPEN_MAX: Final = 64
"""The hourly files that a task writes at once; with more hours in a task, Spark sorts its rows first."""

_LOG4J: Final = Path(__file__).parent / "log4j2.properties"
_WORKER_PYTHON: Final = Path(__file__).parent / "worker-python"
_SHIPPED: Final = (
    *("wire/**/*.py", "warehouse/**/*.py", "process/*.py"),
    *(
        "registry/__init__.py",
        "registry/decimals.py",
        "registry/default_values.py",
        "registry/resolving.py",
        "registry/value_reading.py",
    ),
)
"""Of the package: what the sources, the tasks of a load and the reasons of dead letters import."""
_ITEMS_MAX: Final = 1 << 24
_LENGTH_MAX_BYTES: Final = 1 << 26
_AVRO_LIMITS: Final = {
    "collectionItems.maxLength": _ITEMS_MAX,
    "bytes.maxLength": _LENGTH_MAX_BYTES,
    "string.maxLength": _LENGTH_MAX_BYTES,
}
"""Java's Avro takes the memory that a length announces: five bytes were 8 GB, and the JVM's end."""


def spark_conf(*, home: Path | None = None, local: bool) -> dict[str, str]:
    """Returns the configuration of a session for loads, by name. Fetches the jars if they are missing."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.maxConcurrentOutputFileWriters": str(HOURS_OPEN_MAX),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Tasks write into a staging directory that nobody reads, so a second round of renames is needless.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.hadoop.parquet.summary.metadata.level": "NONE",
        # A DataNode on a loopback address is reachable by name only: see `hdfs.local`.
        "spark.hadoop.dfs.client.use.datanode.hostname": "true",
        "spark.hadoop.dfs.client.block.write.replace-datanode-on-failure.enable": "false",
        # To close a file a client waits until the NameNode has a report of the last block. The default
        # retries after 400 ms, which every small file would pay.
        "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
        "spark.hadoop.dfs.client.block.write.locateFollowingBlock.retries": "12",
        "spark.hadoop.ipc.client.connect.max.retries": "3",
        # Retries (pause in ms, count) after a NameNode's restart: otherwise the first call over an old
        # connection fails.
        "spark.hadoop.dfs.client.retry.policy.enabled": "true",
        "spark.hadoop.dfs.client.retry.policy.spec": "500,10",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -XX:+UseSerialGC {avro_limits()} "
            f"{archive_options(home)}"
        ).strip(),
        "spark.executor.extraJavaOptions": avro_limits(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.metricsEnabled": "false",
    }
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        conf["spark.jars"] = ",".join(_jars(home))
    if local:
        conf |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        }
    return conf


def avro_limits() -> str:
    """Returns Java options by which `from_avro` refuses lengths that no value has."""
    return " ".join(f"-Dorg.apache.avro.limits.{name}={most}" for name, most in _AVRO_LIMITS.items())


def worker_environment(python: str) -> dict[str, str]:
    """Returns environment variables that make a local master's workers run `python`, which has headrace."""
    if "SPARK_HOME" in os.environ:
        # The user's own Spark, whose zip of pyspark may differ from the installed one.
        return {"PYSPARK_PYTHON": python}
    return {"PYSPARK_PYTHON": str(_WORKER_PYTHON), "HEADRACE_PYTHON": python}


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> "SparkSession":
    """Returns a session for loads with the source registered; executors elsewhere get the Python files.

    `master` is by default that of Spark's own configuration (spark-submit, `MASTER`), else `local[*]`.
    """
    # Imported here because Airflow needs only the configuration, and has no pyspark.
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from headrace.warehouse.source import register

    chosen = master or SparkConf().get("spark.master") or "local[*]"
    local = chosen.startswith("local")
    if local:
        for name, value in worker_environment(sys.executable).items():
            os.environ.setdefault(name, value)
    builder = SparkSession.builder.appName(app_name).master(chosen)
    configured = SparkConf()
    for name, value in {**spark_conf(home=home, local=local), **(conf or {})}.items():
        if (conf and name in conf) or not configured.contains(name):
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Under spark-submit the JVM is already running, and its class loader no longer looks at spark.jars.
        for jar in _jars(home):
            spark.sql(f"ADD JAR '{jar}'")
    register(spark)
    if not local:
        ship(spark)
    return spark


class SessionOnDemand:
    """Stands for a session that starts at its first use; `starting` is called just before that."""

    def __init__(
        self, app_name: str, master: str | None = None, starting: Callable[[], object] = lambda: None
    ) -> None:
        self._app_name = app_name
        self._master = master
        self._starting = starting
        self._started: SparkSession | None = None

    def start(self) -> "SparkSession":
        if self._started is None:
            self._starting()
            self._started = spark_session(self._app_name, master=self._master)
        return self._started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.start(), name)

    def stop(self) -> None:
        if self._started is not None:
            self._started.stop()


def ship(spark: "SparkSession") -> None:
    """Sends executors the Python files they need. Libraries (pyarrow, kio, …) must be installed there."""
    target = Path(spark.sparkContext._temp_dir) / "headrace.zip"
    target.write_bytes(python_files())
    spark.sparkContext.addPyFile(str(target))


def python_files() -> bytes:
    """Returns a zip of what executors import."""
    out = io.BytesIO()
    top = Path(__file__).parents[1]
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        # Python finds a namespace package in a zip only if its folder has an entry of its own.
        archive.writestr(zipfile.ZipInfo("headrace/"), "")
        for pattern in _SHIPPED:
            for path in sorted(top.glob(pattern)):
                archive.write(path, Path("headrace") / path.relative_to(top))
    return out.getvalue()


def _jars(home: Path | None) -> list[str]:
    return sorted(str(path) for path in ensure_jars(("spark",), home=home)["spark"].glob("*.jar"))
