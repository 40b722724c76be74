"""What the client raises.

One tree: whose fault it is, whether the same call may succeed later, what to do next.
"""

from __future__ import annotations

from headrace.wire.errors import ErrorCode


class ClientError(Exception):
    """Anything the client raises; `retriable` says whether the same call may succeed later without any
    change.
    """

    retriable = False


class ClosedError(ClientError):
    """The caller's fault: the client was closed and serves nobody any more."""


class ForkedError(ClientError):
    """The caller's fault: the client was made before `os.fork`, and its connections belong to the parent.

    Make a new one in the child.
    """


class NetworkError(ClientError):
    """The environment's fault: no broker could be reached, or a connection broke before the answer came."""

    retriable = True


class RequestTimedOutError(NetworkError):
    """A broker took longer than `request_timeout_ms` to answer.

    The request may or may not have taken effect.
    """


class MetadataTimeoutError(ClientError):
    """Within the bound no broker told us about the topic. The message says what stood in the way."""

    retriable = True


class UnsupportedApiError(ClientError):
    """The broker does not speak an API, or none of the versions we do. Upgrade the broker, or do without."""


class BrokerError(ClientError):
    """A broker refused the request. `code` is the protocol's own reason."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        self.retriable = self.code.retriable
        super().__init__(f"{what}: {self.code.name}" + (f": {message}" if message else ""))


class UnknownTopicError(ClientError):
    """No such topic or partition. Create it, or correct the name."""


class RecordTooLargeError(ClientError):
    """The caller's fault: one record is larger than a request may be (`max_request_size_bytes`)."""


class BufferFullError(ClientError):
    """The producer's memory is full, and did not empty in time.

    Send more slowly, flush, raise `buffer_memory_bytes` or `max_block_ms`, or see why brokers do not take it.
    """

    retriable = True


class DeliveryTimeoutError(ClientError):
    """A batch was not acknowledged within `delivery_timeout_ms`.

    `maybe_appended`: an attempt's fate is unknown.
    """

    retriable = True

    def __init__(self, message: str, *, maybe_appended: bool) -> None:
        self.maybe_appended = maybe_appended
        super().__init__(message)


class OffsetOutOfRangeError(ClientError):
    """The position asked for is not in the log (any more), and `auto_offset_reset` is "error".

    Seek, then go on.
    """

    def __init__(self, topic: str, partition: int, offset: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        where = "no position was given" if offset is None else f"offset {offset} is not in the log"
        super().__init__(
            f'{topic}-{partition}: {where}, and auto_offset_reset is "error"; seek to one that is'
        )


class CorruptRecordsError(ClientError):
    """A fetched batch is damaged. Nothing of it was given out; seek past `offset` to go on without it."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        super().__init__(f"{topic}-{partition} at offset {offset}: {reason}")


class FlushTimeoutError(ClientError, TimeoutError):
    """`flush` waited as long as it was told to; the records are still on their way."""

    retriable = True
