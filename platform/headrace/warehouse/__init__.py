"""The warehouse: topics as hourly Parquet tables in HDFS, exactly once, sealed on proof.

`load` and its sisters are in `api`, `read` in `tables`; the Spark data source is in `source`; `hdfs` runs
and asks HDFS.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.warehouse.api import load
    from headrace.warehouse.tables import read

__all__ = ["load", "read"]


def __getattr__(name: str) -> Any:
    # Executors import `warehouse.source` alone: what the driver needs is imported when it is asked for.
    if name == "load":
        from headrace.warehouse.api import load

        return load
    if name == "read":
        from headrace.warehouse.tables import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
