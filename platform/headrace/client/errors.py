"""The clients' exceptions: each says what caused it, whether a retry may succeed, what to do next."""

from __future__ import annotations

from headrace.wire.errors import ErrorCode


class ClientError(Exception):
    """Base of all. `retriable`: whether the same call may succeed later without any change."""

    retriable = False


class ClosedError(ClientError):
    """Caused by the caller: the client was closed."""


class ForkedError(ClientError):
    """Caused by the caller: the client was created before `os.fork`; its connections belong to the parent.

    Create a new one in the child.
    """


class NetworkError(ClientError):
    """Caused by the environment: no broker was reachable, or a connection broke before the response."""

    retriable = True


class BrokerGoneError(NetworkError):
    """The broker left the cluster before the request was sent: it has not taken effect."""


class RequestTimedOutError(NetworkError):
    """A broker did not respond within `request_timeout_ms`. The request may or may not have taken effect."""


class MetadataTimeoutError(ClientError):
    """No broker sent the topic's metadata within the time allowed. The message names the cause."""

    retriable = True


class UnsupportedApiError(ClientError):
    """The broker does not support an API in any version that this client speaks. Upgrade the broker."""


class BrokerError(ClientError):
    """A broker refused the request. `code` is the protocol's error code."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        self.retriable = self.code.retriable
        super().__init__(f"{what}: {self.code.name}" + (f": {message}" if message else ""))


class UnknownTopicError(ClientError):
    """The topic or partition does not exist. Create it, or correct the name."""


class RecordTooLargeError(ClientError):
    """Caused by the caller: one record exceeds `max_request_size_bytes` or `buffer_memory_bytes`."""


class BufferFullError(ClientError):
    """The producer's memory is full, and none was freed in time.

    Send more slowly, flush, raise `buffer_memory_bytes` or `max_block_ms`, or check why brokers do not
    acknowledge.
    """

    retriable = True


class DeliveryTimeoutError(ClientError):
    """A batch was not acknowledged within `delivery_timeout_ms`.

    `maybe_appended`: the fate of an attempt is unknown, so its records may be in the log.
    """

    retriable = True

    def __init__(self, message: str, *, maybe_appended: bool) -> None:
        self.maybe_appended = maybe_appended
        super().__init__(message)


class OffsetOutOfRangeError(ClientError):
    """The log does not hold the position, and `auto_offset_reset` is "error". Seek, then continue."""

    def __init__(self, topic: str, partition: int, offset: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        problem = "no position was given" if offset is None else f"offset {offset} is not in the log"
        super().__init__(
            f'{topic}-{partition}: {problem}, and auto_offset_reset is "error"; seek to an offset in the log'
        )


class LogTruncationError(OffsetOutOfRangeError):
    """The log does not hold any more what was read, and `auto_offset_reset` is "error". A leader was elected
    that did not have it, or the topic was deleted and made again. `divergence_offset`: where what was read
    parts from the log; None if the brokers do not tell. Seek there to read what the log has instead.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        divergence_offset: int | None,
        cause: str = "a leader was elected that did not have them",
    ) -> None:
        super().__init__(topic, partition, offset)
        self.divergence_offset = divergence_offset
        way_out = "seek to an offset in the log"
        if divergence_offset is not None:
            way_out = f"from offset {divergence_offset} on it holds others: seek there to read them"
        Exception.__init__(
            self,
            f"{topic}-{partition}: the log has lost records that were read before offset {offset}: {cause}; "
            f'auto_offset_reset is "error"; {way_out}',
        )


class CorruptRecordsError(ClientError):
    """A fetched batch is damaged; none of its records was returned.

    `offset` is the consumer's position, which stays there until it is moved. `next_offset` is where the batch
    behind it begins: seek there to leave the bad one out, or create the consumer with `on_corrupt="skip"`. It
    is None if the damage is such that nobody can tell.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, problem: str, next_offset: int | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.problem = problem
        self.next_offset = next_offset
        way_out = "nothing says where the next batch begins"
        if next_offset is not None:
            way_out = f'seek to {next_offset} to leave the batch out, or set on_corrupt="skip"'
        super().__init__(f"{topic}-{partition} at offset {offset}: {problem}; {way_out}")


class FlushTimeoutError(ClientError, TimeoutError):
    """Some records were not delivered within the timeout of `flush`; they are still being sent."""

    retriable = True


class GroupError(ClientError):
    """The group cannot continue: ZooKeeper's registries are unusable. The message names the cause."""
