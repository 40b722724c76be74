"""Every option of the source, with default and meaning: what `options` accepts, and what the pages show.

Pure. Names are Spark's where Spark's Kafka source has the option; they may be written in any case.
"""

from typing import Final, NamedTuple


class SparkOption(NamedTuple):
    """One option. `default` is as a user would write it, empty if the option has none."""

    name: str
    default: str
    doc: str
    reads: str = "batch, stream"


OPTIONS: Final = (
    SparkOption("kafka.bootstrap.servers", "", "brokers, HOST:PORT,…; required; `bootstrap` is another name"),
    SparkOption("bootstrap", "", "another name of `kafka.bootstrap.servers`"),
    SparkOption(
        "subscribe", "", "topics, separated by commas; or `subscribePattern` or `assign`, one of them"
    ),
    SparkOption("topic", "", "another name of `subscribe`"),
    SparkOption("subscribePattern", "", "a regular expression; topics that match it whole are read"),
    SparkOption("assign", "", 'partitions: `{"topicA":[0,1]}`'),
    SparkOption(
        "startingOffsets",
        "earliest; of a stream latest",
        'earliest, latest (streams alone), or offsets: `{"topicA":{"0":23,"1":-2}}`, -2 earliest, -1 latest; '
        "a stream that has a checkpoint continues there",
    ),
    SparkOption(
        "startingOffsetsByTimestamp",
        "",
        'Unix milliseconds for each partition: `{"topicA":{"0":1700000000000}}`; overrides startingOffsets',
    ),
    SparkOption(
        "startingTimestamp", "", "Unix milliseconds for all partitions; overrides the two options before"
    ),
    SparkOption(
        "startingOffsetsByTimestampStrategy",
        "error",
        "what happens if a partition has no record from that time on: error, or latest",
    ),
    SparkOption("endingOffsets", "latest", "as startingOffsets; where the read ends", "batch"),
    SparkOption("endingOffsetsByTimestamp", "", "as startingOffsetsByTimestamp", "batch"),
    SparkOption("endingTimestamp", "", "as startingTimestamp", "batch"),
    SparkOption(
        "failOnDataLoss",
        "true",
        "whether a read fails whose records the brokers no longer have; false: it begins at what is left",
    ),
    SparkOption("minPartitions", "1", "how many tasks at least; ranges of addresses are divided evenly"),
    SparkOption(
        "maxOffsetsPerTrigger",
        "",
        "how much a micro-batch reads at most, in bytes of the log: offsets are addresses",
        "stream",
    ),
    SparkOption("maxBytesPerTrigger", "", "another name of maxOffsetsPerTrigger", "stream"),
    SparkOption(
        "maxRecordsPerTrigger",
        "",
        "how many records a micro-batch reads at most; the headers of their batches are read twice",
        "stream",
    ),
    SparkOption("includeHeaders", "false", "whether rows have the column `headers`"),
    SparkOption(
        "columns",
        "",
        "columns to read, separated by commas; those left out are not decoded; default: Spark's",
    ),
    SparkOption("valueFormat", "binary", "avro: rows have the event's fields; needs schema.registry.url"),
    SparkOption("schema.registry.url", "", "the registry that has the events' schemas"),
    SparkOption("subject", "", "the subject whose newest schema the columns have; default: TOPIC-value"),
    SparkOption(
        "mode", "FAILFAST", "what happens to an event that cannot be decoded: FAILFAST, or PERMISSIVE (nulls)"
    ),
    SparkOption(
        "onCorrupt",
        "fail",
        "what happens at a batch that cannot be read: fail; skip (left out, with a warning); keep (a row "
        "without key and value for each of its records)",
    ),
    SparkOption("debug", "false", "true: an error shows the traceback of Spark's Python worker, too"),
    SparkOption(
        "kafka.fetch.max.bytes", "8388608", "how much one Fetch of a task asks for; at most 268435456"
    ),
    SparkOption(
        "kafka.request.timeout.ms", "60000", "how long a task waits for a broker that does not answer"
    ),
    SparkOption(
        "kafka.isolation.level",
        "read_uncommitted",
        "read_committed: a read fails at records that a transaction wrote, as it cannot tell their fate",
    ),
    SparkOption(
        "fetchOffset.numRetries", "", "accepted and ignored: kafka.request.timeout.ms bounds retries"
    ),
    SparkOption("fetchOffset.retryIntervalMs", "", "accepted and ignored"),
    SparkOption("path", "", "accepted and ignored: Spark adds it to `load(path)`"),
)
"""Other options that begin with `kafka.` are ignored, so that programs for Kafka's source run."""

NAMES: Final = frozenset(option.name.lower() for option in OPTIONS)
