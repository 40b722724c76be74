"""The schema registry over HTTP: every path, with documents that lie, and requests that stop half way.

No answer is 500, none takes longer than its deadline, and a schema that was registered before still reads the
same.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from typing import Any, Final
from urllib.parse import quote

import httpx

from fuzzing.documents import body, known_schemas
from fuzzing.values import TEXTS
from fuzzing.world import World

REQUESTS: Final = 150
ANSWER_MAX_S: Final = 20.0
SUBJECTS: Final = ("fuzz-a", "fuzz-b", *TEXTS)
HALF_REQUESTS: Final = (
    b"POST /subjects/a/versions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
    b"GET /subjects HTTP/1.1\r\nHost: a",
    b"POST /subjects/a/versions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    b"\x16\x03\x01\x00\x05hello",
)


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last request."""
    url = world.registry_url()
    kept = _keep_one(url)
    half = [_half(url, rng) for _ in range(10)]
    last = ""
    with httpx.Client(base_url=url, timeout=ANSWER_MAX_S) as client:
        for _ in range(REQUESTS):
            method, path, data = _request(rng)
            last = f"{method} {path} {data[:3000]!r}"
            began_s = time.monotonic()
            try:
                answer = client.request(method, path, content=data)
            except (httpx.InvalidURL, UnicodeError):
                continue
            except httpx.HTTPError as error:
                raise AssertionError(
                    f"{error!r} after {time.monotonic() - began_s:.1f} s for {last}"
                ) from None
            assert answer.status_code != 500, f"500 {answer.text[:500]} for {last}"
            if answer.content:
                json.loads(answer.content)
    again = httpx.get(f"{url}/schemas/ids/{kept['id']}", timeout=ANSWER_MAX_S).json()
    assert again["schema"] == kept["schema"], f"the schema of id {kept['id']} was {kept}, is {again}"
    for connection in half:
        connection.close()
    return [last]


def _keep_one(url: str) -> dict[str, Any]:
    text = known_schemas()[0]
    subject = f"{url}/subjects/kept/versions"
    answer = httpx.post(subject, content=json.dumps({"schema": text}), timeout=ANSWER_MAX_S)
    assert answer.status_code == 200, answer.text
    number = answer.json()["id"]
    found = httpx.get(f"{url}/schemas/ids/{number}", timeout=ANSWER_MAX_S).json()
    return {"id": number, "schema": found["schema"]}


def _half(url: str, rng: random.Random) -> socket.socket:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=ANSWER_MAX_S)
    with contextlib.suppress(OSError):
        connection.sendall(rng.choice(HALF_REQUESTS))
    return connection


def _request(rng: random.Random) -> tuple[str, str, bytes]:
    subject = quote(rng.choice(SUBJECTS), safe="")
    version = rng.choice(("1", "latest", "-1", "0", "99999999999999999999", "x", "1.5"))
    number = rng.choice(("1", "2", "-1", "2147483648", "99999999999999999999999", "x"))
    level = rng.choice(("NONE", "BACKWARD", "FULL_TRANSITIVE", "nonsense"))
    query = rng.choice(
        ("", "", "", "?deleted=true", "?normalize=true", "?limit=-5", "?offset=x", "?permanent=true")
    )
    kind = rng.randrange(12)
    if kind < 4:
        return "POST", f"/subjects/{subject}/versions{query}", body(rng)
    if kind == 4:
        return "POST", f"/subjects/{subject}{query}", body(rng)
    if kind == 5:
        return "POST", f"/compatibility/subjects/{subject}/versions/{version}{query}", body(rng)
    if kind == 6:
        return "GET", rng.choice((f"/schemas/ids/{number}", f"/schemas/ids/{number}/versions{query}")), b""
    if kind == 7:
        return "GET", f"/subjects/{subject}/versions/{version}{query}", b""
    if kind == 8:
        return (
            "DELETE",
            rng.choice((f"/subjects/{subject}{query}", f"/subjects/{subject}/versions/1{query}")),
            b"",
        )
    if kind == 9:
        return "PUT", f"/config/{subject}", json.dumps({"compatibility": level}).encode()
    if kind == 10:
        return (
            "GET",
            rng.choice(("/subjects", "/schemas", "/config", "/schemas/types", f"/config/{subject}")) + query,
            b"",
        )
    return rng.choice(("PATCH", "GET", "TRACE")), f"/{subject}/{version}{query}", body(rng)
