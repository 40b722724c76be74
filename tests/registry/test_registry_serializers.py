"""Framing, the client's retries and caches, serializers: against a registry that is a function."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.client import SchemaConflictError, SchemaRegistryClient
from headrace.registry.errors import RegistryError, RegistryUnavailableError
from headrace.registry.framing import FramingError, prefix, split
from headrace.registry.schemas import parse
from headrace.registry.serializers import (
    AvroDeserializer,
    AvroSerializer,
    DeserializationError,
    SerializationError,
    record_name_subject,
)

V1 = {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]}
V2 = {
    "type": "record",
    "name": "a.R",
    "fields": [*V1["fields"], {"name": "y", "type": "string", "default": "?"}],
}


class FakeRegistry:
    """Registers anything; keeps the requests it saw."""

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {}
        self.requests: list[tuple[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.method, request.url.raw_path.decode()))
        if request.method == "POST":
            text = json.loads(request.content)["schema"]
            self.schemas[parse(text).schema_id] = text
            return httpx.Response(200, json={"id": parse(text).schema_id})
        text = self.schemas.get(int(request.url.path.rsplit("/", 1)[1]), "")
        if not text:
            return httpx.Response(404, json={"error_code": 40403, "message": "Schema not found"})
        return httpx.Response(200, json={"schema": text})


def client_of(
    *hosts: Callable[[httpx.Request], httpx.Response], pauses: list[float] | None = None
) -> SchemaRegistryClient:
    def route(request: httpx.Request) -> httpx.Response:
        return hosts[int(request.url.host.removeprefix("r"))](request)

    sleep = (lambda _: None) if pauses is None else pauses.append
    urls = [f"http://r{i}:8081/" for i in range(len(hosts))]
    return SchemaRegistryClient(urls, transport=httpx.MockTransport(route), sleep=sleep)


def registry_of(schema: str) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(200, json={"schema": schema})


def down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("Connection refused", request=request)


def failing(request: httpx.Request) -> httpx.Response:
    return httpx.Response(500, json={"error_code": 50001, "message": "Error in the backend data store"})


@given(st.integers(0, 2**31 - 1), st.binary(max_size=30))
def test_framing_round_trip(schema_id: int, payload: bytes) -> None:
    assert split(prefix(schema_id) + payload) == (schema_id, payload)


def test_framing_golden_and_garbage() -> None:
    assert prefix(258) + b"\x02a" == bytes.fromhex("00000001020261")
    with pytest.raises(FramingError, match="at least 5 bytes, this one 3"):
        split(b"\0ab")
    with pytest.raises(FramingError, match="begins with byte 0, this one with 123"):
        split(b'{"json": 1}')


def test_a_round_trip_requests_each_schema_once() -> None:
    registry = FakeRegistry()
    client = client_of(registry)
    serializer, deserializer = AvroSerializer(client, V1), AvroDeserializer(client_of(registry))
    for x in range(5):
        assert deserializer.deserialize(serializer.serialize("t", {"x": x})) == {"x": x}
    assert [method for method, _ in registry.requests] == ["POST", "GET"]
    assert registry.requests[0][1] == "/subjects/t-value/versions"
    assert deserializer.read(serializer.serialize("t", {"x": 1})) == ("a.R", {"x": 1})


def test_a_reader_schema_resolves_older_and_newer_writers() -> None:
    client = client_of(FakeRegistry())
    old, new = AvroSerializer(client, json.dumps(V1)), AvroSerializer(client, V2)
    reader = AvroDeserializer(client, reader_schema=json.dumps(V2))
    assert reader.deserialize(old.serialize("t", {"x": 1})) == {"x": 1, "y": "?"}
    assert AvroDeserializer(client, reader_schema=V1).deserialize(new.serialize("t", {"x": 1, "y": "b"})) == {
        "x": 1
    }


def test_subject_by_record_name() -> None:
    registry = FakeRegistry()
    AvroSerializer(client_of(registry), V1, strategy=record_name_subject).serialize("_audit", {"x": 1})
    assert registry.requests == [("POST", "/subjects/a.R/versions")]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"x": "one"}, r"field a\.R\.x is 'one' \(expected int\)"),
        ({"x": 2**40}, r"field a\.R\.x is 1099511627776 \(expected int of 32 bits\)"),
        ({}, r"field a\.R\.x is missing \(expected int\)"),
        ({"x": 1, "z": 2}, "z"),
        ({"x": 1, "y": 5}, r"field a\.R\.y is 5 \(expected string\)"),
        ({"x": "v" * 500}, r"is 'vvv.*…"),
        ("no record", r"the record is 'no record' \(expected a\.R\)"),
    ],
)
def test_a_record_that_does_not_fit_is_explained(record: Any, problem: str) -> None:
    serializer = AvroSerializer(client_of(down), V2)
    with pytest.raises(SerializationError, match=problem):
        serializer.encode(record)


MOMENT = {"type": "long", "logicalType": "timestamp-millis"}


def test_defaults_may_be_left_out_and_datetimes_given() -> None:
    time = {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}}
    serializer = AvroSerializer(client_of(FakeRegistry()), {"type": "record", "name": "T", "fields": [time]})
    at = datetime(2011, 6, 12, 1, 2, 3, 456_000, UTC)
    assert serializer.encode({"t": at}) == serializer.encode({"t": 1_307_840_523_456})
    assert AvroSerializer(client_of(down), V2).encode({"x": 1}) == b"\x02\x02?"


def test_a_payload_that_does_not_fit_its_schema() -> None:
    client = client_of(FakeRegistry())
    schema_id = client.register("t-value", V2)
    for payload in (b"", b"\x02\xff\xff\xff\xff", b"\x02\x02?left over"):
        with pytest.raises(DeserializationError, match=str(schema_id)):
            AvroDeserializer(client).deserialize(prefix(schema_id) + payload)
    with pytest.raises(RegistryError, match="40403"):
        AvroDeserializer(client).deserialize(prefix(5))


def test_a_writers_default_that_does_not_fit_is_not_needed() -> None:
    """Old registries took any default; no value of such a schema could be read."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": "int", "default": "0"}, {"name": "s", "type": "string"}],
    }
    for reader in (None, V1):
        if reader is not None:
            reader = {**V1, "name": "R"}
        deserializer = AvroDeserializer(client_of(registry_of(json.dumps(schema))), reader_schema=reader)
        found = deserializer.deserialize(prefix(7) + b"\x02\x02a")
        assert found == {"x": 1} | ({"s": "a"} if reader is None else {})


@pytest.mark.parametrize("more", [{}, {"precision": 0}, {"precision": 2, "size": 2, "type": "fixed"}])
@pytest.mark.parametrize("is_resolved", [False, True])
def test_a_decimal_without_valid_precision_is_bytes(more: dict[str, Any], is_resolved: bool) -> None:
    """Avro ignores a logical type that is invalid, as Java does. No value of such a schema could be read."""
    kind = {"type": "bytes", "logicalType": "decimal", "name": "F"} | more
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    reader = {**schema, "aliases": ["Q"]} if is_resolved else None
    deserializer = AvroDeserializer(client_of(registry_of(json.dumps(schema))), reader_schema=reader)
    is_valid = "size" in more
    payload = b"\0\5" if is_valid else b"\4\0\5"
    assert deserializer.deserialize(prefix(7) + payload) == {"x": 5 if is_valid else b"\0\5"}


@pytest.mark.parametrize("schema", ['{"type": "nonsense"}', "no JSON", '{"type": "record"}', "[" * 5_000])
def test_a_schema_that_is_none_is_named_by_its_id(schema: str) -> None:
    """`headrace consume` ended with a traceback."""
    deserializer = AvroDeserializer(client_of(registry_of(schema)))
    with pytest.raises(DeserializationError, match=r"schema \(id 7\) cannot be read: "):
        deserializer.deserialize(prefix(7) + b"\x02")


@pytest.mark.parametrize("tail", [[], [{"name": "next", "type": ["null", "R"]}]])
def test_as_json_a_record_of_a_union_means_what_its_own_type_says(tail: list[Any]) -> None:
    """Of two types with the same fields the first one decided: microseconds were shown as milliseconds."""
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    started, ended = (
        {"type": "record", "name": name, "fields": [{"name": "at", "type": kind}]}
        for name, kind in (("Started", MOMENT), ("a.Ended", micros))
    )
    union = ["null", {"type": "map", "values": MOMENT}, started, ended]
    fields = [{"name": "e", "type": union}, {"name": "f", "type": ["null", "a.Ended"]}, *tail]
    schema = {"type": "record", "name": "R", "fields": fields}
    at = datetime(2011, 6, 12, 1, 2, 3, 456_789, UTC)
    client = client_of(FakeRegistry())
    event = {"e": ("a.Ended", {"at": at}), "f": {"at": at}} | ({"next": None} if tail else {})
    shown = AvroDeserializer(client).as_json(AvroSerializer(client, schema).serialize("t", event))
    assert (shown["e"], shown["f"]) == ({"at": 1_307_840_523_456_789}, {"at": 1_307_840_523_456_789})
    event["e"] = {"k": at}
    shown = AvroDeserializer(client).as_json(AvroSerializer(client, schema).serialize("t", event))
    assert shown["e"] == {"k": 1_307_840_523_456}


def test_the_next_registry_is_tried_and_then_stays_first() -> None:
    registry = FakeRegistry()
    client = client_of(down, failing, registry)
    client.register("s", V1)
    assert client.urls[0] == "http://r2:8081"
    client.register("s2", V1)
    assert len(registry.requests) == 2


def test_when_no_registry_responds_all_are_named_after_bounded_rounds() -> None:
    pauses: list[float] = []
    client = client_of(down, failing, pauses=pauses)
    with pytest.raises(
        RegistryUnavailableError, match=r"r0:8081: Connection refused; http://r1:8081: Error in the backend"
    ):
        client.register("s", V1)
    assert pauses == [0.2, 0.4]


def test_a_refusal_is_not_retried() -> None:
    seen: list[str] = []

    def refusing(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.host)
        return httpx.Response(409, json={"error_code": 409, "message": "incompatible"})

    with pytest.raises(RegistryError, match=r"incompatible \(error 409\)"):
        client_of(refusing, refusing).register("s", V1)
    assert seen == ["r0"]


def test_an_unknown_id_is_looked_up_at_all_registries() -> None:
    east, west = FakeRegistry(), FakeRegistry()
    schema_id = client_of(west).register("s", V1)
    assert client_of(east, west).get_by_id(schema_id) == json.dumps(V1)
    with pytest.raises(RegistryError, match="40403"):
        client_of(east, west).get_by_id(17)
    # A registry that does not respond may know the id: it is unknown only after retries.
    pauses: list[float] = []
    with pytest.raises(RegistryError, match="40403"):
        client_of(east, down, pauses=pauses).get_by_id(schema_id)
    assert len(pauses) == 2


def test_responses_that_are_not_a_registrys() -> None:
    client = client_of(lambda _: httpx.Response(200, text="<html>"))
    with pytest.raises(RegistryError, match="unexpected response from http://r0:8081/subjects: '<html>'"):
        client.subjects()
    with pytest.raises(ValueError, match="at least one URL"):
        SchemaRegistryClient(" , ")


# --- two schemas of one id ---

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "x", "type": "long"}]}
CLICK = {"type": "record", "name": "Click", "fields": [{"name": "y", "type": "long"}]}


def answering(schema: Any, requests: list[str] | None = None) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        if requests is not None:
            requests.append(request.url.path)
        return httpx.Response(200, json={"schema": json.dumps(schema)})

    return answer


def test_two_schemas_for_one_id_name_both_datacenters() -> None:
    hosts = [answering(ORDER), answering(CLICK)]

    def route(request: httpx.Request) -> httpx.Response:
        return hosts[int(request.url.host.removeprefix("r"))](request)

    client = SchemaRegistryClient(
        "east=http://r0:8081, west=http://r1:8081/", transport=httpx.MockTransport(route)
    )
    assert client.urls == ["http://r0:8081", "http://r1:8081"]
    with pytest.raises(
        SchemaConflictError,
        match=r"id 7 is Order at east \(http://r0:8081\) and Click at west \(http://r1:8081\)",
    ) as caught:
        AvroDeserializer(client).deserialize(prefix(7) + b"\2")
    assert not caught.value.retriable and "its own registry" in str(caught.value)


def test_all_others_are_compared_when_another_thread_prefers_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is down for a moment, and answers another thread just when the second one answered."""
    failures = [down]

    def restarted(request: httpx.Request) -> httpx.Response:
        return failures.pop()(request) if failures else answering(CLICK)(request)

    client = client_of(restarted, answering(ORDER))
    prefer = client._prefer

    def preferred_by_two(url: str) -> None:
        prefer(url)
        prefer("http://r0:8081")

    monkeypatch.setattr(client, "_prefer", preferred_by_two)
    with pytest.raises(SchemaConflictError, match=r"Order at http://r1:8081 and Click at http://r0:8081"):
        client.get_by_id(7)


@pytest.mark.parametrize("answer", [{}, [], {"schema": None}])
def test_an_answer_without_a_schema_is_named(answer: Any) -> None:
    client = client_of(lambda _: httpx.Response(200, json=answer))
    with pytest.raises(RegistryError, match=r"unexpected response from http://r0:8081: no schema in"):
        client.get_by_id(7)


def test_one_schema_in_two_spellings_is_no_conflict() -> None:
    spelled = {
        **ORDER,
        "aliases": [],
        "fields": [{"type": {"type": "long"}, "name": "x", "order": "ascending"}],
    }
    requests: list[str] = []
    client = client_of(answering(ORDER), answering(spelled, requests), down)
    for _ in range(3):
        assert json.loads(client.get_by_id(7)) == ORDER
    assert requests == ["/schemas/ids/7"], "asked once"


def test_a_registry_that_does_not_answer_is_not_asked_for_each_id() -> None:
    asked: list[str] = []

    def dead(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return down(request)

    client = client_of(answering(ORDER), dead)
    for schema_id in range(1, 6):
        client.get_by_id(schema_id)
    assert asked == ["/schemas/ids/1"]


def test_what_a_client_registered_itself_needs_no_confirmation() -> None:
    """An auditor registers its schemas first: nobody's schema of the same id stops it."""
    registry = FakeRegistry()
    client = client_of(registry, answering(CLICK))
    value = AvroSerializer(client, V1).serialize("t", {"x": 5})
    assert AvroDeserializer(client).deserialize(value) == {"x": 5}


def test_the_client_loads_no_avro_library() -> None:
    """Terraform's provider uses it in an environment that has none."""
    program = (
        "import sys, headrace.registry.client; sys.exit(bool({'avro', 'fastavro'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
