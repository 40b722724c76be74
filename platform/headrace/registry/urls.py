"""The URLs of registries, as options, settings and site files have them.

Owns what a registry's URL is. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

URL_SHOWN_MAX: Final = 200
EXAMPLE_URL: Final = "http://127.1.0.3:8081"
PORT_MAX: Final = 65_535

_NAMED_URL: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(https?://.*)")
_URL: Final = re.compile(r"https?://[^/\s]", re.IGNORECASE)
_OCTET: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL: Final = r"[a-z][a-z0-9]{0,62}"
_PLAIN_URL: Final = re.compile(
    rf"https?://(?:(?:{_OCTET}\.){{3}}{_OCTET}|(?:{_LABEL}\.){{0,2}}{_LABEL})(?::([0-9]{{1,5}}))?/?\Z"
)
"""What most are: an IPv4 address, or a short name in small letters. `httpx` takes all of these."""


class NamedUrl(NamedTuple):
    """A registry's URL, and the datacenter that it belongs to, if that is known."""

    url: str
    datacenter: str | None = None

    def __str__(self) -> str:
        return self.url if self.datacenter is None else f"{self.datacenter} ({self.url})"


def parse_urls(urls: str | Sequence[str]) -> list[NamedUrl]:
    """Returns the registries of a list such as "http://127.1.0.3:8081,west=http://127.2.0.3:8081".

    Raises `ValueError` for what is not a URL of HTTP.
    """
    listed = urls.split(",") if isinstance(urls, str) else list(urls)
    found: list[NamedUrl] = []
    for text in (url.strip() for url in listed):
        named = _NAMED_URL.fullmatch(text)
        if named is not None:
            found.append(NamedUrl(named[2].rstrip("/"), named[1]))
        elif text:
            found.append(NamedUrl(text.rstrip("/")))
    for url, _ in found:
        if not _is_url(url):
            raise ValueError(f"{url[:URL_SHOWN_MAX]!r} is not a registry's URL, such as {EXAMPLE_URL}")
    return found


def _is_url(text: str) -> bool:
    plain = _PLAIN_URL.match(text)
    if plain is not None:
        return int(plain[1] or 0) <= PORT_MAX
    # Imported here because it is slow to import, and most commands of the CLI need none of it.
    import httpx

    try:
        url = httpx.URL(text)
        return bool(_URL.match(text)) and bool(url.host.encode("idna")) and (url.port or 0) <= PORT_MAX
    except (httpx.InvalidURL, UnicodeError):  # idna's own errors are UnicodeErrors
        return False
