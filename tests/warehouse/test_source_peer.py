"""The source and Spark's own Kafka connector read the same topics of a real Apache Kafka."""

import json
from typing import TYPE_CHECKING

import confluent_kafka
import pytest

from fix_kafka import ApacheKafka
from fix_warehouse import create_topic
from headrace.warehouse.errors import known_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.real_client]

TOPIC = "peer"
PARTITIONS = 3
RECORDS = 9_000
BASE_TIME_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka) -> str:
    """A topic with every codec, nulls, empty values, headers, many batches."""
    create_topic(apache_kafka.bootstrap, TOPIC, PARTITIONS)
    for turn, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": apache_kafka.bootstrap,
                "compression.type": codec,
                "batch.num.messages": 500,
            }
        )
        for index in range(turn * RECORDS // 5, (turn + 1) * RECORDS // 5):
            producer.produce(
                TOPIC,
                key=None if index % 7 == 0 else f"key-{index}".encode(),
                value=None
                if index % 11 == 0
                else (b"" if index % 13 == 0 else b"\0\0\0\0\5" + b"v" * (index % 300)),
                timestamp=BASE_TIME_MS + index,
                headers=[("h", b"1"), ("h", None)] if index % 5 == 0 else None,
                partition=index % PARTITIONS,
            )
        producer.flush(30)
    return TOPIC


def ours(spark: "SparkSession", kafka: ApacheKafka, **options: str) -> "DataFrame":
    return (
        spark.read.format("headrace")
        .options(**{"kafka.bootstrap.servers": kafka.bootstrap, **options})
        .load()
    )


def theirs(spark: "SparkSession", kafka: ApacheKafka, **options: str) -> "DataFrame":
    return (
        spark.read.format("kafka").options(**{"kafka.bootstrap.servers": kafka.bootstrap, **options}).load()
    )


def rows(frame: "DataFrame") -> list[object]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


OFFSETS = {
    "startingOffsets": json.dumps({TOPIC: {"0": 17, "1": -2, "2": 2999}}),
    "endingOffsets": json.dumps({TOPIC: {"0": 2500, "1": -1, "2": 3000}}),
}


@pytest.mark.parametrize(
    "options",
    [
        {"includeHeaders": "true"},
        {"minPartitions": "8"},
        OFFSETS,
        {**OFFSETS, "minPartitions": "7", "includeHeaders": "true"},
        {"startingTimestamp": str(BASE_TIME_MS + 4000), "endingTimestamp": str(BASE_TIME_MS + 8000)},
    ],
    ids=["everything", "many parts", "offsets", "offsets in many parts", "times"],
)
def test_the_same_rows_as_sparks_connector(
    spark: "SparkSession", apache_kafka: ApacheKafka, topic: str, options: dict[str, str]
) -> None:
    expected = rows(theirs(spark, apache_kafka, subscribe=topic, **options))
    found = rows(ours(spark, apache_kafka, subscribe=topic, **options))
    assert expected
    assert found == expected


def test_the_same_schema_as_sparks_connector(
    spark: "SparkSession", apache_kafka: ApacheKafka, topic: str
) -> None:
    for headers in ("true", "false"):
        expected = theirs(spark, apache_kafka, subscribe=topic, includeHeaders=headers).schema
        found = ours(spark, apache_kafka, subscribe=topic, includeHeaders=headers).schema
        assert [(field.name, field.dataType) for field in found] == [
            (field.name, field.dataType) for field in expected
        ]


def test_a_pattern_leaves_out_the_topics_of_kafka_itself(
    spark: "SparkSession", apache_kafka: ApacheKafka, topic: str
) -> None:
    """The commits of all groups were among the rows."""
    group = {"bootstrap.servers": apache_kafka.bootstrap, "group.id": "somebody"}
    consumer = confluent_kafka.Consumer(group)
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    expected, found = (
        {row.topic for row in read(spark, apache_kafka, subscribePattern=".*").select("topic").collect()}
        for read in (theirs, ours)
    )
    assert topic in expected
    assert found == expected


def test_what_a_transaction_wrote_is_not_read_as_committed(
    spark: "SparkSession", apache_kafka: ApacheKafka
) -> None:
    """Spark's connector leaves out what was called off; the source has no way to know it, and gave it."""
    create_topic(apache_kafka.bootstrap, "transacted", 1)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": apache_kafka.bootstrap, "transactional.id": "peer"}
    )
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("transacted", end.__name__.encode())
        producer.flush(30)
        end(30)
    committed = {"subscribe": "transacted", "kafka.isolation.level": "read_committed"}
    [kept] = theirs(spark, apache_kafka, **committed).select("value").collect()
    assert bytes(kept.value) == b"commit_transaction"
    with pytest.raises(Exception) as raised:
        rows(ours(spark, apache_kafka, **committed))
    problem = known_error(raised.value, "read transacted")
    assert problem is not None
    assert "transacted-0 at offset 0: a transaction wrote these records" in problem
    everything = {"subscribe": "transacted"}
    assert rows(ours(spark, apache_kafka, **everything)) == rows(theirs(spark, apache_kafka, **everything))
