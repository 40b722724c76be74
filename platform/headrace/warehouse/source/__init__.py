"""The Spark data source `headrace`: topics of any Kafka cluster, read by byte ranges.

`register(spark)` once, then

    spark.read.format("headrace").options(bootstrap="127.9.0.11:9092", topic="page-view").load()

Options, columns and errors are those of Spark's Kafka source. Importable on executors with `wire` alone of
headrace.
"""

from headrace.warehouse.source.provider import HeadraceDataSource, register

__all__ = ["HeadraceDataSource", "register"]
