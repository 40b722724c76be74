"""The agent of a host over HTTP: every path with its token, documents that lie, and half requests beside.

No answer is 500, none takes longer than its deadline, and whatever was sent, the agent still lists its units
afterwards. Only dry runs are sent: no unit is started.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
from typing import Any, Final

import httpx

from fuzzing.documents import ODD
from fuzzing.values import TEXTS, mutate
from fuzzing.world import World

REQUESTS: Final = 120
ANSWER_MAX_S: Final = 30.0
KINDS: Final = (
    "broker",
    "zookeeper",
    "balancer",
    "registry",
    "mirror",
    "auditor",
    "hdfs",
    "airflow",
    "x",
    None,
)
FIELDS: Final = (
    "datacenter",
    "listen",
    "data_dir",
    "settings",
    "zookeeper",
    "broker_id",
    "requires",
    "python",
    "connections",
    "store",
    "status",
    "component",
    "source",
)
VALUES: Final[tuple[Any, ...]] = (
    *ODD,
    "east",
    "127.0.0.1:1",
    "127.0.0.1:99999",
    "/etc/passwd",
    "/../etc",
    {"a": "x\n[program:evil]\ncommand=id"},
    {"num.partitions": "%(ENV_HOME)s"},
    ["a"] * 1000,
    {"a": {"b": [1] * 100}},
)


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last request."""
    agent = world.agent()
    last = ""
    with (
        contextlib.ExitStack() as stack,
        httpx.Client(base_url=agent.url, timeout=ANSWER_MAX_S, headers=agent.headers) as client,
    ):
        for _ in range(20):
            half = stack.enter_context(socket.create_connection(agent.address, ANSWER_MAX_S))
            half.sendall(mutate(rng, b"PUT /v1/units/a HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\n{"))
        for _ in range(REQUESTS):
            method, path, data = _request(rng)
            last = f"{method} {path} {data[:3000]!r}"
            try:
                answer = client.request(method, path, content=data)
            except (httpx.InvalidURL, UnicodeError):
                continue
            except httpx.HTTPError as error:
                raise AssertionError(f"{error!r} for {last}") from None
            assert answer.status_code < 500, f"{answer.status_code} {answer.text[:500]} for {last}"
        assert client.get("/v1/units").json() == {"units": []}
    return [last]


def _request(rng: random.Random) -> tuple[str, str, bytes]:
    name = rng.choice(("one", "two", "agent", *TEXTS)).replace("?", "").replace("#", "")
    kind = rng.randrange(6)
    if kind < 3:
        data = json.dumps(_configuration(rng)).encode("utf-8", "surrogatepass")
        return "PUT", f"/v1/units/{name}?dry_run=true", mutate(rng, data) if rng.random() < 0.2 else data
    if kind == 3:
        load = {rng.choice(("owner", "schedule", "output", "x")): rng.choice(VALUES) for _ in range(2)}
        return "PUT", f"/v1/loads/{name}?dry_run=true", json.dumps(load).encode("utf-8", "surrogatepass")
    if kind == 4:
        query = rng.choice(("", "?wait_s=-1", "?wait_s=nan", "?lines=0", "?lines=99999999999", "?name=%00"))
        what = rng.choice(("", "/log", "/data"))
        return "GET", f"/v1/units/{name}{what}{query}", b""
    return (
        "POST",
        rng.choice((f"/v1/units/{name}/restart", "/v1/restart", f"/v1/{name}")),
        mutate(rng, b'{"units":["a"]}'),
    )


def _configuration(rng: random.Random) -> Any:
    if rng.random() < 0.05:
        return rng.choice(ODD)
    fields = {name: rng.choice(VALUES) for name in rng.sample(FIELDS, rng.randrange(len(FIELDS)))}
    return {"kind": rng.choice(KINDS), **fields}
