"""One SparkSession per test session: local[2], small, without a UI, bound to 127.0.0.1."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.warehouse.jars import ensure_jars
from headrace.warehouse.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(java_jars: dict[str, Path]) -> Iterator["SparkSession"]:
    """A session with the source, `from_avro`, and Spark's own Kafka connector for comparison."""
    jars = [*java_jars["spark"].glob("*.jar"), *ensure_jars(("kafka",))["kafka"].glob("*.jar")]
    session = spark_session(
        "tests",
        master="local[2]",
        conf={
            "spark.jars": ",".join(map(str, jars)),
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "768m",
        },
    )
    yield session
    session.stop()
