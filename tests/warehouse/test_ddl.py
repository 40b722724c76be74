"""The DDL of a table: names, comments and types that strangers chose. tests/tables runs it in Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.warehouse.ddl import NoTypeError, TableNameError, create_table, table_name
from headrace.warehouse.dialect import Dialect

LOCATION = "hdfs://127.9.0.31:8020/data/page-view/hourly"


def field(name: str, kind: pa.DataType, comment: str = "") -> pa.Field:
    return pa.field(name, kind, metadata={"comment": comment} if comment else None)


FIELDS = [
    field("path", pa.string(), "What was asked for; it's \\ a 'path'.\n\x1b[2J"),
    field("price", pa.decimal128(10, 2)),
    field("at", pa.timestamp("us")),
    field("inner", pa.struct([field("x", pa.int32(), "Across."), field("a`b", pa.bool_())]), "Nested."),
    field("words", pa.list_(pa.string())),
    field("counts", pa.map_(pa.string(), pa.struct([field("n", pa.int64(), "How many.")]))),
    field("hour", pa.int32(), "Hidden by the folder's."),
]


def test_hives_table() -> None:
    assert create_table("page_view", FIELDS, LOCATION, Dialect.HIVE) == (
        "CREATE EXTERNAL TABLE IF NOT EXISTS `page_view` (\n"
        "  `path` STRING COMMENT 'What was asked for; it\\'s \\\\ a \\'path\\'.\\n [2J',\n"
        "  `price` DECIMAL(10, 2),\n"
        "  `at` TIMESTAMP,\n"
        "  `inner` STRUCT<`x`: INT COMMENT 'Across.', `a``b`: BOOLEAN> COMMENT 'Nested.',\n"
        "  `words` ARRAY<STRING>,\n"
        "  `counts` MAP<STRING, STRUCT<`n`: BIGINT COMMENT 'How many.'>>\n"
        ")\n"
        "PARTITIONED BY (`dt` DATE, `hour` INT)\n"
        "STORED AS PARQUET\n"
        f"LOCATION '{LOCATION}';\n"
        "MSCK REPAIR TABLE `page_view`;\n"
    )


def test_sparks_table_has_the_partitions_among_its_columns() -> None:
    text = create_table("page_view", FIELDS, LOCATION, Dialect.SPARK)
    assert text.startswith("CREATE TABLE IF NOT EXISTS `page_view` (\n")
    assert "  `at` TIMESTAMP_NTZ,\n" in text
    assert text.count("`hour`") == 2
    assert (
        "  `dt` DATE,\n  `hour` INT\n)\nUSING PARQUET\nPARTITIONED BY (`dt`, `hour`)\n"
        f"LOCATION '{LOCATION}';\n"
    ) in text


def test_a_type_that_nobody_has_is_named() -> None:
    with pytest.raises(NoTypeError, match="hive has no type for a column of null"):
        create_table("t", [pa.field("nothing", pa.null())], LOCATION, Dialect.HIVE)


@pytest.mark.parametrize("name", ["", "a b", "a.b.c", "a`; DROP TABLE b", "päge"])
def test_a_name_that_no_table_has_is_refused(name: str) -> None:
    with pytest.raises(TableNameError, match="is no name of a table"):
        create_table(name, FIELDS, LOCATION, Dialect.HIVE)


@pytest.mark.parametrize(
    ("topic", "name"),
    [("page-view", "page_view"), ("Orders.v2", "orders_v2"), ("7days", "t_7days"), ("_a", "t__a")],
)
def test_a_tables_name_needs_no_quotes(topic: str, name: str) -> None:
    assert table_name(topic) == name
