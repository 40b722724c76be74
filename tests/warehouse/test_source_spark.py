"""The source in Spark, on headrace brokers: batches by address, streams, the Avro mode, errors."""

from pathlib import Path
from typing import Any

import pyspark
import pytest

from fix_warehouse import BASE_TIME_MS, CLICK, NUMBER, TestTopic, World, click, event_schema, make_again
from headrace.warehouse.errors import known_error
from headrace.warehouse.source import lag_bytes

pytestmark = pytest.mark.spark


def clicks(first: int, count: int) -> list[dict[str, Any]]:
    return [click(number, BASE_TIME_MS + number * 1000) for number in range(first, first + count)]


def options(topic: TestTopic, **more: str) -> dict[str, str]:
    return {"bootstrap": topic.world.bootstrap, "topic": topic.name, **more}


def triggers_of_all(world: World, source: dict[str, str], folder: Path) -> list[Any]:
    """Reads by a stream, with its checkpoint in the folder, all that is there; each trigger that got rows."""
    query = (
        world.spark.readStream.format("headrace")
        .options(**source)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    return [each for each in query.recentProgress if each.numInputRows]


def test_any_cut_of_the_addresses_gives_every_record_once(world: World) -> None:
    topic = world.topic("cuts")
    topic.publish(clicks(0, 5000))
    read = world.spark.read.format("headrace")
    whole = read.options(**options(topic)).load().select("partition", "offset").collect()
    assert len(set(whole)) == 5000
    cut = read.options(**options(topic, minPartitions="13")).load()
    assert cut.rdd.getNumPartitions() >= 13
    assert sorted(cut.select("partition", "offset").collect()) == sorted(whole)


def test_workers_import_the_installed_pyspark(world: World) -> None:
    def where(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert world.spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


def test_a_stream_reads_what_is_available_and_resumes_from_its_checkpoint(
    world: World, tmp_path: Path
) -> None:
    topic = world.topic("stream")
    topic.publish(clicks(0, 1000))
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run(**more: str) -> int:
        stream = world.spark.readStream.format("headrace").options(
            **options(topic, startingOffsets="earliest", **more)
        )
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("path", out)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None
        return len([progress for progress in query.recentProgress if progress.numInputRows])

    assert run() == 1
    # A trigger takes whole batches: there must be several.
    for first in range(1000, 3000, 250):
        topic.publish(clicks(first, 250))
    assert run(maxOffsetsPerTrigger="10000") > 1
    rows = world.spark.read.parquet(out).select("partition", "offset").collect()
    assert len(rows) == len(set(rows)) == 3000


def test_a_stream_that_may_lose_goes_on_in_a_topic_that_was_made_again(world: World, tmp_path: Path) -> None:
    """It stood still until the new log had grown beyond the place that it had reached in the old one."""
    topic = world.topic("again", partitions=1)
    source = options(
        topic,
        **{"startingOffsets": "earliest", "failOnDataLoss": "false", "kafka.request.timeout.ms": "2000"},
    )

    def run() -> list[int]:
        return [each.numInputRows for each in triggers_of_all(world, source, tmp_path)]

    topic.publish(clicks(0, 1000))
    assert run() == [1000]
    make_again(topic)
    topic.publish(clicks(0, 10))
    assert run() == [10]
    topic.publish(clicks(10, 20))
    assert run() == [20]


def test_a_topic_that_was_made_again_and_has_grown_is_not_taken_for_the_old_one(
    world: World, tmp_path: Path
) -> None:
    """The stream went on at the old one's offset: the first 1,000 records of the new one were passed over."""
    topic = world.topic("grown", partitions=2)
    source = options(topic, **{"startingOffsets": "earliest", "kafka.request.timeout.ms": "2000"})

    def run(**more: str) -> list[int]:
        return [each.numInputRows for each in triggers_of_all(world, source | more, tmp_path)]

    topic.publish(clicks(0, 1000))
    assert run() == [1000]
    topic.publish(clicks(1000, 5))
    assert run() == [5]
    make_again(topic, partitions=2)
    topic.publish(clicks(0, 1500))
    with pytest.raises(Exception, match=r"PARTITIONS_DELETED") as caught:
        run()
    line = known_error(caught.value, "read")
    assert line is not None and f"Topic {topic.name} was made again: the stream has read" in line
    assert "failOnDataLoss=false" in str(caught.value)
    assert run(failOnDataLoss="false") == [1500]
    topic.publish(clicks(1500, 7))
    assert run() == [7]


def test_a_stream_takes_so_many_records_and_tells_its_lag(world: World, tmp_path: Path) -> None:
    topic = world.topic("limited")
    topic.publish(clicks(0, 700))
    source = options(topic, startingOffsets="earliest", maxRecordsPerTrigger="300")
    progress = triggers_of_all(world, source, tmp_path)
    assert all(each.numInputRows <= 300 for each in progress)
    assert sum(each.numInputRows for each in progress) == 700
    behind = [sum(lag_bytes(each)[topic.name].values()) for each in progress]
    assert behind == sorted(behind, reverse=True)
    assert behind[0] > behind[-1] == 0


def test_errors_have_a_traceback_only_for_debugging(world: World) -> None:
    topic = world.topic("plain", partitions=1)
    topic.publish(clicks(0, 10), CLICK)
    cases = [
        {"topic": "nowhere"},
        {"minPartitions": "many"},
        {"valueFormat": "avro", "schema.registry.url": world.registry_url, "subject": "nowhere"},
    ]
    for more in cases:
        texts = []
        for debug in ("false", "true"):
            with pytest.raises(Exception) as caught:
                given = options(topic, debug=debug) | more
                world.spark.read.format("headrace").options(**given).load().collect()
            texts.append(str(caught.value))
        assert ["Traceback" in text for text in texts] == [False, True], texts[0]
        assert known_error(Exception(texts[0]), "read") == known_error(Exception(texts[1]), "read")


def test_the_avro_mode_gives_the_record(world: World) -> None:
    topic = world.topic("records", partitions=1)
    topic.publish(clicks(0, 10))
    wider = event_schema(
        NUMBER,
        {"name": "word", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {
            "name": "kind",
            "type": ["null", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}],
            "default": None,
        },
    )
    topic.publish([{**event, "tags": ["x"], "kind": "B"} for event in clicks(10, 5)], wider)
    avro = {"valueFormat": "avro", "schema.registry.url": world.registry_url}
    frame = world.spark.read.format("headrace").options(**options(topic, **avro)).load()
    rows = frame.select("offset", "value.*").orderBy("offset").collect()
    assert [(row.number, row.word, row.tags, row.kind) for row in rows] == [
        *[(number, f"w{number % 10}", [], None) for number in range(10)],
        *[(number, f"w{number % 10}", ["x"], "B") for number in range(10, 15)],
    ]
    assert rows[3].header.time.timestamp() * 1000 == BASE_TIME_MS + 3000

    topic.send([(b"garbage", BASE_TIME_MS)])
    permissive = (
        world.spark.read.format("headrace").options(**options(topic, mode="PERMISSIVE", **avro)).load()
    )
    assert permissive.where("value is null").count() == 1
    failing = world.spark.read.format("headrace").options(**options(topic, **avro)).load()
    with pytest.raises(Exception, match="no schema id") as caught:
        failing.collect()
    assert "mode PERMISSIVE" in str(known_error(caught.value, "read"))


def test_errors_of_a_read_have_one_line(world: World) -> None:
    topic = world.topic("errors", partitions=1)
    topic.publish(clicks(0, 10), CLICK)
    cases = {
        "there is no topic 'nowhere'": {"topic": "nowhere"},
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": {
            "startingOffsets": f'{{"{topic.name}":{{"0":50}}}}',
            "endingOffsets": f'{{"{topic.name}":{{"0":10}}}}',
        },
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED": {"endingOffsets": f'{{"{topic.name}":{{"0":99999999}}}}'},
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED": {"startingOffsets": f'{{"{topic.name}":{{"7":0}}}}'},
        "no broker of 127.0.0.1:9 answered": {"bootstrap": "127.0.0.1:9", "kafka.request.timeout.ms": "500"},
    }
    for words, more in cases.items():
        with pytest.raises(Exception) as caught:
            world.spark.read.format("headrace").options(**{**options(topic), **more}).load().collect()
        line = known_error(caught.value, "read")
        assert line is not None, caught.value
        assert words in line
        assert "\n" not in line
