"""A real broker, frame by frame: its responses to valid and to invalid requests."""

import datetime
import random
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName, TransactionalId
from kio.static.primitive import i8, i32, i32Timedelta

from fix_broker import BrokerCluster, RawClient, StartCluster, batches_of
from headrace.wire.batch import hop, read_header, seal
from headrace.wire.compression import Codec, compress
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_response
from headrace.wire.records import Record, decode_records, encode_batch

FIVE_S = i32Timedelta.parse(datetime.timedelta(seconds=5))


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(client: RawClient) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(name)
    return name


def batch(value: bytes = b"v", count: int = 1, at_ms: int = 1_000, **fields: int) -> bytes:
    return encode_batch([Record(i, at_ms + i, None, value) for i in range(count)], **fields)  # type: ignore[arg-type]


# --- produce and fetch ---


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_in_every_version(client: RawClient, topic: str, version: int, acks: int) -> None:
    end = 0
    for number in range(3):  # the first leaves a template, the others take the fast path
        raw = batch(b"%d" % number)
        result = client.produce(topic, 0, raw, acks=acks, version=version)
        end += len(raw)
        assert (result.error_code, result.base_offset, result.log_append_time_ms) == (0, end - 1, -1)
    wait_visible(client, topic, end)


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_in_every_version(client: RawClient, topic: str, version: int) -> None:
    raw = batch(b"hello", 3)
    client.produce(topic, 0, raw)
    result = client.fetch(topic, 0, 0, version=version)
    assert result.error_code == 0
    assert [record.value for record in decode_records(batches_of(result))] == [b"hello"] * 3
    assert result.high_watermark == result.last_stable_offset == len(raw)


def wait_visible(client: RawClient, topic: str, end: int) -> None:
    deadline = time.monotonic() + 60
    while client.list_offset(topic, 0, -1)[0] < end:
        assert time.monotonic() < deadline


def test_acks_0_gets_no_response_and_is_stored(client: RawClient, topic: str) -> None:
    raw = batch()
    client.send(client.produce_frame(topic, 0, raw, acks=0) * 3)
    wait_visible(client, topic, 3 * len(raw))
    assert len(client.read_all(topic, 0)) == 3 * len(raw)


def test_the_first_batch_is_whole_however_small_the_limit(client: RawClient, topic: str) -> None:
    big, small = batch(bytes(100_000)), batch()
    for raw in (big, small, small, small):
        client.produce(topic, 0, raw)
    got = client.fetch(topic, 0, 0, max_bytes=1)
    assert len(batches_of(got)) == len(big)
    got = client.fetch(topic, 0, len(big), max_bytes=2 * len(small) + 1)
    assert len(batches_of(got)) == 2 * len(small)


def test_positions_inside_a_batch(client: RawClient, topic: str) -> None:
    raw = batch(b"value", 10)
    for _ in range(2):
        client.produce(topic, 0, raw)
    size = len(raw)
    for offset, expected in (
        (0, 0),
        (9, 0),
        (size - 10, 0),
        (size - 1, 0),
        (size, size),
        (2 * size - 1, size),
    ):
        records = batches_of(client.fetch(topic, 0, offset))
        assert read_header(records).address == expected
    result = client.fetch(topic, 0, 2 * size)
    assert not result.records and result.high_watermark == 2 * size


def test_offsets_out_of_range(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch())
    for offset in (-1, 10_000):
        assert client.fetch(topic, 0, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_long_poll_ends_when_enough_is_there(
    one_broker: BrokerCluster, client: RawClient, topic: str
) -> None:
    raw = batch(bytes(500))
    with RawClient(one_broker.bootstrap) as producer:

        def later() -> None:
            for _ in range(2):
                time.sleep(0.25)
                producer.produce(topic, 0, raw)

        thread = threading.Thread(target=later)
        thread.start()
        began = time.monotonic()
        result = client.fetch(topic, 0, 0, max_wait_ms=10_000, min_bytes=len(raw) + 1)
        took = time.monotonic() - began
        thread.join()
    assert len(batches_of(result)) == 2 * len(raw)
    assert 0.4 < took < 9.5
    began = time.monotonic()
    assert not client.fetch(topic, 0, 2 * len(raw), max_wait_ms=300).records
    assert 0.25 < time.monotonic() - began < 15


def test_responses_keep_the_order_of_pipelined_requests(client: RawClient, topic: str) -> None:
    raw = batch()
    ids = []
    for number in range(200):
        client.send(client.produce_frame(topic, 0, raw, acks=(1, -1)[number % 2]))
        ids.append(client._correlation_id)
    got = [int.from_bytes(client.receive()[:4], "big") for _ in ids]
    assert got == ids


# --- refusals ---


def test_bad_batches_are_refused_and_change_nothing(client: RawClient, topic: str) -> None:
    good = batch()
    client.produce(topic, 0, good)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    two = good + good
    transactional = seal(b"r", record_count=1, base_timestamp_ms=1, max_timestamp_ms=1, attributes=0x10)
    for raw, code in (
        (bytes(flipped), ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.INVALID_RECORD),
        (two, ErrorCode.INVALID_RECORD),
        (bytes(1_048_589 - 61 + 10), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch(bytes(1_048_600)), ErrorCode.MESSAGE_TOO_LARGE),
        (transactional, ErrorCode.INVALID_TXN_STATE),
    ):
        result = client.produce(topic, 0, raw)
        assert (result.error_code, result.base_offset) == (code, -1)
    assert client.produce("no-such-topic", 0, good).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce(topic, 7, good).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce(topic, 0, good, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.produce(topic, 0, good).base_offset == 2 * len(good) - 1


def test_transactions_are_refused(client: RawClient) -> None:
    request = InitProducerIdRequest(transactional_id=TransactionalId("tx"), transaction_timeout=FIVE_S)
    assert client.call(request).error_code.name == "transactional_id_authorization_failed"


def test_unknown_versions_of_api_versions_are_answered_in_version_0(client: RawClient) -> None:
    client.send(
        (14).to_bytes(4, "big") + b"\x00\x12\x00\x63" + b"\x00\x00\x00\x07" + b"\x00\x01x\x00\x00\x00"
    )
    correlation_id, body = decode_response(client.receive(), api_key=18, version=0)
    assert correlation_id == 7 and body.error_code.name == "unsupported_version"
    assert {0, 1, 3, 18} <= {each.api_key for each in body.api_keys}
    # The connection stays usable.
    assert (
        client.call(ApiVersionsRequest(client_software_name="x", client_software_version="1")).error_code == 0
    )


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(b"\x00\x00\x00\x04\x00\x03\x00\x00", id="short frame"),
        pytest.param(b"\x7f\xff\xff\xff\x00\x00", id="oversize frame"),
        pytest.param(b"\xff\xff\xff\xff", id="negative length"),
        pytest.param(b"\x00\x00\x00\x0a\x03\xe7\x00\x00\x00\x00\x00\x01\xff\xff", id="unknown API"),
        pytest.param(b"\x00\x00\x00\x0a\x00\x03\x03\xe7\x00\x00\x00\x01\xff\xff", id="unknown version"),
        pytest.param(
            b"\x00\x00\x00\x0e\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\x00\xff\xff\xff", id="cut Produce"
        ),
        pytest.param(b"\x00\x00\x00\x0c\x00\x01\x00\x0c\x00\x00\x00\x01\xff\xff\x00\x01", id="cut Fetch"),
        pytest.param(
            b"\x00\x00\x00\x0e\x00\x13\x00\x07\x00\x00\x00\x01\xff\xff\x00\x7f\x01\x01", id="cut CreateTopics"
        ),
    ],
)
def test_nonsense_ends_its_own_connection_with_a_log_line(
    one_broker: BrokerCluster, client: RawClient, topic: str, noise: bytes
) -> None:
    with RawClient(one_broker.bootstrap) as noisy:
        name = ":".join(map(str, noisy.socket.getsockname()))
        noisy.send(noise)
        with pytest.raises(EOFError):
            noisy.receive()
    assert f"{name}: connection closed: " in one_broker[1].output()
    assert client.produce(topic, 0, batch()).error_code == 0


def test_random_bytes_never_disturb_others(one_broker: BrokerCluster, client: RawClient, topic: str) -> None:
    dice = random.Random(20110)
    good = client.produce_frame(topic, 0, batch())
    raw = batch()
    for number in range(60):
        with RawClient(one_broker.bootstrap) as noisy:
            if number % 2:
                noise = bytearray(good)
                for _ in range(dice.randint(1, 5)):
                    noise[dice.randrange(4, len(noise))] = dice.randrange(256)
            else:
                body = dice.randbytes(dice.randint(8, 60))
                noise = bytearray(len(body).to_bytes(4, "big") + body)
                noise[4:8] = bytes(
                    (0, dice.choice((0, 1, 2, 3, 8, 9, 11, 18, 19, 22)), 0, dice.randrange(14))
                )
            noisy.send(bytes(noise))
        assert client.produce(topic, 0, raw).error_code == 0
    assert "Traceback" not in one_broker[1].output()
    assert one_broker[1].is_running


def test_connections_and_frames_are_bounded(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(config={"max.connections": "3", "socket.request.max.bytes": "2000"})
    clients = [RawClient(cluster.bootstrap) for _ in range(3)]
    clients[0].create_topic("t")
    with RawClient(cluster.bootstrap) as fourth, pytest.raises((EOFError, ConnectionError)):
        fourth.call(ApiVersionsRequest(client_software_name="x", client_software_version="1"))
    with pytest.raises((EOFError, ConnectionError)):
        clients[1].produce("t", 0, batch(bytes(3_000)))
    assert clients[2].produce("t", 0, batch()).error_code == 0
    for each in clients:
        each.close()


# --- idempotence ---


def test_duplicates_get_the_first_address_also_after_a_kill(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    sizes = []

    def numbered(sequence: int, epoch: int = 0) -> bytes:
        return batch(b"%05d" % sequence, producer_id=77, producer_epoch=epoch, base_sequence=sequence)

    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        for sequence in range(7):
            result = client.produce("t", 0, numbered(sequence))
            assert result.error_code == 0
            sizes.append(result.base_offset)
    for kill in (False, True):
        if kill:
            cluster[1].kill()
            cluster[1].start()
        with RawClient(cluster.bootstrap) as client:
            for sequence in (6, 5, 2):
                for version in (9, 9):  # by `produce.job`, then by the fast path
                    result = client.produce("t", 0, numbered(sequence), version=version)
                    assert (result.error_code, result.base_offset) == (0, sizes[sequence])
            for sequence in (1, 8):
                result = client.produce("t", 0, numbered(sequence))
                assert result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                assert result.error_message is not None and "expected 7" in result.error_message
            assert (
                client.produce("t", 0, numbered(3, epoch=1)).error_code
                == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            )
            assert len([1 for _ in hop(client.read_all("t", 0))]) == 7
    with RawClient(cluster.bootstrap) as client:
        assert client.produce("t", 0, numbered(0, epoch=1)).error_code == 0
        assert client.produce("t", 0, numbered(7, epoch=0)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_producer_ids_are_unique(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(count=2)
    seen = set()
    for broker in cluster.brokers:
        with RawClient(broker.address) as client:
            for _ in range(20):
                answer = client.call(InitProducerIdRequest(transactional_id=None, transaction_timeout=FIVE_S))
                assert answer.error_code.name == "none" and answer.producer_epoch == 0
                seen.add(answer.producer_id)
    assert len(seen) == 40


# --- offsets by time ---


def test_list_offsets(client: RawClient, topic: str) -> None:
    assert client.list_offset(topic, 0, -1) == (0, -1)
    assert client.list_offset(topic, 0, -2) == (0, -1)
    assert client.list_offset(topic, 0, 0) == (-1, -1)
    first = client.produce(topic, 0, batch(count=5, at_ms=1_000))
    second = client.produce(topic, 0, batch(count=5, at_ms=2_000))
    assert client.list_offset(topic, 0, 1_003) == (first.base_offset + 3, 1_003)
    assert client.list_offset(topic, 0, 1_500) == (second.base_offset, 2_000)
    assert client.list_offset(topic, 0, -3) == (second.base_offset + 4, 2_004)
    assert client.list_offset(topic, 0, 9_999) == (-1, -1)
    assert client.list_offset(topic, 0, -1)[0] == len(client.read_all(topic, 0))


def test_log_append_time(client: RawClient) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(name, config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    result = client.produce(name, 0, batch(count=2, at_ms=5))
    assert before <= result.log_append_time_ms <= before + 5_000
    (first, _) = decode_records(client.read_all(name, 0))
    assert before <= first.timestamp_ms <= before + 5_000


def test_more_records_than_bytes(client: RawClient, topic: str) -> None:
    plain = encode_batch([Record(i, 1_000, None, b"") for i in range(10_000)])
    header = read_header(plain)
    squeezed = seal(
        compress(Codec.ZSTD, plain[61:]),
        attributes=int(Codec.ZSTD),
        record_count=header.record_count,
        base_timestamp_ms=1_000,
        max_timestamp_ms=1_000,
    )
    assert len(squeezed) < 10_000
    assert client.produce(topic, 0, squeezed).error_code == 0
    data = client.read_all(topic, 0)
    assert read_header(data).codec is Codec.NONE
    assert [record.offset for record in decode_records(data)] == list(range(len(data) - 10_000, len(data)))


# --- mirror partitions ---


def test_a_mirror_partition_accepts_only_batches_at_its_end_address(client: RawClient, topic: str) -> None:
    for number in range(4):
        client.produce(topic, 0, batch(b"%d" % number * 50))
    data = client.read_all(topic, 0)
    first = read_header(data).size_bytes
    mirror = f"m-{uuid.uuid4().hex[:8]}"
    client.create_topic(mirror, config={"headrace.mirror": "true"})
    assert client.produce(mirror, 0, batch()).error_code == ErrorCode.POLICY_VIOLATION
    result = client.produce(mirror, 0, data[first : 2 * first])
    assert (result.error_code, result.base_offset) == (0, 2 * first - 1), (
        "an empty one takes the first address it is given"
    )
    for wrong in (data[first : 2 * first], data[:first], data[3 * first :]):
        result = client.produce(mirror, 0, wrong)
        assert result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert result.error_message is not None and f"ends at {2 * first}" in result.error_message
    assert client.produce(mirror, 0, batch()).error_code == ErrorCode.POLICY_VIOLATION
    assert client.produce(mirror, 0, data[2 * first :]).error_code == 0, "several batches at once"
    assert client.list_offset(mirror, 0, -2)[0] == first
    got = client.fetch(mirror, 0, first)
    assert got.records == data[first:]


# --- topics ---


def test_topics_come_and_go(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(count=2, config={"auto.create.topics.enable": "false"})

    def metadata(client: RawClient, *names: str, create: bool = True) -> dict[str, tuple[str, int]]:
        topics = tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names)
        request = MetadataRequest(
            topics=topics, allow_auto_topic_creation=create, include_topic_authorized_operations=False
        )
        answer = client.call(request)
        return {each.name: (each.error_code.name, len(each.partitions)) for each in answer.topics}

    with RawClient(cluster[1].address) as client, RawClient(cluster[2].address) as other:
        both = {1: client, 2: other}
        assert metadata(client, "t") == {"t": ("unknown_topic_or_partition", 0)}
        assert metadata(client, "no/such") == {"no/such": ("invalid_topic_exception", 0)}
        result = client.create_topic("t", partitions=3)
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert metadata(client, "t") == {"t": ("none", 3)}
        with pytest.raises(AssertionError, match="topic_already_exists"):
            client.create_topic("t")
        for partition in range(3):
            produced = [both[number].produce("t", partition, batch()).error_code for number in (1, 2)]
            assert sorted(produced) == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER], "led by one broker alone"
        grow = CreatePartitionsTopic(name=TopicName("t"), count=i32(5), assignments=None)
        answer = client.call(CreatePartitionsRequest(topics=(grow,), timeout=FIVE_S, validate_only=False))
        assert answer.results[0].error_code.name == "none", answer.results[0].error_message
        assert metadata(client, "t") == {"t": ("none", 5)}
        answer = client.call(
            DeleteTopicsRequest(topic_names=(TopicName("t"), TopicName("u")), timeout=FIVE_S)
        )
        assert [each.error_code.name for each in answer.responses] == ["none", "unknown_topic_or_partition"]
        assert metadata(client, "t") == {"t": ("unknown_topic_or_partition", 0)}
        wait_until(lambda: not [p for b in cluster.brokers for p in b.data_dir.glob("t-*")])
        client.create_topic("t")
        (leader,) = [n for n in (1, 2) if both[n].produce("t", 0, batch()).error_code == 0]
        assert both[leader].list_offset("t", 0, -2)[0] == 0, "a new topic of the same name is empty"


def wait_until(reached: object, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.02)


def test_metadata_requests_create_topics_if_configured(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(count=2, config={"num.partitions": "3", "auto.create.topics.enable": "true"})
    with RawClient(cluster.bootstrap.partition(",")[0]) as client:
        request = MetadataRequest(
            topics=(MetadataRequestTopic(topic_id=None, name=TopicName("wanted")),),
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
        (found,) = client.call(request).topics
        assert (found.error_code.name, len(found.partitions)) == ("none", 3)
        assert {each.leader_id for each in found.partitions} == {1, 2}


def test_settings_are_described_and_changed(client: RawClient, topic: str) -> None:
    def described() -> dict[str, tuple[str, int]]:
        resource = DescribeConfigsResource(resource_type=i8(2), resource_name=topic, configuration_keys=None)
        (result,) = client.call(DescribeConfigsRequest(resources=(resource,))).results
        return {each.name: (each.value, each.config_source) for each in result.configs}

    def change(operation: int, name: str, value: str | None) -> str:
        resource = AlterConfigsResource(
            resource_type=i8(2),
            resource_name=topic,
            configs=(AlterableConfig(name=name, config_operation=i8(operation), value=value),),
        )
        (result,) = client.call(
            IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        ).responses
        name_of_code: str = result.error_code.name
        return name_of_code

    assert described()["retention.ms"] == ("604800000", 5)
    assert change(0, "max.message.bytes", "100") == "none"
    wait_until(lambda: described()["max.message.bytes"] == ("100", 1))
    assert client.produce(topic, 0, batch(bytes(200))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert change(0, "max.message.bytes", "many") == "invalid_config"
    assert change(1, "max.message.bytes", None) == "none"
    wait_until(lambda: described()["max.message.bytes"][1] == 5)
    assert client.produce(topic, 0, batch(bytes(200))).error_code == 0


def test_the_cluster_is_described(client: RawClient, one_broker: BrokerCluster) -> None:
    answer = client.call(DescribeClusterRequest(include_cluster_authorized_operations=False))
    assert answer.cluster_id == "headrace-test"
    assert [(each.broker_id, each.port, each.rack) for each in answer.brokers] == [
        (1, one_broker[1].port, "test")
    ]
