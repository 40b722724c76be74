"""The warehouse: topics as hourly Parquet tables in HDFS, loaded exactly once, sealed on the audit's proof.

The operations are in `api`, reading a table in `tables`, the Spark data source in `source`, HDFS in `hdfs`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.warehouse.api import load
    from headrace.warehouse.tables import read

__all__ = ["load", "read"]


def __getattr__(name: str) -> Any:
    # Imported here because executors import only `warehouse.source`, and lack what the driver needs.
    if name == "load":
        from headrace.warehouse.api import load

        return load
    if name == "read":
        from headrace.warehouse.tables import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
