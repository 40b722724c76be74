"""Whatever is sent to a schema registry is answered in a line, soon, and nobody else notices."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fix_registry import RegistryProcess, StartRegistry
from fix_zookeeper import ZooKeeperRoom
from headrace.registry.__main__ import CONNECTIONS_MAX
from headrace.registry.parameters import BODY_MAX_BYTES
from headrace.registry.schemas import parse

TIMEOUT_S = 60.0
V1 = {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]}


def colliding(kind: str, doc: str, field: str) -> str:
    return json.dumps(
        {"type": "record", "name": kind, "doc": doc, "fields": [{"name": field, "type": "long"}]}
    )


# Found in half a minute, by trying.
ORDER = colliding("Order", "16940", "amount")
CLICK = colliding("Click", "23983", "clicks")


def wide(fields: int, tail: list[dict[str, Any]]) -> str:
    """A schema whose comparison with itself takes minutes: each field is a union of a thousand records."""
    records = [{"type": "record", "name": f"r{i}", "fields": []} for i in range(1_000)]
    names = [record["name"] for record in records]
    repeated = [{"name": f"f{i}", "type": names} for i in range(fields)]
    return json.dumps(
        {"type": "record", "name": "W", "fields": [{"name": "a", "type": records}, *repeated, *tail]}
    )


@pytest.fixture
def http(registry_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=registry_url, trust_env=False, timeout=TIMEOUT_S) as client:
        yield client


def register(http: httpx.Client, subject: str, schema: str) -> httpx.Response:
    return http.post(f"/subjects/{subject}/versions", json={"schema": schema})


def refused(response: httpx.Response, status: int, code: int | None = None) -> str:
    body = response.json()
    assert (response.status_code, body["error_code"]) == (status, code or status), body
    message = str(body["message"])
    assert message and "\n" not in message and len(message) < 1_000
    return message


# --- two schemas of one id ---


def test_an_id_hit_compares_the_schema(http: httpx.Client) -> None:
    schema_id = parse(ORDER).schema_id
    assert parse(CLICK).schema_id == schema_id and not parse(CLICK).is_same_as(parse(ORDER))
    assert register(http, "orders", ORDER).json()["id"] == schema_id
    for subject in ("orders", "clicks"):
        message = refused(register(http, subject, CLICK), 409, 40950)
        assert str(schema_id) in message and "'orders'" in message and f"'{subject}'" in message
        assert "its doc" in message, "the way out"
    refused(http.post("/subjects/orders", json={"schema": CLICK}), 404, 40403)
    assert http.get("/subjects").json() == ["orders"]
    assert http.get(f"/schemas/ids/{schema_id}").json()["schema"] == json.dumps(
        json.loads(ORDER), separators=(",", ":")
    )
    changed = json.dumps({**json.loads(CLICK), "doc": "23983 "})
    assert register(http, "clicks", changed).status_code == 200, "the way out works"


def test_guids_tell_schemas_of_one_id_apart(http: httpx.Client) -> None:
    guid = register(http, "orders", ORDER).json()["guid"]
    assert guid == parse(ORDER).guid != parse(CLICK).guid
    found = http.get(f"/schemas/guids/{guid}").json()
    assert json.loads(found["schema"]) == json.loads(ORDER) and found["guid"] == guid
    assert http.get(f"/schemas/guids/{guid}/ids").json() == [{"context": ".", "id": parse(ORDER).schema_id}]
    assert http.get(f"/schemas/guids/{guid.upper()}").status_code == 200
    refused(http.get(f"/schemas/guids/{parse(CLICK).guid}"), 404, 40403)
    for wrong in ("5", "no-guid", "%00", "00000000-0000-0000-0000-000000000000"):
        refused(http.get(f"/schemas/guids/{wrong}"), 404, 40403)


# --- schemas that no Avro library reads alike ---


def nested(levels: int) -> dict[str, Any]:
    schema: Any = "int"
    for level in range(levels):
        fields = [{"name": "x", "type": schema}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return dict(schema)


def with_default(kind: Any, default: str) -> str:
    field = json.dumps({"name": "x", "type": kind})[:-1] + f', "default": {default}}}'
    return f'{{"type": "record", "name": "R", "fields": [{field}]}}'


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ('{"type":"error","name":"E","fields":[]}', 'use "record"'),
        ('{"type":"record","name":"R","doc":"\\ud800","fields":[]}', "surrogate"),
        (json.dumps(nested(150)), "nested too deeply"),
        ("[" * 50_000, "nested too deeply"),
        ('{"a":' * 50_000, "nested too deeply"),
        (with_default("double", "NaN"), "NaN is not a JSON number"),
        (with_default("double", "1e999"), "1e999"),
        (with_default("int", "2147483648"), "2147483648"),
        (with_default("long", "9223372036854775808"), "9223372036854775808"),
        (with_default("int", "9" * 5_000), "5000 digits"),
        (with_default("int", "true"), "True"),
        (with_default("bytes", '"Ā"'), "u0100"),
        (with_default({"type": "fixed", "name": "F", "size": 2}, '"abc"'), "abc"),
        (with_default({"type": "enum", "name": "E", "symbols": ["A"]}, '"B"'), "'B'"),
        (with_default({"type": "array", "items": "int"}, '["x"]'), "Default value"),
        ('{"type":"fixed","name":"F","size":true}', "size is True"),
        ('{"type":"fixed","name":"F","size":-1}', "size is -1"),
        ('{"type":"fixed","name":"F","size":1e9}', "size is 1000000000.0"),
        ('{"type":"fixed","name":"F","size":99999999999}', "size is 99999999999"),
        ('{"type":"record","type":"record","name":"R","fields":[]}', "'type' twice"),
        ('{"type":"record","name":5,"fields":[]}', "name is 5"),
        ('{"type":"record","name":"R","fields":{}}', "not a list"),
        ('{"type":"record","name":"R","fields":[5]}', "field 0 is 5"),
        ('{"type":"record","name":"R","aliases":"Q","fields":[]}', "aliases is 'Q'"),
        ('{"type":"record","name":"R","fields":[{"name":"x","type":"int","order":"up"}]}', "order is 'up'"),
        ('{"type":"enum","name":"E","symbols":[1]}', "symbols is"),
        ('["int",["long"]]', "is a union itself"),
        ("true", "not the name of a type"),
        (json.dumps({**V1, "doc": "ü" * 200_000}, ensure_ascii=False), "as it is stored"),
        (json.dumps({**V1, "doc": '"' * 300_000}), "as it is stored"),
    ],
)
def test_schemas_that_are_refused_in_a_line(http: httpx.Client, schema: str, problem: str) -> None:
    for path in ("/subjects/s/versions", "/compatibility/subjects/s/versions"):
        message = refused(http.post(path, json={"schema": schema}), 422, 42201)
        assert problem in message and "'s'" in message, message


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\xff\xfe{}", "not UTF-8"),
        ('{"schema": "\\"int\\""}'.encode("utf-16"), "not UTF-8"),
        (b'{"schema": "\\ud800"}', "surrogate"),
        (b'{"compatibility": NaN}', "NaN"),
        (b'{"schema": "1", "schema": "2"}', "'schema' twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"9" * 5_000, "digits"),
        (b"", "not JSON"),
        (b"null", "JSON object"),
    ],
)
def test_bodies_that_are_refused_in_a_line(http: httpx.Client, body: bytes, problem: str) -> None:
    for method, path in (
        ("POST", "/subjects/s"),
        ("POST", "/subjects/s/versions"),
        ("POST", "/compatibility/subjects/s/versions/latest"),
        ("PUT", "/config"),
        ("PUT", "/config/s"),
        ("PUT", "/mode"),
        ("PUT", "/mode/s"),
    ):
        assert problem in refused(http.request(method, path, content=body), 400)


def test_a_body_above_the_limit_is_refused(http: httpx.Client) -> None:
    for path in ("/subjects/s/versions", "/config"):
        method = "POST" if path.startswith("/subjects") else "PUT"
        message = refused(http.request(method, path, content=b" " * (BODY_MAX_BYTES + 1)), 413)
        assert str(BODY_MAX_BYTES) in message


@pytest.mark.parametrize(
    "name", ["%FF", "a%0Ab", "%0D", "%00", "%7F", "%C2%85", "%E2%80%A8", "%ED%A0%80", "x" * 1_001]
)
def test_names_that_no_subject_has(http: httpx.Client, name: str) -> None:
    body = {"schema": '"int"'}
    for method, path in (
        ("POST", f"/subjects/{name}/versions"),
        ("POST", f"/subjects/{name}"),
        ("GET", f"/subjects/{name}/versions"),
        ("GET", f"/subjects/{name}/versions/1/schema"),
        ("DELETE", f"/subjects/{name}"),
        ("POST", f"/compatibility/subjects/{name}/versions"),
        ("GET", f"/config/{name}"),
        ("PUT", f"/mode/{name}"),
    ):
        refused(http.request(method, path, json=None if method in ("GET", "DELETE") else body), 422, 42208)
    assert http.get("/subjects?deleted=true").json() == []


def test_numbers_and_versions_of_any_length(http: httpx.Client) -> None:
    assert register(http, "s", '"int"').status_code == 200
    many = "1" * 6_000
    refused(http.get(f"/subjects/s/versions/{many}"), 422, 42202)
    refused(http.get(f"/subjects/s/versions/{'0' * 6_000}1"), 422, 42202)
    refused(http.get("/subjects/s/versions/%0A1"), 422, 42202)
    refused(http.get(f"/schemas/ids/{many}"), 422)
    refused(http.get(f"/schemas/ids/{many[:30]}"), 404, 40403)
    refused(http.get("/schemas/ids/-1"), 404, 40403)
    assert http.get(f"/subjects?limit={many[:30]}").json() == ["s"]
    assert http.get(f"/subjects?offset={many[:30]}").json() == []
    refused(http.get(f"/subjects?offset={many}"), 422)
    refused(http.get("/subjects?deleted=perhaps"), 422)


# --- time, threads, connections ---


def test_a_check_that_takes_minutes_is_given_up_and_delays_nobody(http: httpx.Client) -> None:
    assert register(http, "wide", wide(60, [])).status_code == 200
    changed = wide(60, [{"name": "z", "type": "int", "default": 0}])
    schema_id = register(http, "other", json.dumps(V1)).json()["id"]
    done = threading.Event()

    def attack(_: int) -> httpx.Response:
        return register(http, "wide", changed)

    with ThreadPoolExecutor(3) as pool:
        attacks = [pool.submit(attack, number) for number in range(3)]
        answered = 0
        while True:
            assert http.get("/").status_code == 200
            assert http.get(f"/schemas/ids/{schema_id}").status_code == 200
            assert register(http, f"honest{answered}", json.dumps({**V1, "doc": str(answered)})).is_success
            if all(one.done() for one in attacks):
                break
            answered += 1  # others' requests have ended while the attack's are still waiting
            done.wait(0.05)
        responses = [one.result() for one in attacks]
    assert answered
    given_up = [r for r in responses if r.status_code == 422]
    assert given_up and all(r.status_code in (422, 503) for r in responses)
    assert "took longer than 4 s" in refused(given_up[0], 422, 42201)
    assert http.get("/subjects/wide/versions").json() == [1]


def test_wide_unions_are_compared_all_the_same(http: httpx.Client) -> None:
    assert register(http, "wide", wide(0, [])).status_code == 200
    assert register(http, "wide", wide(0, [{"name": "z", "type": "int", "default": 0}])).is_success
    assert register(http, "wide", wide(0, [{"name": "q", "type": "int"}])).status_code == 409


def test_a_default_that_no_parser_ends_with(http: httpx.Client) -> None:
    """Each level of the default is tried with both branches of a union: 2^40 ways."""
    value: Any = 5
    for _ in range(40):
        value = {"f": value}
    a, b = (
        {"type": "record", "name": name, "fields": [{"name": "f", "type": types}]}
        for name, types in (("A", ["null", "A", "B"]), ("B", ["A", "B", "null"]))
    )
    field = {"name": "u", "type": [a, b], "default": value}
    schema = json.dumps({"type": "record", "name": "R", "fields": [field]})
    message = refused(register(http, "s", schema), 422, 42201)
    assert "took longer than" in message
    assert register(http, "s", '"int"').status_code == 200, "the next request finds a new process"


def test_half_requests_end_and_never_fill_the_registry(start_registry: StartRegistry) -> None:
    url = httpx.URL(start_registry().url)
    address = (url.host, url.port or 0)
    halves = [socket.create_connection(address, timeout=TIMEOUT_S) for _ in range(CONNECTIONS_MAX)]
    try:
        for number, half in enumerate(halves):
            if number % 3 == 0:
                half.sendall(b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
            elif number % 3 == 1:
                half.sendall(b"GET / HT")
        assert httpx.get(url, trust_env=False, timeout=TIMEOUT_S).status_code == 200
        for half in halves:
            with contextlib.suppress(ConnectionResetError):
                assert half.recv(1) == b"", "closed by the registry after its deadline"
    finally:
        for half in halves:
            half.close()
    assert httpx.get(url, trust_env=False, timeout=TIMEOUT_S).status_code == 200


def wait_for_health(registry: RegistryProcess, status: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while httpx.get(registry.url, trust_env=False, timeout=TIMEOUT_S).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_reads_by_id_and_listings_survive_zookeeper(
    private_zookeeper: ZooKeeperRoom, start_registry: StartRegistry
) -> None:
    registry = start_registry(hosts=private_zookeeper.hosts)
    with httpx.Client(base_url=registry.url, trust_env=False, timeout=TIMEOUT_S) as http:
        schema_id = register(http, "s", json.dumps(V1)).json()["id"]
        assert http.get("/subjects").json() == ["s"]
        private_zookeeper.server.kill()
        wait_for_health(registry, 503)
        # More writers wait for ZooKeeper than there are threads.
        with ThreadPoolExecutor(60) as pool:
            writes = [pool.submit(register, http, f"w{i}", json.dumps(V1)) for i in range(60)]
            for path in (f"/schemas/ids/{schema_id}", f"/schemas/ids/{schema_id}/schema"):
                assert http.get(path).status_code == 200
            assert http.get("/").status_code == 503
            assert not any(write.done() for write in writes), "reads and health did not wait behind writes"
            assert all(refused(write.result(), 500, 50001) for write in writes)
        assert http.get("/subjects").json() == ["s"]
        assert http.get("/subjects/s/versions/latest").json()["id"] == schema_id
        assert http.get(f"/schemas/ids/{schema_id}/versions").json() == [{"subject": "s", "version": 1}]
        private_zookeeper.server.start()
        wait_for_health(registry, 200)
        assert register(http, "t", json.dumps(V1)).status_code == 200
        assert http.get("/subjects").json() == ["s", "t"], "the copy follows again"
