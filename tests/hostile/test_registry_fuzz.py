"""Arbitrary requests to every path of a schema registry: never a 500, never silence, always a line."""

import json
from typing import Any, Final

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SCHEMA_KEYS: Final = (
    "type",
    "name",
    "namespace",
    "fields",
    "items",
    "values",
    "symbols",
    "size",
    "default",
    "aliases",
    "order",
    "doc",
    "logicalType",
    "precision",
    "scale",
    "__fastavro_parsed",
)
WORDS: Final = (
    "record",
    "error",
    "enum",
    "fixed",
    "array",
    "map",
    "union",
    "null",
    "int",
    "long",
    "double",
    "bytes",
    "string",
    "R",
    "a.R",
    "decimal",
    "uuid",
    "timestamp-millis",
    "",
    "1x",
    "ascending",
    "NONE",
    "FULL",
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([2**31, -(2**63), 10**40, 1e308, -0.0])
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(SCHEMA_KEYS), inner, max_size=6)
    ),
    max_leaves=25,
)
types = st.recursive(
    st.sampled_from(["null", "int", "long", "float", "double", "bytes", "string", "boolean", "R", "a.E"]),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda values: {"type": "map", "values": values}, inner)
        | st.lists(inner, min_size=1, max_size=4)
        | st.builds(
            lambda name, fields: {"type": "record", "name": name, "fields": fields},
            st.sampled_from(["R", "a.S", "a.T"]),
            st.lists(
                st.builds(
                    lambda name, kind, rest: {"name": name, "type": kind, **rest},
                    st.sampled_from("xyz"),
                    inner,
                    st.dictionaries(
                        st.sampled_from(["default", "aliases", "doc", "order"]), trees, max_size=2
                    ),
                ),
                max_size=3,
            ),
        )
        | st.builds(
            lambda symbols, default: {"type": "enum", "name": "a.E", "symbols": symbols, **default},
            st.lists(st.sampled_from("ABC"), max_size=3),
            st.dictionaries(st.just("default"), scalars, max_size=1),
        )
        | st.builds(lambda size: {"type": "fixed", "name": "F", "size": size}, scalars)
    ),
    max_leaves=12,
)
schemas = (trees | types).map(json.dumps) | st.text(max_size=30)
bodies = (
    st.builds(lambda schema: {"schema": schema}, schemas)
    | st.dictionaries(
        st.sampled_from(
            [
                "schema",
                "schemaType",
                "references",
                "id",
                "version",
                "compatibility",
                "normalize",
                "mode",
                "ruleSet",
            ]
        ),
        schemas | trees,
        max_size=5,
    )
    | trees
)
contents = bodies.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=50)
names = st.sampled_from(["s", "t", "%FF", "a%2Fb", "..", "%0A", ":.c:x", "%2E%2E", "s%20"]) | st.text(
    "abc%.:0é", min_size=1, max_size=6
).map(lambda name: httpx.URL(path=f"/{name}").raw_path.decode()[1:])
versions = st.sampled_from(["1", "2", "latest", "-1", "0", "99999999999", "x", "%00", "%D9%A1"])
numbers = st.integers(-2, 2**70).map(str) | versions
queries = st.dictionaries(
    st.sampled_from(
        [
            "deleted",
            "permanent",
            "deletedOnly",
            "normalize",
            "verbose",
            "limit",
            "offset",
            "subjectPrefix",
            "latestOnly",
            "defaultToGlobal",
            "subject",
            "force",
            "format",
        ]
    ),
    st.sampled_from(["true", "false", "1", "-1", "x", "", "s", "10000000000000000000000"]),
    max_size=3,
)
paths = st.one_of(
    st.sampled_from(["/", "/subjects", "/schemas", "/schemas/types", "/contexts", "/config", "/mode", "/no"]),
    st.builds("/subjects/{}".format, names),
    st.builds("/subjects/{}/versions".format, names),
    st.builds("/subjects/{}/versions/{}".format, names, versions),
    st.builds("/subjects/{}/versions/{}/schema".format, names, versions),
    st.builds("/subjects/{}/versions/{}/referencedby".format, names, versions),
    st.builds("/compatibility/subjects/{}/versions".format, names),
    st.builds("/compatibility/subjects/{}/versions/{}".format, names, versions),
    st.builds("/config/{}".format, names),
    st.builds("/mode/{}".format, names),
    st.builds("/schemas/ids/{}".format, numbers),
    st.builds("/schemas/ids/{}/{}".format, numbers, st.sampled_from(["schema", "subjects", "versions"])),
    st.builds("/schemas/guids/{}".format, st.uuids().map(str) | numbers),
)
methods = st.sampled_from(["GET", "POST", "POST", "POST", "PUT", "DELETE", "PATCH"])


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, (response.status_code, response.text)
    body: Any = response.json()
    if response.status_code >= 400:
        assert set(body) == {"error_code", "message"} and body["message"]
        assert body["error_code"] // (100 if body["error_code"] > 999 else 1) == response.status_code
        assert "\n" not in body["message"] and len(body["message"]) < 4_000


SETTINGS: Final = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SETTINGS
@given(methods, paths, queries, contents)
def test_any_request_to_any_path(
    registry_url: str, method: str, path: str, query: dict[str, str], content: bytes
) -> None:
    with httpx.Client(trust_env=False, timeout=30) as http:
        # The path is sent as it is: httpx would make "/.." shorter.
        url = httpx.URL(registry_url).copy_with(raw_path=f"{path}?{httpx.QueryParams(query)}".encode())
        check(http.request(method, url, content=None if method == "GET" else content))
        assert http.get(registry_url).status_code == 200


@SETTINGS
@given(st.lists(schemas, min_size=2, max_size=4), st.sampled_from(["NONE", "FULL_TRANSITIVE", "BACKWARD"]))
def test_any_schemas_one_after_the_other(registry_url: str, texts: list[str], level: str) -> None:
    with httpx.Client(base_url=registry_url, trust_env=False, timeout=30) as http:
        check(http.put("/config", json={"compatibility": level}))
        for text in texts:
            registered = http.post("/subjects/f/versions", json={"schema": text})
            check(registered)
            check(http.post("/compatibility/subjects/f/versions?verbose=true", json={"schema": text}))
            if registered.is_success:
                known = registered.json()
                again = http.post("/subjects/f", json={"schema": text}).json()
                assert (again["id"], again["guid"]) == (known["id"], known["guid"])
                assert http.get(f"/schemas/guids/{known['guid']}").json()["schema"] == known["schema"]
        check(http.get("/subjects/f/versions"))
        check(http.delete("/subjects/f"))
        check(http.delete("/subjects/f?permanent=true"))
