"""What real clients once sent, and the responses to it, are read by today's code.

frames.json was made by record_frames.py. Requests and responses of control APIs are also encoded again, to
the same bytes. Batches of every client and codec give the records that were produced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from kio.static.protocol import RequestPayload, ResponsePayload

from fix_samples import CODECS, make_samples
from headrace.wire import fetch, produce
from headrace.wire.apis import ApiKey
from headrace.wire.batch import hop, read_header, verify
from headrace.wire.messages import decode_request, decode_response, encode_request, encode_response
from headrace.wire.primitives import Buffer
from headrace.wire.records import decode_records

SAMPLES = make_samples(3)


class Exchange(NamedTuple):
    """One request and its response, both without their length."""

    client: str
    api: str
    version: int
    request: str
    response: str
    codec: str | None = None
    numbering: int = 1
    """Of fetched batches: 1 until November 2026, with baseOffset = address; 2 from the end."""

    def __str__(self) -> str:
        words = (self.client.split()[0], self.api, str(self.version), self.codec)
        return "-".join(filter(None, (*words, "from-the-end" if self.numbering == 2 else None)))

    @property
    def request_frame(self) -> memoryview:
        return memoryview(bytes.fromhex(self.request))

    @property
    def response_frame(self) -> memoryview:
        return memoryview(bytes.fromhex(self.response))


EXCHANGES = [Exchange(**each) for each in json.loads(Path(__file__).with_name("frames.json").read_text())]
CONTROL = [each for each in EXCHANGES if each.api not in ("PRODUCE", "FETCH")]
PRODUCED = [each for each in EXCHANGES if each.api == "PRODUCE"]
FETCHED = [each for each in EXCHANGES if each.api == "FETCH"]


def check_records(batch: Buffer) -> None:
    """They are the first of the samples: a client may send what it was given in more than one batch."""
    header = read_header(batch)
    verify(batch, 0, header)
    expected = [(each.key, each.value) for each in SAMPLES[: header.record_count]]
    assert expected
    assert [(each.key, each.value) for each in decode_records(batch)] == expected


def test_each_client_and_codec_is_there() -> None:
    clients = {each.client.split()[0] for each in EXCHANGES}
    assert clients == {"librdkafka", "kafka-python", "Java"}
    for client in clients:
        assert {each.codec for each in PRODUCED if each.client.startswith(client)} == set(CODECS)
        assert any(each.client.startswith(client) for each in FETCHED)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_requests_are_read(exchange: Exchange) -> None:
    request = decode_request(exchange.request_frame)
    assert (ApiKey(request.api_key).name, request.version) == (exchange.api, exchange.version)


@pytest.mark.parametrize("exchange", CONTROL, ids=str)
def test_control_messages_are_written_to_the_same_bytes(exchange: Exchange) -> None:
    request = decode_request(exchange.request_frame)
    body = cast(RequestPayload, request.body)
    written = encode_request(body, correlation_id=request.correlation_id, client_id=request.client_id)
    assert written[4:].hex() == exchange.request
    correlation_id, answered = decode_response(
        exchange.response_frame, api_key=request.api_key, version=request.version
    )
    assert correlation_id == request.correlation_id
    written = encode_response(cast(ResponsePayload, answered), correlation_id=correlation_id)
    assert written[4:].hex() == exchange.response


@pytest.mark.parametrize("exchange", PRODUCED, ids=str)
def test_produced_batches_hold_their_records(exchange: Exchange) -> None:
    request: produce.ProduceRequest = decode_request(exchange.request_frame).body
    [topic] = request.topics
    [partition] = topic.partitions
    assert partition.records is not None
    assert exchange.codec == CODECS[read_header(partition.records).codec]
    check_records(partition.records)
    _, response = produce.decode_response(exchange.response_frame, version=exchange.version)
    assert [[each.error_code for each in topic.partitions] for topic in response.topics] == [[0]]


@pytest.mark.parametrize("exchange", FETCHED, ids=str)
def test_fetched_batches_hold_their_records(exchange: Exchange) -> None:
    _, response = fetch.decode_response(exchange.response_frame, version=exchange.version)
    [topic] = response.topics
    [partition] = topic.partitions
    assert isinstance(partition.records, memoryview)
    [(at, header)] = hop(partition.records)
    check_records(partition.records[at : at + header.size_bytes])
    assert header.is_stored_at(header.address) is (exchange.numbering == 2)
