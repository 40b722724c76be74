"""The cluster metadata that a read needs: the leaders of partitions, and their offsets.

Owns the retries of these requests. Runs where a read is planned; on an executor only after a connection was
lost. Speaks only `wire`.
"""

import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from kio.schema.list_offsets.v6.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v10 import request as metadata_v10
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from headrace.warehouse.source.connection import CLIENT_ID, Address, SourceConnection
from headrace.warehouse.source.errors import BrokersUnreachableError, NoSuchTopicError
from headrace.warehouse.source.options import EARLIEST, RETRY_PAUSE_MS, Partition
from headrace.wire.errors import ErrorCode, ProtocolError
from headrace.wire.messages import decode_response, encode_request

TRY_FIRST_S: Final = 5.0
"""How long the first try waits for one broker, which may hang; each further one waits twice as long."""

_T = TypeVar("_T")


class Readable(NamedTuple):
    """The partitions of a topic whose leader answers, with where their logs begin, and the others."""

    leaders: dict[int, Address]
    starts: dict[int, int]
    problems: dict[int, Exception]
    """Why a partition cannot be read: it has no leader, or its leader does not answer or refuses."""


class MetadataClient:
    """A client for a cluster's metadata. It retries transient errors for up to `timeout_s`; a broker that
    hangs takes one try, not all of that.
    """

    def __init__(
        self,
        bootstrap: Iterable[str],
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bootstrap = [_address(server) for server in bootstrap]
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._connections: dict[Address, SourceConnection] = {}
        self._patience_s = timeout_s  # for one broker's answer

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def leaders(self, topics: Iterable[str]) -> dict[Partition, Address]:
        """Returns the leader of every partition of these topics. Raises `NoSuchTopicError`."""
        wanted = tuple(topics)
        return self._retried(f"look up {', '.join(wanted)}", lambda: self._leaders(wanted))

    def leaders_of(self, partitions: Collection[Partition]) -> dict[Partition, Address]:
        """Returns the leaders of these partitions, of those that exist. Others of the same topics may have
        none. Raises `NoSuchTopicError`.
        """
        topics = sorted({topic for topic, _ in partitions})
        return self._retried(f"look up {', '.join(topics)}", lambda: self._leaders(topics, partitions))

    def readable(self, topic: str) -> Readable:
        """Returns which partitions of the topic can be read. Waits for all of them, then goes without.

        Raises `NoSuchTopicError`, and what `leaders` raises if no partition can be read.
        """
        found: Readable | None = None

        def look() -> Readable:
            nonlocal found
            found = None
            found = self._readable(topic)
            for problem in found.problems.values():
                raise problem
            return found

        try:
            return self._retried(f"look up {topic}", look)
        except (ProtocolError, BrokersUnreachableError):
            if found is None or not found.leaders:
                raise
            return found

    def leaders_matching(self, pattern: str) -> dict[Partition, Address]:
        """Returns the leader of every partition of the topics whose whole name matches a regular expression,
        but for those of Apache Kafka itself. Other topics may have partitions without a leader.
        """
        return self._retried("look up all topics", lambda: self._leaders_matching(pattern))

    def topic_id(self, topic: str, partitions: Collection[int] = ()) -> str:
        """Returns Kafka's id of the topic (KIP-516), of which all leaders of its partitions must agree: one
        that is cut off may know another. "" from brokers that give topics none. Asks the leaders of all
        partitions that have one, or of these `partitions`. Raises `NoSuchTopicError`.
        """
        wanted = {(topic, number) for number in partitions}
        ids = self._retried(f"look up {topic}", lambda: self._agreed_topic_ids([topic], wanted))
        return ids.get(topic, "")

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Returns Kafka's ids of the topics, as `topic_id` does, with one request for each leader. Topics
        without an id are left out.
        """
        if not topics:
            return {}
        wanted = sorted(topics)
        return self._retried(f"look up {', '.join(wanted)}", lambda: self._agreed_topic_ids(wanted))

    def offsets(self, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
        """Returns the offset of each partition's first record at or after a time in ms; -1 if there is none.

        Instead of a time, -1 asks for the partition's end, -2 for its start.
        """
        if not wanted:
            return {}
        return self._retried("look up offsets", lambda: self._offsets(wanted))

    def _described(self, topics: Collection[str] | None) -> Any:
        """Returns the Metadata of these topics, or of all."""
        wanted = (
            None if topics is None else tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics)
        )
        return self._request_any(
            MetadataRequest(
                topics=wanted,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        )

    def _leaders_matching(self, pattern: str) -> dict[Partition, Address]:
        response = self._described(None)
        topics = (topic for topic in response.topics if not topic.is_internal)
        matching = [topic for topic in topics if re.fullmatch(pattern, topic.name)]
        return _leaders_in(response.brokers, matching)

    def _leaders(
        self, topics: Collection[str], wanted: Collection[Partition] | None = None
    ) -> dict[Partition, Address]:
        """Returns the leaders of the `wanted` partitions of these topics; without them, of all."""
        leaders, problems = self._leaders_and_problems(topics)
        for partition, problem in problems.items():
            if wanted is None or partition in wanted:
                raise problem
        return {each: leaders[each] for each in leaders if wanted is None or each in wanted}

    def _leaders_and_problems(
        self, topics: Collection[str]
    ) -> tuple[dict[Partition, Address], dict[Partition, Exception]]:
        response = self._described(topics)
        for topic in response.topics:
            self._check_exists(topic)
        return _leaders_and_problems_in(response.brokers, response.topics)

    def _check_exists(self, topic: Any) -> None:
        if ErrorCode(topic.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoSuchTopicError(f"there is no topic {topic.name!r} at {self._names()}")

    def _readable(self, topic: str) -> Readable:
        leaders, without = self._leaders_and_problems([topic])
        problems = {number: problem for (_, number), problem in without.items()}
        starts: dict[int, int] = {}
        for address, partitions in _by_leader(leaders).items():
            numbers = [number for _, number in partitions]
            try:
                found, refused = self._offsets_at(address, dict.fromkeys(partitions, EARLIEST))
            except OSError as error:
                silent = OSError(f"its leader {address[0]}:{address[1]} does not answer: {error}")
                problems.update(dict.fromkeys(numbers, silent))
                continue
            starts.update({number: offset for (_, number), offset in found.items()})
            problems.update({number: problem for (_, number), problem in refused.items()})
        return Readable({number: leaders[topic, number] for number in starts}, starts, problems)

    def _agreed_topic_ids(
        self, topics: Collection[str], wanted: Collection[Partition] = ()
    ) -> dict[str, str]:
        leading: dict[Address, set[str]] = {}
        leaders, problems = self._leaders_and_problems(topics)
        led = {topic for topic, _ in leaders}
        for (topic, number), problem in problems.items():
            if topic not in led or (topic, number) in wanted:
                raise problem
        for (topic, number), address in leaders.items():
            if not wanted or (topic, number) in wanted:
                leading.setdefault(address, set()).add(topic)
        told: dict[str, set[str]] = {}
        for address, led in leading.items():
            for topic, topic_id in self._told_topic_ids(sorted(led), address).items():
                told.setdefault(topic, set()).add(topic_id)
        for topic, ids in told.items():
            if len(ids) != 1:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {topic}: brokers tell {sorted(ids)}")
        return {topic: topic_id for topic, (topic_id,) in told.items() if topic_id}

    def _told_topic_ids(self, topics: Collection[str], address: Address) -> dict[str, str]:
        """What one broker tells; "" for a topic that has none."""
        asked = (metadata_v10.MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in topics)
        response = self._request(
            address,
            metadata_v10.MetadataRequest(
                topics=tuple(asked),
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            ),
        )
        for topic in response.topics:
            self._check_exists(topic)
            _check(topic.error_code, f"topic {topic.name}")
        return {str(topic.name): str(topic.topic_id or "") for topic in response.topics}

    def _offsets(self, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
        leaders = self._leaders({topic for topic, _ in wanted}, wanted)
        for topic, number in wanted:
            if (topic, number) not in leaders:
                raise NoSuchTopicError(f"topic {topic!r} has no partition {number}")
        found: dict[Partition, int] = {}
        for address, partitions in _by_leader(leaders).items():
            offsets, refused = self._offsets_at(address, {each: wanted[each] for each in partitions})
            for problem in refused.values():
                raise problem
            found.update(offsets)
        return found

    def _offsets_at(
        self, address: Address, wanted: Mapping[Partition, int]
    ) -> tuple[dict[Partition, int], dict[Partition, Exception]]:
        """Returns the offsets that one broker tells, and why it does not tell the others."""
        response = self._request(address, _list_offsets(list(wanted), wanted))
        found: dict[Partition, int] = {}
        refused: dict[Partition, Exception] = {}
        for topic in response.topics:
            for result in topic.partitions:
                partition = (str(topic.name), int(result.partition_index))
                if partition not in wanted:
                    continue
                if (code := ErrorCode(result.error_code)) is ErrorCode.NONE:
                    found[partition] = int(result.offset)
                else:
                    refused[partition] = ProtocolError(code, f"topic {topic.name} partition {partition[1]}")
        for topic, number in wanted.keys() - found.keys() - refused.keys():
            what = f"topic {topic} partition {number} is not in the answer"
            refused[topic, number] = ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, what)
        return found, refused

    def _request_any(self, body: Any) -> Any:
        servers = random.sample(self._bootstrap, len(self._bootstrap))
        for address in servers[:-1]:
            try:
                return self._request(address, body)
            except OSError:
                continue
        return self._request(servers[-1], body)

    def _request(self, address: Address, body: Any) -> Any:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = SourceConnection(address, self._patience_s)
        try:
            connection.wait_at_most(self._patience_s)
            connection.send(encode_request(body, correlation_id=0, client_id=CLIENT_ID))
            frame = connection.receive()
        except OSError:
            self._connections.pop(address).close()
            raise
        return decode_response(bytes(frame), api_key=body.__api_key__, version=body.__version__)[1]

    def _retried(self, what: str, call: Callable[[], _T]) -> _T:
        deadline = self._clock() + self._timeout_s
        try_s = TRY_FIRST_S
        while True:
            self._patience_s = min(try_s, self._timeout_s)
            try_s *= 2
            try:
                return call()
            except OSError as error:
                problem: Exception = BrokersUnreachableError(
                    f"no broker of {self._names()} answered ({error}): could not {what}; "
                    "start the brokers or fix kafka.bootstrap.servers, then repeat"
                )
            except ProtocolError as error:
                if not error.code.retriable:
                    raise
                problem = error
            if self._clock() >= deadline:
                raise problem
            self._sleep(RETRY_PAUSE_MS / 1000)

    def _names(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._bootstrap)


def _leaders_in(brokers: Iterable[Any], topics: Iterable[Any]) -> dict[Partition, Address]:
    """Returns the leaders of these topics of a Metadata response. Raises `ProtocolError`."""
    found, problems = _leaders_and_problems_in(brokers, topics)
    for problem in problems.values():
        raise problem
    return found


def _leaders_and_problems_in(
    brokers: Iterable[Any], topics: Iterable[Any]
) -> tuple[dict[Partition, Address], dict[Partition, Exception]]:
    """Returns the leaders of these topics' partitions, and an error for each one without. Raises
    `ProtocolError` for a topic as a whole.
    """
    addresses = {broker.node_id: (broker.host, broker.port) for broker in brokers}
    found: dict[Partition, Address] = {}
    problems: dict[Partition, Exception] = {}
    for topic in topics:
        _check(topic.error_code, f"topic {topic.name}")
        for partition in topic.partitions:
            key = (str(topic.name), int(partition.partition_index))
            if partition.leader_id in addresses:
                found[key] = addresses[partition.leader_id]
            else:
                what = f"topic {topic.name} partition {key[1]}"
                problems[key] = ProtocolError(ErrorCode.LEADER_NOT_AVAILABLE, what)
    return found, problems


def _by_leader(leaders: Mapping[Partition, Address]) -> dict[Address, list[Partition]]:
    by_leader: dict[Address, list[Partition]] = {}
    for partition, address in leaders.items():
        by_leader.setdefault(address, []).append(partition)
    return by_leader


def _check(error_code: int, what: str) -> None:
    code = ErrorCode(error_code)
    if code is not ErrorCode.NONE:
        raise ProtocolError(code, what)


def _list_offsets(partitions: Iterable[Partition], wanted: Mapping[Partition, int]) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(
            ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(wanted[topic, partition]))
        )
    return ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=tuple(
            ListOffsetsTopic(name=TopicName(topic), partitions=tuple(partitions_of_topic))
            for topic, partitions_of_topic in by_topic.items()
        ),
    )


def _address(server: str) -> Address:
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdigit():
        raise BrokersUnreachableError(f"kafka.bootstrap.servers holds {server!r}; it must be host:port")
    return host.strip("[]"), int(port)
