"""What the registry's client says if something else listens at the address, or answers nonsense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry import urls
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import RegistryError, RegistryUnavailableError
from headrace.registry.urls import parse_urls

CALLS: dict[str, Callable[[SchemaRegistryClient], object]] = {
    "subjects": lambda client: client.subjects(),
    "versions": lambda client: client.versions("s"),
    "latest": lambda client: client.latest("s"),
    "lookup": lambda client: client.lookup("s", '"int"'),
    "register": lambda client: client.register("s", '"int"'),
    "by id": lambda client: client.get_by_id(5),
    "config": lambda client: client.config("s"),
    "own config": lambda client: client.own_config("s"),
    "check": lambda client: client.check_compatibility("s", '"int"'),
    "delete": lambda client: client.delete_subject("s"),
    "delete one": lambda client: client.delete_version("s", 1),
}


def client_of(body: bytes, **headers: str) -> SchemaRegistryClient:
    class Stranger(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))

    return SchemaRegistryClient("http://stranger:8080", transport=Stranger(), retry_rounds=1)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "body",
    [b'{"units": ["east-broker-1"]}', b'{"id": "x", "version": 1e400}', b"[[]]", b"7.5", b"[" * 100_000],
)
def test_another_service_at_the_address_is_named(call: str, body: bytes) -> None:
    """An agent's JSON was a list of subjects, or a TypeError without the address."""
    if (call, body) == ("delete one", b"7.5"):
        return  # a number, as a registry answers
    with pytest.raises(RegistryError, match="http://stranger:8080") as refused:
        CALLS[call](client_of(body))
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_that_cannot_be_unpacked_counts_as_none(call: str) -> None:
    client = client_of(b"no gzip", **{"content-encoding": "gzip"})
    with pytest.raises(RegistryUnavailableError, match=r"http://stranger:8080: .* decompress"):
        CALLS[call](client)


@pytest.mark.parametrize(
    "url", ["http://h:port", "http://[::1", "http://" + "a" * 70, "http://a..b", "http://xn--"]
)
def test_an_address_that_no_request_can_name_is_refused_at_once(url: str) -> None:
    """It was an error of a library, when the first event was published."""
    with pytest.raises(ValueError, match="is not a registry's URL, such as"):
        parse_urls(url)
    known: Any = parse_urls("east=http://127.1.0.3:8081,http://[::1]:8081,https://127.0.0.1/path")
    assert len(known) == 3


@given(
    st.from_regex(urls._PLAIN_URL, fullmatch=True)
    | st.builds(
        "http://{}:{}".format,
        st.lists(
            st.integers(0, 300).map(str) | st.from_regex(r"[a-z0-9-]{1,70}", fullmatch=True), min_size=1
        ).map(".".join),
        st.integers(0, 70_000),
    )
)
def test_an_address_is_taken_if_httpx_takes_it_and_its_port_can_be(url: str) -> None:
    """Most are known to be good without httpx, whose import would take a third of a command's time."""
    try:
        parsed = httpx.URL(url.strip())
        is_good = bool(parsed.host.encode("idna")) and (parsed.port or 0) < 65_536
    except (httpx.InvalidURL, UnicodeError):
        is_good = False
    if is_good:
        assert [str(each) for each in parse_urls(url)] == [url.strip().rstrip("/")]
    else:
        with pytest.raises(ValueError, match="is not a registry's URL"):
            parse_urls(url)
