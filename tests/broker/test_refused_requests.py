"""What a real broker refuses: bad batches, nonsense, more than its bounds; nobody else notices."""

import random

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.types import TransactionalId

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_one_broker import FIVE_S, batch
from headrace.wire import produce
from headrace.wire.batch import seal
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_response
from headrace.wire.primitives import NO_UUID


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


@pytest.mark.parametrize(
    ("transactional_id", "acks", "code"),
    [
        (None, 2, ErrorCode.INVALID_REQUIRED_ACKS),
        ("tx", -1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_a_request_that_is_refused_is_refused_again(
    client: RawClient, topic: str, transactional_id: str | None, acks: int, code: ErrorCode
) -> None:
    """The fast path of Produce knows the heads of requests that were served before."""
    part = produce.ProducePartition(0, batch())
    request = produce.ProduceRequest(
        transactional_id, acks, 30_000, [produce.ProduceTopic(topic, NO_UUID, [part])]
    )
    for _ in range(3):
        client.send(
            produce.encode_request(request, version=9, correlation_id=client.next_id(), client_id="raw")
        )
        assert client.read_produced().error_code == code
    assert client.list_offset(topic, 0, -1)[0] == 0


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
