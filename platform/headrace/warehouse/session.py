"""Spark sessions as the loads want them, and what a cluster's executors must be sent.

Owns the Spark configuration. Anything here can be overridden by ordinary Spark configuration (`conf`,
spark-submit, spark-defaults.conf); the master is `local[*]` only where nobody says otherwise.
"""

import io
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.warehouse.archive import archive_options
from headrace.warehouse.jars import ensure_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY: Final = "1g"
HOURS_OPEN_MAX: Final = 64
"""Hourly files a task writes at once; with more hours in a task, Spark sorts its rows first."""

_LOG4J: Final = Path(__file__).parent / "log4j2.properties"
_WORKER_PYTHON: Final = Path(__file__).parent / "worker-python"
_SHIPPED: Final = ("wire", "warehouse")


def spark_conf(*, home: Path | None = None, local: bool) -> dict[str, str]:
    """What a session for loads is configured with, by name. Fetches the jars where they are missing."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.maxConcurrentOutputFileWriters": str(HOURS_OPEN_MAX),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Tasks write into a staging directory that nobody reads: no second round of renames.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.hadoop.parquet.summary.metadata.level": "NONE",
        # A DataNode on a loopback address is known by name only: see `hdfs.local`.
        "spark.hadoop.dfs.client.use.datanode.hostname": "true",
        "spark.hadoop.dfs.client.block.write.replace-datanode-on-failure.enable": "false",
        # Closing a file asks the NameNode whether the last block has been reported yet; the default waits
        # 400 ms before it asks again, which every small file pays.
        "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
        "spark.hadoop.dfs.client.block.write.locateFollowingBlock.retries": "12",
        "spark.hadoop.ipc.client.connect.max.retries": "3",
        # A NameNode that has just restarted is asked again (the pause in ms, and how often): without this the
        # first call over a connection from before fails.
        "spark.hadoop.dfs.client.retry.policy.enabled": "true",
        "spark.hadoop.dfs.client.retry.policy.spec": "500,10",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -XX:+UseSerialGC {archive_options(home)}"
        ).strip(),
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


def worker_environment(python: str) -> dict[str, str]:
    """Environment variables that make `python`, which has headrace, that of a local master's workers."""
    if "SPARK_HOME" in os.environ:
        # Somebody's own Spark, whose zip of pyspark need not be the installed one.
        return {"PYSPARK_PYTHON": python}
    return {"PYSPARK_PYTHON": str(_WORKER_PYTHON), "HEADRACE_PYTHON": python}


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> "SparkSession":
    """A session for loads, with the source registered and, off this machine, the Python files shipped.

    `master` None: what Spark's own configuration says (spark-submit, `MASTER`), else `local[*]`.
    """
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
        # Under spark-submit the JVM was there first, and its class loader doesn't look at spark.jars any
        # more.
        for jar in _jars(home):
            spark.sql(f"ADD JAR '{jar}'")
    register(spark)
    if not local:
        ship(spark)
    return spark


def ship(spark: "SparkSession") -> None:
    """Send the Python files that executors need.

    The libraries (pyarrow, kio, cramjam …) are the cluster's to install.
    """
    target = Path(spark.sparkContext._temp_dir) / "headrace.zip"
    target.write_bytes(python_files())
    spark.sparkContext.addPyFile(str(target))


def python_files() -> bytes:
    """A zip of the rooms that executors import."""
    out = io.BytesIO()
    top = Path(__file__).parents[1]
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        # A namespace package is found in a zip only where its folder is an entry of its own.
        archive.writestr(zipfile.ZipInfo("headrace/"), "")
        for room in _SHIPPED:
            for path in sorted((top / room).rglob("*.py")):
                archive.write(path, Path("headrace") / path.relative_to(top))
    return out.getvalue()


def _jars(home: Path | None) -> list[str]:
    return sorted(str(path) for path in ensure_jars(("spark",), home=home)["spark"].glob("*.jar"))
