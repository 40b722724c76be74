"""The table of types in docs/warehouse.md is what the tools have; on failure, the right table is printed."""

import json
from pathlib import Path

import duckdb
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from fix_every_type import SCHEMA, TYPES
from headrace.warehouse.types import arrow_fields

PAGE = Path(__file__).parents[2] / "docs" / "warehouse.md"
HEAD = ["Avro", "Spark", "Arrow", "pandas", "DuckDB"]


def types_of_the_tools() -> list[str]:
    """The table's lines, from a column of each type with a value."""
    fields = {field.name: field for field in arrow_fields(json.dumps(SCHEMA))}
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for row in TYPES:
        # Of a union, Spark's reader fills one member.
        value = {"member0": row.value, "member1": None} if row.name == "mixed" else row.value
        kind = fields[row.name].type
        table = pa.table(
            {
                "x": pa.array([value], pa.int64()).cast(kind)
                if row.name == "local"
                else pa.array([value], kind)
            }
        )
        shown = [
            from_arrow_schema(table.schema)["x"].dataType.simpleString(),
            str(kind),
            str(table.to_pandas()["x"].dtype),
            str(duckdb.connect().from_arrow(table).types[0]),
        ]
        lines.append(f"| {row.shown} | " + " | ".join(f"`{each}`" for each in shown) + " |")
    return lines


def test_the_pages_table_is_right() -> None:
    expected = types_of_the_tools()
    lines = PAGE.read_text().splitlines()
    start = lines.index(expected[0]) if expected[0] in lines else len(lines)
    assert lines[start : start + len(expected)] == expected, "the table should be:\n" + "\n".join(expected)
