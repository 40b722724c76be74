"""The errors of the source, with the names and words of Spark's Kafka source. Pure."""

from typing import Final

_DATA_LOSS: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged "
    "out by Kafka or the topic may have been deleted before all the data in the topic was processed. If you "
    "don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false."
)


class SourceError(Exception):
    """Reading failed. `retriable`: the same read may succeed later without any change to it."""

    retriable = False


class OptionError(SourceError, ValueError):
    """An option is missing, or has an invalid value."""


class BrokersUnreachableError(SourceError):
    """No broker answered within the request timeout."""

    retriable = True


class NoSuchTopicError(SourceError):
    """The cluster has no such topic or partition."""


class DataLossError(SourceError):
    """`[KAFKA_DATA_LOSS.<subclass>]`: the cluster no longer has records that should be read."""

    def __init__(self, subclass: str, reason: str) -> None:
        super().__init__(f"[KAFKA_DATA_LOSS.{subclass}] {_DATA_LOSS} Reason: {reason}")


class CorruptBatchesError(SourceError):
    """The log holds a batch that cannot be read, and the option `onCorrupt` is `fail`."""


class StartAfterEndError(SourceError):
    """`[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET]`."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        super().__init__(
            f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The resolved start offset {start} is greater "
            f"than the resolved end offset {end} for topic {topic} partition {partition}."
        )


class PartitionsMismatchError(SourceError):
    """`[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED]`."""

    def __init__(self, specified: set[str], assigned: set[str], position: str = "start") -> None:
        super().__init__(
            f"[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka {position} offsets "
            "don't match what are assigned. Maybe topic partitions are created or deleted while the query is "
            "running. Use -1 for latest, -2 for earliest. "
            f"Specified: {', '.join(sorted(specified))} Assigned: {', '.join(sorted(assigned))}"
        )
