"""A scripted Kafka broker in memory, on real sockets: appends, refuses, hangs, loses messages.

Fixture: `fake_cluster`, a factory: `fake_cluster(brokers=2, partitions=3)` returns a `FakeCluster`. Its
brokers share one log per partition, check producers' sequences as Kafka does, and follow a script:
`cluster.next(ApiKey.PRODUCE, LOSE_ANSWER)` loses the response to the next Produce request.
"""

import datetime
import sys
import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode

from fix_fake_broker import FakeBroker, Fault
from fix_fake_log import FakeLog
from headrace.client import BatchIdentity, BatchObserver, Producer
from headrace.client.errors import ClientError
from headrace.wire import fetch, messages, produce
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode


class FakeCluster:
    """Brokers 1 to n and topic "t", its partitions led round robin; other topics are created on demand."""

    def __init__(self, brokers: int = 1, partitions: int = 1, *, by_address: bool = True) -> None:
        self.lock = threading.RLock()
        self.by_address = by_address
        self.versions: dict[int, tuple[int, int]] = {
            ApiKey.PRODUCE: (3, 13),
            ApiKey.FETCH: (4, 17),
            ApiKey.LIST_OFFSETS: (1, 7),
            ApiKey.METADATA: (4, 12),
            ApiKey.API_VERSIONS: (0, 3),
            ApiKey.INIT_PRODUCER_ID: (0, 4),
            ApiKey.LIST_GROUPS: (0, 5),
        }
        self.script: dict[int, deque[Fault]] = defaultdict(deque)
        self.requests: list[tuple[int, messages.Request]] = []
        self.delays_s: dict[int, float] = {}
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.leaders: dict[tuple[str, int], int] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}  # without one, a topic is fetched by its name
        self.told_ids: dict[str, uuid.UUID] = {}  # what a broker that is behind tells in Metadata instead
        self.creates_topics = True
        self.default_partitions = partitions
        self.next_producer_id = 1000
        self.first_epoch = 0
        self.brokers = [FakeBroker(self, i + 1) for i in range(brokers)]
        self.create("t", partitions)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers)

    def create(self, topic: str, partitions: int) -> None:
        for partition in range(partitions):
            self.logs[topic, partition] = FakeLog(self.by_address)
            self.leaders[topic, partition] = partition % len(self.brokers) + 1

    def log(self, partition: int = 0, topic: str = "t") -> FakeLog:
        return self.logs[topic, partition]

    def next(self, api_key: ApiKey, *faults: Fault) -> None:
        """The next requests of that API meet these faults, one each."""
        with self.lock:
            self.script[api_key].extend(faults)

    def requests_of(self, api_key: ApiKey) -> list[messages.Request]:
        with self.lock:
            return [request for _, request in self.requests if request.api_key == api_key]

    def close(self) -> None:
        for broker in self.brokers:
            broker.end()

    # requests

    def handle(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes | None:
        handler: Callable[..., bytes | None] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.LIST_GROUPS: self._list_groups,
        }[ApiKey(request.api_key)]
        return handler(broker, request, fault)

    def _reply(self, request: messages.Request, structure: str, /, **values: Any) -> bytes:
        body = self._make(request, structure, **values)
        return messages.encode_response(body, correlation_id=request.correlation_id)

    @staticmethod
    def _make(request: messages.Request, structure: str, /, **values: Any) -> Any:
        schema = load_response_schema(request.api_key, request.version)
        kind = getattr(sys.modules[schema.__module__], structure)
        return kind(**{key: value for key, value in values.items() if key in kind.__dataclass_fields__})

    def _api_versions(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes:
        if request.version > self.versions[ApiKey.API_VERSIONS][1]:
            # As Apache Kafka: only the range of ApiVersions itself.
            low, high = self.versions[ApiKey.API_VERSIONS]
            return messages.unsupported_api_versions_response(request.correlation_id, [(18, low, high)])
        keys = tuple(
            self._make(request, "ApiVersion", api_key=int(key), min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        )
        return self._reply(
            request,
            "ApiVersionsResponse",
            error_code=KioErrorCode(fault.code or 0),
            api_keys=keys,
            throttle_time=datetime.timedelta(),
        )

    def _metadata(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes:
        wanted = request.body.topics
        names = {topic for topic, _ in self.logs} if wanted is None else {topic.name for topic in wanted}
        known = {topic for topic, _ in self.logs}
        for name in names - known:
            if self.creates_topics and request.body.allow_auto_topic_creation:
                self.create(name, self.default_partitions)
        topics = []
        for name in sorted(names):
            partitions = tuple(
                self._make(
                    request,
                    "MetadataResponsePartition",
                    error_code=KioErrorCode.none if leader > 0 else KioErrorCode.leader_not_available,
                    partition_index=partition,
                    leader_id=leader,
                    leader_epoch=0,
                    replica_nodes=(leader,),
                    isr_nodes=(leader,),
                    offline_replicas=(),
                )
                for (topic, partition), leader in sorted(self.leaders.items())
                if topic == name
            )
            code = fault.code or (ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topics.append(
                self._make(
                    request,
                    "MetadataResponseTopic",
                    error_code=KioErrorCode(code),
                    name=name,
                    topic_id=self.told_ids.get(name, self.topic_ids.get(name)),
                    is_internal=False,
                    partitions=partitions,
                )
            )
        brokers = tuple(
            self._make(
                request, "MetadataResponseBroker", node_id=b.broker_id, host=b.host, port=b.port, rack=None
            )
            for b in self.brokers
        )
        return self._reply(
            request,
            "MetadataResponse",
            throttle_time=datetime.timedelta(),
            brokers=brokers,
            cluster_id="fake",
            controller_id=1,
            topics=tuple(topics),
        )

    def _init_producer_id(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes:
        self.next_producer_id += 1
        return self._reply(
            request,
            "InitProducerIdResponse",
            throttle_time=datetime.timedelta(),
            error_code=KioErrorCode(fault.code or 0),
            producer_id=self.next_producer_id if fault.code is None else -1,
            producer_epoch=self.first_epoch if fault.code is None else -1,
        )

    def _list_groups(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes:
        return self._reply(
            request,
            "ListGroupsResponse",
            throttle_time=datetime.timedelta(),
            error_code=KioErrorCode(fault.code or 0),
            groups=(),
        )

    def _produce(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes | None:
        topics = []
        for topic in request.body.topics:
            results = []
            for part in topic.partitions:
                code, base = self._append(broker, topic.name, part, fault)
                results.append(produce.ProducePartitionResult(part.partition, code, base))
            topics.append(produce.ProduceTopicResult(topic.name, topic.topic_id, results))
        if request.body.acks == 0:
            return None
        return produce.encode_response(
            produce.ProduceResponse(topics), version=request.version, correlation_id=request.correlation_id
        )

    def _append(
        self, broker: FakeBroker, topic: str, part: produce.ProducePartition, fault: Fault
    ) -> tuple[ErrorCode, int]:
        if self.leaders.get((topic, part.partition)) != broker.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        code, base = ErrorCode.NONE, -1
        if fault.appends:
            assert part.records is not None
            code, base = self.logs[topic, part.partition].append(bytes(part.records))
        return (code, base) if fault.code is None else (fault.code, -1)

    def _fetch(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes:
        topics = []
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        for topic in request.body.topics:
            results = []
            for part in topic.partitions:
                name = topic.name or names.get(topic.topic_id)
                if name is None:
                    result = fetch.FetchPartitionResult(part.partition, ErrorCode.UNKNOWN_TOPIC_ID, -1)
                else:
                    result = self._read(broker, name, part, fault)
                    if request.body.wants_addresses and result.records:
                        result = result._replace(address=self.logs[name, part.partition].address_of(part))
                results.append(result)
            topics.append(fetch.FetchTopicResult(topic.name, topic.topic_id, results))
        if not any(result.records or result.error_code for topic in topics for result in topic.partitions):
            self.delays_s[id(request)] = min(request.body.max_wait_ms / 1000, 0.02)
        pieces = fetch.encode_response(
            fetch.FetchResponse(topics), version=request.version, correlation_id=request.correlation_id
        )
        return b"".join(piece for piece in pieces if not isinstance(piece, int))

    def _read(
        self, broker: FakeBroker, topic: str, part: fetch.FetchPartition, fault: Fault
    ) -> fetch.FetchPartitionResult:
        log = self.logs.get((topic, part.partition))
        code = fault.code or ErrorCode.NONE
        if log is None:
            return fetch.FetchPartitionResult(part.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        if self.leaders[topic, part.partition] != broker.broker_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not log.start <= part.fetch_offset <= log.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        parting = log.parting(part.last_fetched_epoch, part.fetch_offset)
        if parting is not None and code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            if parting.epoch < 0:
                return fetch.FetchPartitionResult(part.partition, ErrorCode.OFFSET_OUT_OF_RANGE, -1)
            return fetch.FetchPartitionResult(part.partition, 0, log.end, diverging_epoch=parting)
        if code is not ErrorCode.NONE:
            return fetch.FetchPartitionResult(part.partition, code, -1)
        data = log.read(part.fetch_offset, part.max_bytes)
        return fetch.FetchPartitionResult(part.partition, 0, log.end, data, log.end, log.start)

    def _list_offsets(self, broker: FakeBroker, request: messages.Request, fault: Fault) -> bytes:
        topics = []
        for topic in request.body.topics:
            parts = []
            for part in topic.partitions:
                offset, time_ms = self._offset_at(self.logs[topic.name, part.partition_index], part.timestamp)
                parts.append(
                    self._make(
                        request,
                        "ListOffsetsPartitionResponse",
                        partition_index=part.partition_index,
                        error_code=KioErrorCode(fault.code or 0),
                        timestamp=time_ms,
                        offset=offset,
                        leader_epoch=0,
                    )
                )
            topics.append(
                self._make(request, "ListOffsetsTopicResponse", name=topic.name, partitions=tuple(parts))
            )
        return self._reply(
            request, "ListOffsetsResponse", throttle_time=datetime.timedelta(), topics=tuple(topics)
        )

    @staticmethod
    def _offset_at(log: FakeLog, timestamp_ms: int) -> tuple[int, int]:
        if timestamp_ms == -1:
            return log.end, -1
        if timestamp_ms == -2:
            return log.start, -1
        for record in log.records():
            if record.timestamp_ms >= timestamp_ms:
                return record.offset, record.timestamp_ms
        return -1, -1


StartCluster = Callable[..., FakeCluster]
MakeProducer = Callable[..., Producer]


@pytest.fixture
def fake_cluster() -> Iterator[StartCluster]:
    started: list[FakeCluster] = []

    def start(brokers: int = 1, partitions: int = 1, *, by_address: bool = True) -> FakeCluster:
        started.append(FakeCluster(brokers, partitions, by_address=by_address))
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()


FAST = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "request_timeout_ms": 5000, "linger_ms": 1}


class Recorder(BatchObserver):
    """Every call of a producer's observer, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def batch_closed(self, identity: BatchIdentity) -> None:
        self.events.append(("closed", identity))

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        self.events.append(("renumbered", old, new))

    def batch_delivered(self, identity: BatchIdentity, base_offset: int) -> None:
        self.events.append(("delivered", identity, base_offset))

    def batch_failed(self, identity: BatchIdentity, error: ClientError) -> None:
        self.events.append(("failed", identity, error))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == kind]


def values(log: FakeLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


@pytest.fixture
def fast_producer() -> Iterator[MakeProducer]:
    """Creates producers of a fake cluster with short backoffs; checks that none leaves a thread."""
    made: list[Producer] = []

    def make(cluster: FakeCluster, **options: Any) -> Producer:
        made.append(Producer(cluster.bootstrap, **{**FAST, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close(timeout_s=1)
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("-sender")]
