"""A context's tables in Spark, pandas, Arrow and DuckDB, from real HDFS; and plain reads by fsspec."""

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import fsspec
import pandas as pd
import pyarrow as pa
import pytest

from fix_every_type import SCHEMA, TYPES, event
from fix_warehouse import BASE_TIME_MS, HOUR_MS, NUMBER, ROOT, TestTopic, World, click, event_schema
from headrace.registry.framing import prefix
from headrace.site.context import Context, ContextDatacenter
from headrace.site.context_store import ContextStore
from headrace.tables import Connection, connect
from headrace.tables.table import NoSuchColumnError
from headrace.warehouse.api import compact_topics
from headrace.warehouse.dialect import Dialect
from headrace.warehouse.seal import seal_hour
from headrace.warehouse.tables import NoSuchTableError
from headrace.warehouse.versions import VersionError

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

FIRST, SECOND = BASE_TIME_MS, BASE_TIME_MS + HOUR_MS


@pytest.fixture(scope="module")
def home(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a context of this world."""
    home = tmp_path_factory.mktemp("home")
    analysis = ContextDatacenter(
        name="analysis",
        bootstrap_servers=(world.bootstrap,),
        registry_url=world.registry_url,
        zookeeper_servers="127.0.0.1:2181",
    )
    ContextStore(home).save(
        Context(
            name="world",
            origin="terraform",
            datacenters=(analysis,),
            warehouse="analysis",
            hdfs=world.process.hdfs_url,
            webhdfs=world.process.webhdfs_url,
        )
    )
    return home


@pytest.fixture(scope="module")
def connection(home: Path) -> Connection:
    return connect("world", home=home)


@pytest.fixture(scope="module")
def typed(world: World) -> Iterator[TestTopic]:
    """Two hours of ten events with every type; the first is sealed."""
    topic = world.topic("typed")
    topic.publish([event(number, FIRST + number * 360_000) for number in range(20)], SCHEMA)
    assert topic.load().rows == 20
    seal_hour(world.process.webhdfs_url, topic.name, FIRST, {}, root=ROOT)
    yield topic


def test_every_tool_shows_the_same_rows(connection: Connection, typed: TestTopic, world: World) -> None:
    table = connection.table(typed.name, sealed=False)
    arrow = table.arrow()
    assert arrow.num_rows == 20
    spark = table.spark(world.spark)
    assert spark.columns == arrow.column_names
    collected = spark.orderBy("number").limit(1).collect()[0].asDict(recursive=True)
    first = arrow.sort_by("number").slice(0, 1).to_pylist()[0]
    pandas = table.pandas().sort_values("number").iloc[0]
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    table.duckdb(con, view="typed")
    by_duckdb = con.sql("SELECT * FROM typed ORDER BY number LIMIT 1").to_arrow_table().to_pylist()[0]
    for row in TYPES:
        shown = {**plain(first), "words": first["words"]}[row.name]
        assert plain(collected)[row.name] == shown, row.name
        assert plain(by_duckdb)[row.name] == shown, row.name
        if not isinstance(pandas[row.name], list | dict) and row.name not in ("words", "counts", "inner"):
            assert plain({"x": pandas[row.name]})["x"] == shown, row.name


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row with values that compare across tools: times without zones, maps as dicts, bytes as bytes."""
    made = {}
    for name, value in row.items():
        if isinstance(value, pd.Timestamp):
            value = value.to_pydatetime()
        if getattr(value, "tzinfo", None) is not None:
            value = value.replace(tzinfo=None)
        if isinstance(value, bytearray):
            value = bytes(value)
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            value = dict(value)
        made[name] = value
    return made


def test_docs_are_comments_in_every_tool(connection: Connection, typed: TestTopic, world: World) -> None:
    table = connection.table(typed.name)
    words = "The price; it's a test."
    assert table.arrow(["price"]).schema.field("price").metadata[b"comment"].decode() == words
    rows = table.spark(world.spark)
    assert rows.schema["price"].metadata == {"comment": words}
    assert rows.schema["inner"].dataType["x"].metadata == {"comment": "Across."}
    # The files have them, too: a plain read, and a table of Spark SQL or Hive over the folder.
    plain = world.spark.read.parquet(f"{world.process.hdfs_url}{typed.paths.hourly}")
    assert plain.schema["price"].metadata == {"comment": words}
    plain.createOrReplaceTempView("typed_rows")
    described = {row.col_name: row.comment for row in world.spark.sql("DESCRIBE typed_rows").collect()}
    assert described["price"] == words
    con = duckdb.connect()
    table.duckdb(con, view="typed")
    comments = dict(con.execute("SELECT column_name, comment FROM duckdb_columns()").fetchall())
    assert comments["price"] == words


def test_the_printed_table_is_one_of_sparks_and_of_hives(
    connection: Connection, typed: TestTopic, world: World
) -> None:
    table = connection.table(typed.name, sealed=False)
    text = table.ddl(Dialect.SPARK, "default.typed_rows")
    try:
        for statement in text.removesuffix(";\n").split(";\n"):
            world.spark.sql(statement)
        rows = world.spark.table("typed_rows")
        assert rows.count() == 20
        assert rows.where("dt = DATE'2023-11-14' AND hour = 22").count() == 10
        assert sorted(rows.columns) == sorted([*table.arrow().column_names, "dt", "hour"])
        assert rows.schema["price"].metadata["comment"] == "The price; it's a test."
        assert rows.schema["inner"].dataType["x"].metadata["comment"] == "Across."
        by_reader = table.spark(world.spark).orderBy("number").limit(1).collect()[0].asDict(recursive=True)
        by_sql = rows.drop("dt", "hour").orderBy("number").limit(1).collect()[0].asDict(recursive=True)
        assert by_sql == by_reader
    finally:
        world.spark.sql("DROP TABLE IF EXISTS default.typed_rows")
    # Spark has Hive's parser; a table of Hive itself would need its metastore.
    for statement in table.ddl(Dialect.HIVE).removesuffix(";\n").split(";\n"):
        world.spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)


def test_sealed_hours_by_default(connection: Connection, typed: TestTopic) -> None:
    assert connection.table(typed.name).hours() == ["2023-11-14T22"]
    assert connection.table(typed.name, sealed=False).hours() == ["2023-11-14T22", "2023-11-14T23"]
    assert connection.table(typed.name).pandas(["number"])["number"].sum() == sum(range(10))
    assert typed.name in connection.topics()


def test_a_range_of_time(connection: Connection, typed: TestTopic, world: World) -> None:
    # From the sixth event of the first hour to the third of the second.
    table = connection.table(
        typed.name, sealed=False, from_="2023-11-14T22:30", until=pd.Timestamp("2023-11-14T23:18")
    )
    assert sorted(table.pandas(["number"])["number"]) == list(range(5, 13))
    assert sorted(row.number for row in table.spark(world.spark).collect()) == list(range(5, 13))
    hour = connection.table(typed.name, sealed=False, from_="2023-11-14T23")
    assert hour.files()
    assert all("/dt=2023-11-14/hour=23/" in url for url in hour.files())
    assert sorted(hour.arrow(["number"])["number"].to_pylist()) == list(range(10, 20))


def test_a_table_that_changed(connection: Connection, world: World) -> None:
    topic = world.topic("changed", partitions=1)
    topic.publish([click(number, FIRST) for number in range(10)])
    topic.load()
    seal_hour(world.process.webhdfs_url, topic.name, FIRST, {}, root=ROOT)
    renamed = event_schema(
        {"name": "number", "type": "double"},
        {"name": "term", "type": ["null", "string"], "aliases": ["word"], "default": None},
        {"name": "added", "type": ["null", "string"], "default": None},
    )
    late = [{**click(number, FIRST), "term": "new", "added": "x"} for number in range(10, 15)]
    topic.publish(late, renamed)
    topic.load()

    def both(**options: Any) -> list[tuple[float, str, str | None]]:
        table = connection.table(topic.name, **options)
        names = ["number", "term", "added"]
        rows = [tuple(row.values()) for row in table.arrow(names).to_pylist()]
        assert [tuple(row) for row in table.spark(world.spark).select(names).collect()] == rows
        return sorted(rows)

    sealed = [(float(number), f"w{number}", None) for number in range(10)]
    everything = [*sealed, *((float(number), "new", "x") for number in range(10, 15))]
    assert both() == sealed  # the late rows are not sealed yet
    assert both(sealed=False) == everything
    assert connection.table(topic.name, as_of=0).arrow().column_names[:3] == ["header", "number", "word"]
    topic.publish([{**click(15, FIRST), "term": "new", "added": "x"}], renamed)
    topic.load()
    assert compact_topics(world.spark, connection.warehouse, [topic.name])[0].sequence == 3
    assert both() == sealed
    assert both(sealed=False, as_of=1) == everything  # what the compaction removed is in the trash
    with pytest.raises(VersionError, match="there is no change 9; the last one is 3"):
        connection.table(topic.name, as_of=9).hours()


def test_rows_are_read_as_they_were_sealed_after_late_ones_were_compacted(
    connection: Connection, world: World
) -> None:
    """They were in one file with the late ones, and no default read of the table worked once the trash was
    empty.
    """
    topic = world.topic("late", partitions=1)
    for number in range(4):
        topic.publish([click(number, FIRST)])
        topic.load()
        if number == 1:
            seal_hour(world.process.webhdfs_url, topic.name, FIRST, {}, root=ROOT)
    [done] = compact_topics(world.spark, connection.warehouse, [topic.name])
    world.hdfs.delete(topic.paths.trash)
    assert sorted(connection.table(topic.name).pandas(["number"])["number"]) == [0, 1]
    assert sorted(connection.table(topic.name, sealed=False).pandas(["number"])["number"]) == [0, 1, 2, 3]
    assert (done.files_before, done.files_after, done.rows) == (4, 2, 4)


def test_a_part_of_an_hour_whose_events_have_got_a_header(connection: Connection, world: World) -> None:
    """Rows of the schema before have the times of their records, and are in the table by these."""
    topic = world.topic("headed", partitions=1)
    nothing = {"time": 0, "datacenter": "", "server": "", "service": "", "guid": ""}
    plain = {**event_schema(), "fields": [NUMBER]}
    headed = event_schema(NUMBER)
    headed["fields"][0]["default"] = nothing
    for schema, first in ((plain, 0), (headed, 10)):
        events = [click(number, FIRST + number * 180_000) for number in range(first, first + 10)]
        topic.publish(events, schema)
        assert topic.load().hours == {FIRST: 10}
    table = connection.table(topic.name, sealed=False, from_="2023-11-14T22:15", until="2023-11-14T22:45")
    assert sorted(table.arrow(["number"])["number"].to_pylist()) == list(range(5, 15))
    assert sorted(row.number for row in table.spark(world.spark).collect()) == list(range(5, 15))


def test_a_part_of_an_hour_of_events_that_may_lack_their_time(connection: Connection, world: World) -> None:
    """They are in the table by the times of their records, and were looked for by `header.time`."""
    topic = world.topic("maybe-timed", partitions=1)
    schema = copy.deepcopy(event_schema(NUMBER))
    time = schema["fields"][0]["type"]["fields"][0]
    time["type"] = ["null", time["type"]]
    schema_id, values = topic.register(schema), []
    for number in range(20):
        event = click(number, FIRST - 24 * HOUR_MS)
        event["header"]["time"] = event["header"]["time"] if number % 2 else None
        out = io.BytesIO(prefix(schema_id))
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, schema, event)
        values.append((out.getvalue(), FIRST + number * 180_000))
    topic.send(values)
    assert topic.load().hours == {FIRST: 20}
    table = connection.table(topic.name, sealed=False, from_="2023-11-14T22:15", until="2023-11-14T22:45")
    assert sorted(table.arrow(["number"])["number"].to_pylist()) == list(range(5, 15))
    assert sorted(row.number for row in table.spark(world.spark).collect()) == list(range(5, 15))


def test_a_decimal_without_a_precision_is_a_column_of_bytes(connection: Connection, world: World) -> None:
    topic = world.topic("imprecise", partitions=1)
    kind = {"type": "bytes", "logicalType": "decimal"}
    topic.publish([click(1, FIRST, price=b"\x05")], event_schema(NUMBER, {"name": "price", "type": kind}))
    assert topic.load().rows == 1
    table = connection.table(topic.name, sealed=False)
    assert table.arrow(["price"]).to_pylist() == [{"price": b"\x05"}]
    assert [bytes(row.price) for row in table.spark(world.spark).collect()] == [b"\x05"]


def test_what_cannot_be_read(connection: Connection, typed: TestTopic, world: World) -> None:
    with pytest.raises(NoSuchTableError, match="has no rows of nothing"):
        connection.table("nothing").pandas()
    with pytest.raises(NoSuchTableError, match=r"is sealed here \(loaded: 1\).*sealed=False"):
        connection.table(typed.name, from_="2023-11-14T23").spark(world.spark)
    with pytest.raises(NoSuchColumnError, match="has no column 'numbre'; it has header, number"):
        connection.table(typed.name).arrow(["numbre"])


def test_batches_stream(connection: Connection, typed: TestTopic) -> None:
    reader = connection.table(typed.name, sealed=False).batches(["number"])
    assert sorted(number for batch in reader for number in batch["number"].to_pylist()) == list(range(20))
    assert pa.types.is_int64(reader.schema.field("number").type)
    started = connection.table(typed.name, sealed=False).batches()
    started.read_next_batch()
    started.close()


def test_plain_reads_by_pandas_and_duckdb(typed: TestTopic, world: World) -> None:
    """The one-liners of docs/warehouse.md: no headrace, only the folder, over WebHDFS."""
    host, _, port = world.process.webhdfs_url.removeprefix("http://").partition(":")
    url = f"webhdfs://{host}:{port}{typed.paths.hourly}"
    rows = pd.read_parquet(url, columns=["number"], filters=[("hour", "=", 23)])
    assert sorted(rows["number"]) == list(range(10, 20))
    con = duckdb.connect()
    con.register_filesystem(fsspec.filesystem("webhdfs", host=host, port=int(port)))
    counts = con.execute(
        f"SELECT dt, hour, count(*) FROM read_parquet('webhdfs://{typed.paths.hourly}/*/*/*.parquet') "
        "GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    assert [(str(day), int(hour), count) for day, hour, count in counts] == [
        ("2023-11-14", 22, 10),
        ("2023-11-14", 23, 10),
    ]
    assert NUMBER["name"] in rows.columns
