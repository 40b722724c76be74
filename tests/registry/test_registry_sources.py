"""A registry that asks the registries of other datacenters: what it answers, remembers and refuses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pytest

from headrace.registry import errors, sources
from headrace.registry.__main__ import parse_sources
from headrace.registry.client import SchemaConflictError
from headrace.registry.copying import SubjectCopier
from headrace.registry.errors import RegistryError
from headrace.registry.requests import check_new_name
from headrace.registry.sources import Registration, SourceError, Sources
from headrace.registry.urls import NamedUrl, parse_urls

EAST, WEST = NamedUrl("http://east:8081", "east"), NamedUrl("http://west:8081", "west")
ONE: dict[str, Any] = {"type": "record", "name": "One", "fields": []}
OTHER: dict[str, Any] = {"type": "record", "name": "Other", "fields": []}

Answer = Callable[[httpx.Request], httpx.Response]


class Datacenters:
    """Registries by host; counts the requests that each one got."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.now_s = 0.0

    def sources(self) -> Sources:
        urls = [each for each in (EAST, WEST) if each.datacenter in self.answers]
        transport = httpx.MockTransport(self._handle)
        return Sources(urls, transport=transport, clock_s=lambda: self.now_s)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.url.host} {request.url.raw_path.decode()}")
        return self.answers[request.url.host](request)


def has(schema: Any) -> Answer:
    return lambda _: httpx.Response(200, json={"schema": json.dumps(schema)})


def has_nothing(_: httpx.Request) -> httpx.Response:
    return httpx.Response(404, json={"error_code": 40403, "message": "Schema 5 not found"})


def is_down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def test_an_id_is_found_at_any_source_once() -> None:
    datacenters = Datacenters(east=has_nothing, west=has(ONE))
    asking = datacenters.sources()
    for _ in range(3):
        assert json.loads(asking.find(5) or "") == ONE
    assert datacenters.asked == ["east /schemas/ids/5?local=true", "west /schemas/ids/5?local=true"]


def test_an_id_that_all_miss_is_asked_for_again_later() -> None:
    datacenters = Datacenters(east=has_nothing, west=has_nothing)
    asking = datacenters.sources()
    assert asking.find(5) is None and asking.find(5) is None
    assert len(datacenters.asked) == 2
    datacenters.now_s += sources.MISSING_KEPT_S
    datacenters.answers["east"] = has(ONE)
    assert json.loads(asking.find(5) or "") == ONE


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MISSING_MAX", 3)
    monkeypatch.setattr(sources, "CONTRADICTED_MAX", 3)
    asking = Datacenters(east=has_nothing).sources()
    for schema_id in range(10):
        assert asking.find(schema_id) is None
        asking.note_contradiction(schema_id)
    assert len(asking._missing_until_s) == 3
    assert [n for n in range(10) if asking.contradicts(n)] == [7, 8, 9]


def test_a_source_that_is_down_is_named_and_left_alone_for_a_while() -> None:
    datacenters = Datacenters(east=is_down, west=has_nothing)
    asking = datacenters.sources()
    for _ in range(2):
        with pytest.raises(RegistryError) as refused:
            asking.find(5)
        assert refused.value.error_code == errors.SCHEMA_NOT_FOUND
        assert "east (http://east:8081) did not answer: connection refused" in refused.value.message
    assert sum(each.startswith("east") for each in datacenters.asked) == 1
    datacenters.answers["west"] = has(ONE)
    assert json.loads(asking.find(5) or "") == ONE, "one that is down hides nothing that another has"
    datacenters.now_s += sources.UNREACHABLE_PAUSE_S
    datacenters.answers["east"] = has(ONE)
    assert json.loads(asking.find(6) or "") == ONE
    assert sum(each.startswith("east") for each in datacenters.asked) == 2


def test_two_schemas_for_one_id_are_refused_with_both_datacenters() -> None:
    asking = Datacenters(east=has(ONE), west=has(OTHER)).sources()
    with pytest.raises(
        SchemaConflictError, match=r"id 5 is One at east \(.*\) and Other at west \("
    ) as refused:
        asking.find(5)
    assert (refused.value.error_code, refused.value.status) == (errors.ID_CONFLICT, 409)


def test_what_one_source_answered_is_compared_with_another_that_was_down_then() -> None:
    """It was remembered for good: nobody looked whether the other one means another schema by that id."""
    datacenters = Datacenters(east=is_down, west=has(ONE))
    asking = datacenters.sources()
    assert json.loads(asking.find(5) or "") == ONE
    datacenters.answers["east"] = has(OTHER)
    datacenters.now_s += sources.UNREACHABLE_PAUSE_S
    with pytest.raises(SchemaConflictError, match="at east"):
        asking.find(5)


def test_what_was_found_is_compared_again_once_somebody_contradicts_it() -> None:
    """Such as another product's registry, which gave the id later: the copies of its subjects show that."""
    datacenters = Datacenters(east=has_nothing, west=has(ONE))
    asking = datacenters.sources()
    assert json.loads(asking.find(5) or "") == ONE
    datacenters.answers["east"] = has(OTHER)
    asking.note_contradiction(5)
    with pytest.raises(SchemaConflictError, match="at east"):
        asking.find(5)


def test_what_is_here_is_compared_too() -> None:
    asking = Datacenters(west=has(OTHER)).sources()
    with pytest.raises(SchemaConflictError, match="is One at this registry and Other at west"):
        asking.find(5, json.dumps(ONE))
    respelled = json.dumps(OTHER, indent=2)
    assert json.loads(asking.find(5, respelled) or "") == OTHER


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (httpx.Response(500, text="oops"), "HTTP 500"),
        (httpx.Response(200, text="<html>"), "HTTP 200"),
        (httpx.Response(200, json=["schema"]), "answered schema 5 with"),
        (httpx.Response(404, text="no such page"), "HTTP 404"),
        (httpx.Response(200, content=b"x" * 100), "more than 50 bytes"),
    ],
)
def test_an_answer_that_is_none_is_named(
    response: httpx.Response, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ANSWER_MAX_BYTES", 50)
    asking = Datacenters(east=lambda _: response).sources()
    with pytest.raises(RegistryError, match=problem) as refused:
        asking.find(5)
    assert "east" in refused.value.message and refused.value.message.isprintable()


def test_all_versions_are_listed_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PAGE", 2)
    versions = [{"subject": f"s{n}", "version": 1, "id": n, "schema": "{}"} for n in range(5)]

    def listed(request: httpx.Request) -> httpx.Response:
        offset, limit = (int(request.url.params[name]) for name in ("offset", "limit"))
        return httpx.Response(200, json=versions[offset : offset + limit])

    asking = Datacenters(east=listed).sources()
    pages = list(asking.registrations(EAST))
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [each for page in pages for each in page] == [Registration(f"s{n}", n, "{}") for n in range(5)]
    monkeypatch.setattr(sources, "REGISTRATIONS_MAX", 4)
    with pytest.raises(SourceError, match="more than 4 versions"):
        list(asking.registrations(EAST))


@pytest.mark.parametrize(
    "content",
    [
        '[{"subject": "s"}]',
        '["s"]',
        '[{"subject": "s", "id": "x", "schema": "{}"}]',
        '[{"subject": "s", "id": Infinity, "schema": "{}"}]',
        "[" * 100_000,
    ],
)
def test_a_list_that_is_none_is_named(content: str) -> None:
    asking = Datacenters(east=lambda _: httpx.Response(200, text=content)).sources()
    with pytest.raises(SourceError, match=r"^east .* answered /schemas"):
        list(asking.registrations(EAST))


def test_an_answer_that_never_ends_is_given_up() -> None:
    """Each piece comes in time, so nothing but a bound on the whole answer ends the wait."""
    datacenters = Datacenters()

    def pieces() -> Iterator[bytes]:
        while datacenters.now_s < 1_000:
            datacenters.now_s += sources.ANSWER_WAIT_MAX_S / 2
            yield b" "

    datacenters.answers = {"east": lambda _: httpx.Response(200, content=pieces()), "west": has(ONE)}
    assert json.loads(datacenters.sources().find(5) or "") == ONE
    assert datacenters.now_s <= 2 * sources.ANSWER_WAIT_MAX_S


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "x" * 10_000])
def test_what_cannot_be_a_subjects_name_is_refused(name: str) -> None:
    with pytest.raises(RegistryError, match="is not a valid subject"):
        check_new_name(name)


def test_copying_goes_on_after_an_error_that_nobody_thought_of(caplog: pytest.LogCaptureFixture) -> None:
    again = threading.Event()
    asked: list[NamedUrl] = []

    class Copier(SubjectCopier):
        def copy(self, source: NamedUrl) -> int:
            asked.append(source)
            if len(asked) == 1:
                raise LookupError("never seen before")
            again.set()
            return 0

    unused = cast(Any, None)
    copier = Copier(unused, unused, Datacenters(east=has_nothing, west=has_nothing).sources(), pause_s=0.01)
    copier.start()
    assert again.wait(10)
    copier.stop()
    assert "subjects of east (http://east:8081) are not copied: LookupError: never seen" in caplog.text


def test_sources_are_named() -> None:
    assert parse_sources("east=http://a:1,west=https://b:2/") == (
        NamedUrl("http://a:1", "east"),
        NamedUrl("https://b:2", "west"),
    )
    for wrong in ("http://a:1", "east=http://a:1,http://b:2", ","):
        with pytest.raises(Exception, match=r"such as east=http"):
            parse_sources(wrong)


@pytest.mark.parametrize("url", ["foo", "127.1.0.3:8081", "ftp://a", "http://", "http:///subjects", "east="])
def test_what_is_no_url_is_named(url: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{url.rstrip('/')!r} is not a registry's URL")):
        parse_urls(f"http://127.1.0.3:8081,{url}")
