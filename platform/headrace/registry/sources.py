"""The registries of other datacenters, which a registry asks for what it does not have.

A mirrored value has an id that its source datacenter's registry assigned. `Sources.find` asks all sources for
one id; `Sources.registrations` lists what one source has, for `registry.copying`. Owns the requests to them,
with their bounds, and what is remembered of their answers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import httpx

from headrace.registry import errors
from headrace.registry.bounded_cache import BoundedCache
from headrace.registry.client import SchemaConflictError, same_schema
from headrace.registry.errors import MEDIA_TYPE, RegistryError
from headrace.registry.strict_json import shown
from headrace.registry.urls import NamedUrl

SOURCES_MAX: Final = 64
ANSWER_WAIT_MAX_S: Final = 3.0
"""Of one source; below what clients wait for this registry."""
LIST_WAIT_MAX_S: Final = 30.0
UNREACHABLE_PAUSE_S: Final = 10.0
"""How long a source that did not answer is not asked for an id."""
ANSWER_MAX_BYTES: Final = 64 << 20
FOUND_MAX_BYTES: Final = 16 << 20
"""Of schemas that sources answered and that are kept in memory."""
MISSING_KEPT_S: Final = 5.0
MISSING_MAX: Final = 10_000
SEARCHES_AT_ONCE_MAX: Final = 8
"""Each occupies one of the web framework's threads."""
CONTRADICTED_MAX: Final = 1_000
PAGE: Final = 100
REGISTRATIONS_MAX: Final = 20_000
"""Versions that are copied of one source."""
HERE: Final = NamedUrl("this registry")


class SourceError(Exception):
    """A source did not answer, or not as a registry does. The message names its datacenter."""


class Registration(NamedTuple):
    """One version of a subject at a source."""

    subject: str
    schema_id: int
    text: str


class Sources:
    """`urls` are the other registries, with their datacenters' names. Thread-safe."""

    def __init__(
        self,
        urls: Sequence[NamedUrl],
        *,
        transport: httpx.BaseTransport | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.urls = tuple(urls)
        self._clock_s = clock_s
        self._http = httpx.Client(
            timeout=ANSWER_WAIT_MAX_S,
            transport=transport,
            trust_env=False,
            verify=any(not each.url.startswith("http:") for each in urls),
            headers={"Accept": f"{MEDIA_TYPE}, application/json"},
        )
        self._searches = threading.BoundedSemaphore(SEARCHES_AT_ONCE_MAX)
        self._found: BoundedCache[int, str] = BoundedCache(FOUND_MAX_BYTES)
        self._lock = threading.Lock()
        self._missing_until_s: dict[int, float] = {}
        self._contradicted: dict[int, None] = {}
        self._unreachable: dict[str, tuple[float, str]] = {}  # url → until when it is not asked, and why

    def close(self) -> None:
        self._http.close()

    def contradicts(self, schema_id: int) -> bool:
        """Whether an id may be another schema at a source than here: then `find` compares them each time."""
        return schema_id in self._contradicted

    def note_contradiction(self, schema_id: int) -> None:
        """Makes `contradicts` true of an id."""
        with self._lock:
            while len(self._contradicted) >= CONTRADICTED_MAX:
                del self._contradicted[next(iter(self._contradicted))]
            self._contradicted[schema_id] = None
        self._found.drop(schema_id)

    def find(self, schema_id: int, here: str | None = None) -> str | None:
        """Returns the schema that the sources have for an id; None if all answered that they have none.

        `here`: what this registry itself has, to be compared. Raises `SchemaConflictError` if two of them
        have different schemas, `RegistryError` 40403 that names the sources that did not answer if the others
        have none, and `BUSY` if too many searches run already.
        """
        if here is None and (kept := self._kept(schema_id)) is not None:
            return kept or None
        if not self._searches.acquire(timeout=ANSWER_WAIT_MAX_S):
            message = f"{SEARCHES_AT_ONCE_MAX} ids are looked up in other datacenters already: retry"
            raise RegistryError(errors.BUSY, message)
        try:
            return self._search(schema_id, here)
        finally:
            self._searches.release()

    def registrations(self, source: NamedUrl) -> Iterator[list[Registration]]:
        """Yields all versions that a source has, in pieces, sorted by subject. Raises `SourceError`."""
        for offset in range(0, REGISTRATIONS_MAX, PAGE):
            path = f"/schemas?offset={offset}&limit={PAGE}"
            listed = self._get(source, path, LIST_WAIT_MAX_S)
            try:
                yield [Registration(str(v["subject"]), int(v["id"]), str(v["schema"])) for v in listed]
            except (KeyError, TypeError, ValueError, OverflowError):
                raise SourceError(f"{source} answered {path} with {shown(listed)}") from None
            if len(listed) < PAGE:
                return
        raise SourceError(f"{source} has more than {REGISTRATIONS_MAX} versions: the rest is not copied")

    def _kept(self, schema_id: int) -> str | None:
        """Returns what was found lately; "" if it was missing everywhere."""
        found = self._found.get(schema_id)
        if found is not None:
            return found
        with self._lock:
            return "" if self._clock_s() < self._missing_until_s.get(schema_id, 0.0) else None

    def _search(self, schema_id: int, here: str | None) -> str | None:
        answered: tuple[NamedUrl, str] | None = None
        silent: list[str] = []
        for source in self.urls:
            try:
                text = self._text_at(source, schema_id)
            except SourceError as error:
                silent.append(str(error))
                continue
            if text is None:
                continue
            if answered is not None and not same_schema(answered[1], text):
                raise SchemaConflictError(schema_id, answered, (source, text))
            answered = answered or (source, text)
        # Last: what is here may be a copy of one of the sources', whose names say more.
        if here is not None and answered is not None and not same_schema(here, answered[1]):
            raise SchemaConflictError(schema_id, (HERE, here), answered)
        if answered is None and here is not None:
            answered = (HERE, here)
        if answered is not None:
            if not silent:  # they may contradict it once they answer
                self._found.put(schema_id, answered[1], 4 * len(answered[1]) + 400)
            return answered[1]
        if silent:
            message = f"Schema {schema_id} not found here; {'; '.join(silent)}"
            raise RegistryError(errors.SCHEMA_NOT_FOUND, message)
        self._remember_missing(schema_id)
        return None

    def _remember_missing(self, schema_id: int) -> None:
        with self._lock:
            self._missing_until_s.pop(schema_id, None)
            while len(self._missing_until_s) >= MISSING_MAX:
                del self._missing_until_s[next(iter(self._missing_until_s))]
            self._missing_until_s[schema_id] = self._clock_s() + MISSING_KEPT_S

    def _text_at(self, source: NamedUrl, schema_id: int) -> str | None:
        """Returns what a source itself has, None if nothing. Raises `SourceError`."""
        until_s, why = self._unreachable.get(source.url, (0.0, ""))
        if self._clock_s() < until_s:
            raise SourceError(why)
        try:
            # `local`: two registries that ask each other must not do so for ever.
            content = self._get(source, f"/schemas/ids/{schema_id}?local=true", ANSWER_WAIT_MAX_S)
        except _NotFoundError:
            return None
        except SourceError as error:
            self._unreachable[source.url] = (self._clock_s() + UNREACHABLE_PAUSE_S, str(error))
            raise
        if not isinstance(content, dict) or not isinstance(content.get("schema"), str):
            raise SourceError(f"{source} answered schema {schema_id} with {shown(content)}")
        return str(content["schema"])

    def _get(self, source: NamedUrl, path: str, timeout_s: float) -> Any:
        """Returns the response's content. Raises `SourceError`."""
        received = bytearray()
        deadline_s = self._clock_s() + timeout_s  # of the whole answer: httpx bounds each piece of it
        try:
            with self._http.stream("GET", source.url + path, timeout=timeout_s) as response:
                for chunk in response.iter_bytes():
                    received += chunk
                    if len(received) > ANSWER_MAX_BYTES:
                        raise SourceError(f"{source} answered more than {ANSWER_MAX_BYTES} bytes")
                    if self._clock_s() > deadline_s:
                        raise SourceError(f"{source} did not answer {path} within {timeout_s:g} s")
        except httpx.HTTPError as error:
            raise SourceError(f"{source} did not answer: {error or type(error).__name__}") from None
        try:
            content = json.loads(received)
        except (ValueError, RecursionError):
            content = None
        if response.is_success and content is not None:
            return content
        if response.status_code == 404 and isinstance(content, dict):
            raise _NotFoundError(f"{source} has nothing at {path}")
        raise SourceError(f"{source} answered {path} with HTTP {response.status_code}: {shown(content)}")


class _NotFoundError(SourceError):
    """The source answered that it has no such thing."""
