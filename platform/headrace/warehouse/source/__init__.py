"""The Spark data source `headrace`, which reads topics of any Kafka cluster by byte ranges.

Call `register(spark)` once, then

    spark.read.format("headrace").options(bootstrap="127.9.0.11:9092", topic="page-view").load()

Options, columns and errors are those of Spark's Kafka source. Executors need only `wire` besides this room.
"""

from headrace.warehouse.source.lag import lag_bytes
from headrace.warehouse.source.provider import HeadraceDataSource, register

__all__ = ["HeadraceDataSource", "lag_bytes", "register"]
