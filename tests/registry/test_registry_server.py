"""Registry processes over a real ZooKeeper, by plain HTTP: every path, every refusal, concurrent writers."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from fix_pages import PageReader
from fix_ports import free_port
from fix_registry import StartRegistry
from fix_zookeeper import ZooKeeperRoom
from headrace.process.page import HEADERS
from headrace.registry import __main__ as registry_main
from headrace.registry.schemas import parse

BACK_TRIES_MAX = 6
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
V1 = {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]}
Y = {"name": "y", "type": "string", "default": ""}
V2 = {**V1, "fields": [*V1["fields"], Y]}
V3 = {**V1, "fields": [*V1["fields"], Y, {"name": "z", "type": ["null", "int"], "default": None}]}
WRONG = {**V1, "fields": [{"name": "x", "type": "string"}]}


Connect = Callable[[str], "Http"]


class Http:
    """Short methods for requests; every response must have the registry's media type."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, trust_env=False, timeout=60)

    def __call__(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        response = self.client.request(method, path, json=body, headers={"Content-Type": MEDIA_TYPE})
        assert response.headers["content-type"] == MEDIA_TYPE
        assert response.status_code == status, response.text
        return response.json()

    def refused(self, code: int, method: str, path: str, body: Any = None) -> str:
        answer = self(method, path, body, status=code // 100 if code > 999 else code)
        assert answer["error_code"] == code, answer
        assert set(answer) == {"error_code", "message"}
        return str(answer["message"])

    def register(self, subject: str, schema: Any) -> Any:
        return self("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})


@pytest.fixture
def connect() -> Iterator[Callable[[str], Http]]:
    made: list[Http] = []

    def connect(url: str) -> Http:
        made.append(Http(url))
        return made[-1]

    yield connect
    for http in made:
        http.client.close()


@pytest.fixture
def http(connect: Connect, registry_url: str) -> Http:
    return connect(registry_url)


def test_versions_of_a_subject(http: Http) -> None:
    assert http("GET", "/subjects") == []
    first = http.register("s", V1)
    assert first == {**first, "subject": "s", "version": 1, "id": parse(json.dumps(V1)).schema_id}
    second = http.register("s", V2)
    assert second["version"] == 2 and second["id"] != first["id"]
    assert http.register("s", V1) == first, "registering again finds it"
    assert http("GET", "/subjects") == ["s"]
    assert http("GET", "/subjects/s/versions") == [1, 2]
    compact = json.dumps(V2, separators=(",", ":"))
    expected = {
        "subject": "s",
        "version": 2,
        "id": second["id"],
        "guid": parse(json.dumps(V2)).guid,
        "schemaType": "AVRO",
        "schema": compact,
    }
    for version in ("2", "latest", "-1"):
        assert http("GET", f"/subjects/s/versions/{version}") == expected
    assert http("GET", "/subjects/s/versions/1/schema") == V1
    assert http("GET", "/subjects/s/versions/2/referencedby") == []
    assert http("POST", "/subjects/s", {"schema": json.dumps(V2, indent=2)}) == expected
    assert "Subject 't' not found" in http.refused(40401, "POST", "/subjects/t", {"schema": '"int"'})
    assert "not found" in http.refused(40403, "POST", "/subjects/s", {"schema": '"int"'})
    http.refused(40401, "GET", "/subjects/t/versions")
    http.refused(40401, "GET", "/subjects/t/versions/latest")
    assert http.refused(40402, "GET", "/subjects/s/versions/3") == "Version 3 not found."
    for wrong in ("0", "-2", "first", "2147483648"):
        assert wrong in http.refused(42202, "GET", f"/subjects/s/versions/{wrong}")


def test_schemas_by_id(http: Http) -> None:
    schema_id = http.register("s", V1)["id"]
    assert http.register("other", V1)["id"] == schema_id
    assert json.loads(http("GET", f"/schemas/ids/{schema_id}")["schema"]) == V1
    assert http("GET", f"/schemas/ids/{schema_id}/schema") == V1
    assert http("GET", f"/schemas/ids/{schema_id}/subjects") == ["other", "s"]
    uses = [{"subject": "other", "version": 1}, {"subject": "s", "version": 1}]
    assert http("GET", f"/schemas/ids/{schema_id}/versions") == uses
    assert http("GET", f"/schemas/ids/{schema_id}/versions?subject=s&offset=0&limit=5") == uses[1:]
    assert http("GET", "/schemas/types") == ["AVRO"]
    assert [s["subject"] for s in http("GET", "/schemas?latestOnly=true")] == ["other", "s"]
    assert http("GET", "/schemas?subjectPrefix=o")[0]["id"] == schema_id
    assert "Schema 5 not found" in http.refused(40403, "GET", "/schemas/ids/5")
    http.refused(40403, "GET", "/schemas/ids/5/versions")
    assert "schema_id" in http.refused(422, "GET", "/schemas/ids/five")


def test_incompatible_schemas_are_refused_with_the_problems(http: Http) -> None:
    http.register("s", V1)
    message = http.refused(409, "POST", "/subjects/s/versions", {"schema": json.dumps(WRONG)})
    assert "incompatible with an earlier schema for subject 's'" in message and "TYPE_MISMATCH" in message
    body = {"schema": json.dumps(WRONG)}
    assert http("POST", "/compatibility/subjects/s/versions/latest", body) == {"is_compatible": False}
    response = http("POST", "/compatibility/subjects/s/versions/1?verbose=true", body)
    assert response["is_compatible"] is False and "TYPE_MISMATCH" in response["messages"][0]
    fits = {"schema": json.dumps(V2)}
    assert http("POST", "/compatibility/subjects/s/versions/latest?verbose=true", fits) == {
        "is_compatible": True,
        "messages": [],
    }
    assert http("POST", "/compatibility/subjects/s/versions", fits) == {"is_compatible": True}
    assert http("POST", "/compatibility/subjects/unknown/versions", fits) == {"is_compatible": True}
    assert http("POST", "/compatibility/subjects/unknown/versions/latest", fits) == {"is_compatible": True}
    http.refused(40401, "POST", "/compatibility/subjects/unknown/versions/1", fits)
    http.refused(40402, "POST", "/compatibility/subjects/s/versions/9", fits)


def test_levels_global_and_of_a_subject(http: Http) -> None:
    assert http("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert http("PUT", "/config", {"compatibility": "full"}) == {"compatibility": "FULL"}
    assert http("GET", "/config") == {"compatibilityLevel": "FULL"}
    assert "subject-level" in http.refused(40408, "GET", "/config/s")
    assert http("GET", "/config/s?defaultToGlobal=true") == {"compatibilityLevel": "FULL"}
    http.register("s", V1)
    http("PUT", "/config/s", {"compatibility": "NONE"})
    assert http.register("s", WRONG)["version"] == 2
    assert http("GET", "/config/s") == {"compatibilityLevel": "NONE"}
    assert http("DELETE", "/config/s") == {"compatibilityLevel": "NONE"}
    http.refused(40408, "DELETE", "/config/s")
    http.refused(409, "POST", "/subjects/s/versions", {"schema": json.dumps(V1 | {"name": "a.Q"})})
    assert http("DELETE", "/config") == {"compatibilityLevel": "FULL"}
    assert http("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert "'SIDEWAYS'" in http.refused(42203, "PUT", "/config", {"compatibility": "SIDEWAYS"})
    assert "nothing to set" in http.refused(42203, "PUT", "/config", {})
    assert "cannot set alias" in http.refused(
        42203, "PUT", "/config/s", {"compatibility": "NONE", "alias": "t"}
    )


def test_the_level_that_is_told_is_the_one_that_is_enforced(http: Http) -> None:
    http("PUT", "/config", {"compatibility": "FULL", "normalize": True})
    http("PUT", "/config/s", {"normalize": False})
    assert http("GET", "/config/s") == {"compatibilityLevel": "FULL", "normalize": False}
    http.register("s", V1)
    http.refused(409, "POST", "/subjects/s/versions", {"schema": json.dumps({**V1, "name": "a.Q"})})
    http("PUT", "/config/t", {"compatibility": "NONE"})
    assert http("GET", "/config/t") == {"compatibilityLevel": "NONE", "normalize": True}


def test_avro_may_be_named_or_not(http: Http) -> None:
    for kind in ({}, {"schemaType": None}, {"schemaType": "AVRO"}):
        assert http("POST", "/subjects/s/versions", {"schema": '"int"', **kind})["version"] == 1


def test_transitive_levels_check_all_versions(http: Http) -> None:
    http("PUT", "/config/s", {"compatibility": "NONE"})
    without_default = {**V1, "fields": [*V1["fields"], {"name": "y", "type": "string"}]}
    http.register("s", V1)
    http.register("s", V2)
    http("PUT", "/config/s", {"compatibility": "BACKWARD_TRANSITIVE"})
    message = http.refused(409, "POST", "/subjects/s/versions", {"schema": json.dumps(without_default)})
    assert "version 1" in message and "version 2" not in message
    http("PUT", "/config/s", {"compatibility": "BACKWARD"})
    http.register("s", without_default)


def test_normalized_registration(http: Http) -> None:
    spelled = {
        "namespace": "a",
        "name": "R",
        "type": "record",
        "fields": [{"type": {"type": "int"}, "name": "x"}],
    }
    answer = http("POST", "/subjects/s/versions?normalize=True", {"schema": json.dumps(spelled)})
    assert json.loads(answer["schema"])["name"] == "a.R"
    assert http("PUT", "/config", {"compatibility": "NONE", "normalize": True})["normalize"] is True
    assert http("GET", "/config")["normalize"] is True


def test_deletion_is_soft_first(http: Http) -> None:
    ids = [http.register("s", schema)["id"] for schema in (V1, V2, V3)]
    http.register("other", V1)
    http.refused(40407, "DELETE", "/subjects/s/versions/2?permanent=true")
    assert http("DELETE", "/subjects/s/versions/2") == 2
    http.refused(40406, "DELETE", "/subjects/s/versions/2")
    http.refused(40402, "GET", "/subjects/s/versions/2")
    assert http("GET", "/subjects/s/versions/2?deleted=true")["id"] == ids[1]
    assert http("GET", "/subjects/s/versions") == [1, 3]
    assert http("GET", "/subjects/s/versions?deleted=true") == [1, 2, 3]
    assert http("GET", "/subjects/s/versions?deletedOnly=true") == [2]
    assert http("GET", f"/schemas/ids/{ids[1]}"), "what was written with it can still be read"
    http.refused(40403, "POST", "/subjects/s", {"schema": json.dumps(V2)})
    assert http("POST", "/subjects/s?deleted=true", {"schema": json.dumps(V2)})["version"] == 2
    assert http.register("s", V2)["version"] == 4, "a number is never given twice"
    assert http("DELETE", "/subjects/s/versions/latest") == 4
    assert http("DELETE", "/subjects/s/versions/2?permanent=true") == 2

    http.refused(40405, "DELETE", "/subjects/s?permanent=true")
    assert http("DELETE", "/subjects/s") == [1, 3]
    http.refused(40404, "DELETE", "/subjects/s")
    assert http("GET", "/subjects") == ["other"]
    assert http("GET", "/subjects?deleted=true") == ["other", "s"]
    assert http("GET", "/subjects?deletedOnly=true") == ["s"]
    assert http("DELETE", "/subjects/s?permanent=true") == [1, 3, 4]
    assert http("GET", "/subjects?deleted=true") == ["other"]
    assert http("GET", f"/schemas/ids/{ids[0]}"), "another subject has it"
    http.refused(40403, "GET", f"/schemas/ids/{ids[2]}")
    http.refused(40401, "DELETE", "/subjects/s")
    assert http.register("s", V3)["version"] == 1


def test_read_only_mode(http: Http) -> None:
    http.register("s", V1)
    assert http("GET", "/mode") == {"mode": "READWRITE"}
    http.refused(40409, "GET", "/mode/s")
    assert http("PUT", "/mode/s", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert http("GET", "/mode/s") == {"mode": "READONLY"}
    assert http.register("s", V1)["version"] == 1, "what is registered can be looked up"
    assert "'s' is in read-only mode" in http.refused(
        42205, "POST", "/subjects/s/versions", {"schema": json.dumps(V2)}
    )
    http.refused(42205, "DELETE", "/subjects/s")
    http.refused(42205, "PUT", "/config/s", {"compatibility": "NONE"})
    http.register("t", V1)
    assert http("DELETE", "/mode/s") == {"mode": "READONLY"}
    http("PUT", "/mode", {"mode": "readonly"})
    http.refused(42205, "POST", "/subjects/s/versions", {"schema": json.dumps(V2)})
    assert http("GET", "/mode/s?defaultToGlobal=true") == {"mode": "READONLY"}
    assert "'IMPORT'" in http.refused(42204, "PUT", "/mode", {"mode": "IMPORT"})
    http("DELETE", "/mode")
    http.register("s", V2)


def test_bodies_that_are_refused(http: Http) -> None:
    path = "/subjects/s/versions"
    assert "Invalid schema" in http.refused(42201, "POST", path, {"schema": "{"})
    assert "Empty schema" in http.refused(42201, "POST", path, {})
    assert "PROTOBUF" in http.refused(42201, "POST", path, {"schema": "x", "schemaType": "PROTOBUF"})
    reference = [{"name": "a.B", "subject": "b", "version": 1}]
    assert "references are not supported" in http.refused(
        42201, "POST", path, {"schema": '"int"', "references": reference}
    )
    assert "ruleSet" in http.refused(42201, "POST", path, {"schema": '"int"', "ruleSet": {"domainRules": []}})
    assert "must be a JSON object" in http.refused(400, "POST", path, [1])
    assert "not a valid subject" in http.refused(
        42208, "POST", "/subjects/%3A.ctx%3As/versions", {"schema": '"int"'}
    )
    assert http.refused(404, "GET", "/nothing")
    assert http.refused(405, "PUT", "/subjects")
    response = http.client.post(path, content=b"{not json", headers={"Content-Type": "text/plain"})
    assert response.status_code == 400 and "not JSON" in response.json()["message"]
    response = http.client.post(path, content=b'{"schema": "\\"int\\""}')
    assert response.json()["version"] == 1, "curl -d sends JSON under another name"
    big = json.dumps({"schema": json.dumps({**V1, "doc": "x" * 950_000})}).encode()
    assert "longer than 900000 bytes" in http.client.post(path, content=big).json()["message"]
    assert http.client.post(path, content=b" " * 3_000_000).status_code == 413


@pytest.mark.parametrize("subject", ["a/b", "a b", "ünï", "..", ".", "a%2Fb", "x" * 300])
def test_subjects_of_any_spelling(http: Http, subject: str) -> None:
    name = quote(subject, safe="").replace(".", "%2E")
    assert http.register(name, V1)["subject"] == subject
    assert http("GET", "/subjects") == [subject]
    assert http("GET", f"/subjects/{name}/versions/1")["subject"] == subject


def test_several_registries_at_once(start_registry: StartRegistry, connect: Connect) -> None:
    """Three instances, the same and different schemas under the same and different subjects, all at the same
    time.
    """
    registries = [connect(start_registry().url) for _ in range(3)]
    for http in registries:
        http("PUT", "/config", {"compatibility": "NONE"})
    barrier = threading.Barrier(24)

    def register(i: int) -> list[tuple[str, int, int]]:
        http = registries[i % 3]
        barrier.wait()
        done = []
        for n in range(4):
            subject, schema = f"s{n % 2}", {**V1, "doc": f"variant {(i + n) % 8}"}
            answer = http.register(subject, schema)
            done.append((subject, answer["version"], answer["id"]))
        return done

    with ThreadPoolExecutor(24) as pool:
        answers = [answer for done in pool.map(register, range(24)) for answer in done]
    http = registries[0]
    expected = {parse(json.dumps({**V1, "doc": f"variant {v}"})).schema_id for v in range(8)}
    for subject in ("s0", "s1"):
        versions = http("GET", f"/subjects/{subject}/versions")
        assert versions == list(range(1, len(versions) + 1)), "no gap, nothing twice"
        listed = {v: http("GET", f"/subjects/{subject}/versions/{v}")["id"] for v in versions}
        assert set(listed.values()) == expected and len(listed) == 8
        assert all(listed[version] == schema_id for s, version, schema_id in answers if s == subject)


def test_concurrent_registration_and_permanent_deletion(
    start_registry: StartRegistry, connect: Connect
) -> None:
    """A schema that one subject uses survives another subject's permanent deletion."""
    one, two = connect(start_registry().url), connect(start_registry().url)

    def delete_and_register(_: int) -> None:
        one.client.delete("/subjects/a")
        one.client.delete("/subjects/a?permanent=true")
        one.register("a", V1)

    def register_elsewhere(i: int) -> None:
        schema_id = two.register(f"b{i}", V1)["id"]
        assert two("GET", f"/schemas/ids/{schema_id}")
        two.client.delete(f"/subjects/b{i}")
        two.client.delete(f"/subjects/b{i}?permanent=true")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: [job(i) for i in range(15)], (delete_and_register, register_elsewhere)))
    assert json.loads(one("GET", "/subjects/a/versions/latest")["schema"]) == V1


def test_health_follows_zookeeper(
    private_zookeeper: ZooKeeperRoom, start_registry: StartRegistry, connect: Connect
) -> None:
    registry = start_registry(hosts=private_zookeeper.hosts)
    http = connect(registry.url)
    schema_id = http.register("s", V1)["id"]
    assert http("GET", "/")["zookeeper"] == "connected"
    assert http("GET", "/contexts") == ["."]
    browser = {"Accept": "text/html,*/*;q=0.8"}
    for _ in range(600):  # what the page lists is fed by watches
        page = httpx.get(registry.url, headers=browser, timeout=60)
        if "/subjects/s/versions/1/schema" in PageReader(page.text).links:
            break
        threading.Event().wait(0.05)
    assert {key: page.headers[key] for key in HEADERS} == dict(HEADERS)
    assert "/subjects/s/versions/1/schema" in PageReader(page.text).links
    private_zookeeper.server.kill()
    for _ in range(600):
        if httpx.get(registry.url, timeout=60).status_code == 503:
            break
        threading.Event().wait(0.05)
    assert http("GET", "/", status=503)["zookeeper"] == "suspended"
    for _ in range(600):  # a page is given again for a second
        texts = PageReader(httpx.get(registry.url, headers=browser, timeout=60).text).texts
        if "without ZooKeeper" in texts:
            break
        threading.Event().wait(0.05)
    assert {"without ZooKeeper", "s"} <= set(texts), "it shows what was known last"
    private_zookeeper.server.start()
    for _ in range(BACK_TRIES_MAX):  # a request waits for ZooKeeper, ten seconds at most
        if httpx.get(f"{registry.url}/schemas/ids/{schema_id}", timeout=60).status_code == 200:
            break
    assert json.loads(http("GET", f"/schemas/ids/{schema_id}")["schema"]) == V1
    assert registry.stop() == 0


def test_a_taken_port_is_named_in_one_line(
    registry_url: str, zookeeper: ZooKeeperRoom, capfd: pytest.CaptureFixture[str]
) -> None:
    address = registry_url.removeprefix("http://")
    assert registry_main.main(["--listen", address, "--zookeeper", zookeeper.hosts]) == 1
    assert capfd.readouterr().err == f"cannot listen on {address}: [Errno 98] Address already in use\n"
    assert registry_main.main(["--listen", "nonsense", "--zookeeper", zookeeper.hosts]) == 1
    assert "is not HOST:PORT" in capfd.readouterr().err


def test_without_zookeeper_the_registry_exits_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry_main, "CONNECT_TIMEOUT_S", 0.3)
    nowhere = f"127.0.0.1:{free_port()}"
    assert registry_main.main(["--listen", "127.0.0.1:0", "--zookeeper", nowhere]) == 1
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(
        f"the schema registry cannot start: no ZooKeeper answered at {nowhere} within 0.3 s"
    )
