"""What Spark is told of: the data source by its name. Owns nothing else."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.warehouse.source.options import parse
from headrace.warehouse.source.reader import BatchReader, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make `format("headrace")` known to this session."""
    spark.dataSource.register(HeadraceDataSource)


class HeadraceDataSource(DataSource):  # type: ignore[misc]
    """Reads topics of a headrace or Apache Kafka cluster."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        # Whether this is for a stream isn't known here: what only streams may not have is found by
        # streamReader.
        return spark_schema(parse(self._given(), for_schema=True))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse(self._given()), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.warehouse.source.stream import StreamReader

        return StreamReader(parse(self._given(), streaming=True), schema)

    def _given(self) -> Mapping[str, str]:
        return dict(self.options)
