"""A file of a table whose values somebody changed is never written again under a checksum that fits."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fix_warehouse import BASE_TIME_MS, HOUR_MS, World, click
from headrace.warehouse import compact, unsound
from headrace.warehouse.api import compact_topics
from headrace.warehouse.change import TopicTable
from headrace.warehouse.manifest import DataFile
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.seal import NotSealedError, seal_hour

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]


def with_other_numbers(data: bytes) -> bytes:
    """A file of the same size and rows whose events are others."""
    rows = pq.read_table(io.BytesIO(data)).replace_schema_metadata(None)
    at = rows.schema.get_field_index("number")
    rows = rows.set_column(at, rows.schema.field(at), pa.array([7] * rows.num_rows, pa.int64()))

    def written(padding: int) -> bytes:
        sink = io.BytesIO()
        with pq.ParquetWriter(
            sink, rows.schema, version="1.0", compression="zstd", store_schema=False
        ) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({"padding": "x" * padding})
        return sink.getvalue()

    left = len(data) - len(written(0))
    made = (written(padding) for padding in range(max(0, left - 8), left + 1))
    return next(each for each in made if len(each) == len(data))


def test_a_file_with_other_values_is_neither_compacted_nor_sealed(world: World) -> None:
    """A rewrite would give the changed values a checksum that fits."""
    topic = world.topic("rotten", partitions=1)
    for hour in (0, 1):
        for number in range(2):
            first = hour * 3600 + number * 100
            topic.publish([click(each, BASE_TIME_MS + each * 1000) for each in range(first, first + 100)])
            topic.load()
    path = min(topic.log.state().files)
    world.hdfs.write(path, with_other_numbers(world.hdfs.read(path)), overwrite=True)
    [done] = compact_topics(world.spark, WarehouseOptions(**world.addresses, audit=False), [topic.name])
    assert done.hours == (BASE_TIME_MS + HOUR_MS,), "the other hour is compacted"
    assert path in topic.log.state().files
    assert done.problems[0].startswith(f"2023-11-14T22: {path} has other bytes than when it")
    with pytest.raises(NotSealedError, match="other bytes than when it was written"):
        seal_hour(world.process.webhdfs_url, topic.name, BASE_TIME_MS, {})


def test_a_file_that_changes_after_it_was_checked_is_not_compacted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads it once more: rot, or a change, between the two would get a checksum that fits."""
    topic = world.topic("rots", partitions=1)
    for number in range(2):
        first = number * 100
        topic.publish([click(each, BASE_TIME_MS + each * 1000) for each in range(first, first + 100)])
        topic.load()
    path = min(topic.log.state().files)
    check, changed = unsound.refusal_of, with_other_numbers(world.hdfs.read(path))

    def checked(table: TopicTable, file: DataFile) -> str:
        found = check(table, file)
        if file.path == path:
            world.hdfs.write(path, changed, overwrite=True)
        return found

    monkeypatch.setattr(compact, "refusal_of", checked)
    options = WarehouseOptions(**world.addresses, audit=False)
    [done] = compact_topics(world.spark, options, [topic.name])
    assert (done.hours, done.sequence) == ((), None)
    assert done.problems[0].startswith(f"2023-11-14T22: {path} has other bytes than when it")
    assert path in topic.log.state().files and not topic.log.staged_changes()
    with pytest.raises(NotSealedError, match="other bytes than when it was written"):
        seal_hour(world.process.webhdfs_url, topic.name, BASE_TIME_MS, {})
