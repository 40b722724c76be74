"""The tables of an installation's warehouse, for notebooks and programs: Spark, pandas, Arrow, DuckDB.

    from headrace.tables import connect

    connect("site").table("page-view").pandas()

`connect` is here, and not `headrace.connect`: `headrace` is a namespace package of several folders, which can
have no functions of its own.
"""

from headrace.tables.connection import Connection, connect
from headrace.tables.table import Table

__all__ = ["Connection", "Table", "connect"]
