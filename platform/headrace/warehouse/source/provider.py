"""The data source that Spark registers by its name."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.warehouse.source.options import parse
from headrace.warehouse.source.plain_errors import plain_errors
from headrace.warehouse.source.reader import BatchReader, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Registers `format("headrace")` in this session."""
    spark.dataSource.register(HeadraceDataSource)


class HeadraceDataSource(DataSource):  # type: ignore[misc]
    """Reads topics of a headrace or Apache Kafka cluster."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        # Spark does not say here whether it will stream; streamReader checks the options again.
        with plain_errors(is_debug=self._is_debug):
            return spark_schema(parse(dict(self.options), for_schema=True))

    def reader(self, schema: StructType) -> DataSourceReader:
        with plain_errors(is_debug=self._is_debug):
            return BatchReader(parse(dict(self.options)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        # Imported here because executors of a batch read do not need it.
        from headrace.warehouse.source.stream import StreamReader

        with plain_errors(is_debug=self._is_debug):
            return StreamReader(parse(dict(self.options), streaming=True), schema)

    @property
    def _is_debug(self) -> bool:
        # Not by `parse`, which may be what fails.
        return any(
            name.lower() == "debug" and value.lower() == "true" for name, value in self.options.items()
        )
