"""The client of schema registries with Confluent's REST interface: headrace's, or any other.

With several URLs it tries the next one if a registry does not respond. A schema id is looked up at all of
them: headrace's ids follow from the schema, so a value mirrored from another datacenter can be read with any
registry that has its schema. Two schemas can have one id, though, each at a registry that never saw the other
one: then the answers differ, and that is an error.

What never changes is cached: the schema of an id, the id of a registered schema. Thread-safe.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

import httpx

from headrace.registry import errors
from headrace.registry.answers import content_of, level_in, list_of, problems_in
from headrace.registry.errors import MEDIA_TYPE, RegistryError, RegistryUnavailableError
from headrace.registry.schema_rules import InvalidSchemaError
from headrace.registry.strict_json import shown
from headrace.registry.urls import EXAMPLE_URL, NamedUrl, parse_urls

DEFAULT_TIMEOUT_S: Final = 10.0
DEFAULT_RETRY_ROUNDS: Final = 3
RETRY_PAUSE_S: Final = 0.2
RETRY_PAUSE_MAX_S: Final = 2.0
CACHED_SCHEMAS_MAX: Final = 10_000
COMPARE_TIMEOUT_S: Final = 3.0
"""How long a registry may take to confirm what another one answered."""
UNREACHABLE_PAUSE_S: Final = 30.0
"""How long a registry that did not answer is not asked to confirm anything."""

T = TypeVar("T")


class RegisteredSchema(NamedTuple):
    """One version of a subject. `schema` is Avro's JSON text."""

    subject: str
    version: int
    schema_id: int
    schema: str


class SchemaRegistryClient:
    """A client of one registry or several: `urls` are tried in order, the last one that responded first.

    `timeout_s` bounds each request. If no registry responds, all are tried `retry_rounds` times with growing
    pauses, then `RegistryUnavailableError` is raised. A refusal raises `RegistryError`. A URL may have its
    datacenter's name in front of it (`east=http://…`), for error messages.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry_rounds: int = DEFAULT_RETRY_ROUNDS,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        named = parse_urls(urls)
        self.urls = [each.url for each in named]
        self._named = {each.url: each for each in named}
        if not self.urls:
            raise ValueError(f"a schema registry client needs at least one URL, such as {EXAMPLE_URL}")
        self._retry_rounds = retry_rounds
        self._sleep = sleep
        self._http = httpx.Client(
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
            # Loading the CA certificates takes as long as fifty requests.
            verify=any(not url.startswith("http:") for url in self.urls),
            headers={"Accept": f"{MEDIA_TYPE}, application/json", "Content-Type": MEDIA_TYPE},
        )
        self._lock = threading.Lock()
        self._unreachable_until_s: dict[str, float] = {}
        self._schemas: dict[int, str] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- schemas ---

    def register(self, subject: str, schema: str | dict[str, Any], *, normalize: bool = False) -> int:
        """Registers a schema under a subject unless it is registered already; returns its id.

        Raises `RegistryError` 409 if it is incompatible with earlier versions, 42201 if it is invalid.
        """
        text = _text(schema)
        known = self._ids.get((subject, text))
        if known is not None:
            return known
        query = "?normalize=true" if normalize else ""
        path = f"/subjects/{_quoted(subject)}/versions{query}"
        schema_id = self._request("POST", path, {"schema": text}, read=lambda content: int(content["id"]))
        with self._lock:
            self._make_room(self._ids)
            self._ids[subject, text] = schema_id
            # This id means this schema, whatever another registry says.
            self._make_room(self._schemas)
            self._schemas[schema_id] = text
        return schema_id

    def get_by_id(self, schema_id: int) -> str:
        """Returns the schema's text. Raises `RegistryError` 40403 if none of the registries knows the id,
        `SchemaConflictError` if two of those that answer have different schemas for it."""
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        path = f"/schemas/ids/{schema_id}"
        answered, content = self._answer("GET", path, try_all=True)
        text = _schema_in(content, answered)
        for url in [each for each in self.urls if each != answered]:
            other = self._confirmation(url, path)
            if other is not None and not same_schema(text, other):
                raise SchemaConflictError(schema_id, (self._named[answered], text), (self._named[url], other))
        with self._lock:
            self._make_room(self._schemas)
            self._schemas[schema_id] = text
        return text

    def _confirmation(self, url: str, path: str) -> str | None:
        """Returns what one more registry has; None if it does not have it, or does not answer soon."""
        if time.monotonic() < self._unreachable_until_s.get(url, 0.0):
            return None
        try:
            return _schema_in(content_of(self._http.get(url + path, timeout=COMPARE_TIMEOUT_S)), url)
        except httpx.RequestError:
            self._unreachable_until_s[url] = time.monotonic() + UNREACHABLE_PAUSE_S
            return None
        except RegistryError:
            return None

    def lookup(self, subject: str, schema: str | dict[str, Any]) -> RegisteredSchema:
        """Returns the version of the subject that has this schema. Raises `RegistryError` 40401 or 40403."""
        body = {"schema": _text(schema)}
        return self._request("POST", f"/subjects/{_quoted(subject)}", body, read=_registered)

    def latest(self, subject: str) -> RegisteredSchema:
        return self.version(subject, "latest")

    def version(self, subject: str, version: int | str) -> RegisteredSchema:
        return self._request("GET", f"/subjects/{_quoted(subject)}/versions/{version}", read=_registered)

    def subjects(self, *, deleted_only: bool = False) -> list[str]:
        """`deleted_only`: those that were deleted, and not permanently."""
        query = "?deleted=true&deletedOnly=true" if deleted_only else ""
        return self._request("GET", f"/subjects{query}", read=list_of(str))

    def versions(self, subject: str, *, deleted_only: bool = False) -> list[int]:
        """Raises `RegistryError` 40401 without any."""
        query = "?deleted=true&deletedOnly=true" if deleted_only else ""
        return self._request("GET", f"/subjects/{_quoted(subject)}/versions{query}", read=list_of(int))

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Returns the deleted version numbers. `permanent` is possible only after a deletion without it."""
        return self._delete(subject, "", permanent, list_of(int))

    def delete_version(self, subject: str, version: int | str, *, permanent: bool = False) -> int:
        return self._delete(subject, f"/versions/{version}", permanent, int)

    def _delete(self, subject: str, path: str, permanent: bool, read: Callable[[Any], T]) -> T:
        flag = "?permanent=true" if permanent else ""
        deleted = self._request("DELETE", f"/subjects/{_quoted(subject)}{path}{flag}", read=read)
        with self._lock:
            self._ids = {key: value for key, value in self._ids.items() if key[0] != subject}
        return deleted

    # --- compatibility and configuration ---

    def check_compatibility(
        self, subject: str, schema: str | dict[str, Any], *, version: int | str | None = "latest"
    ) -> list[str]:
        """Returns the schema's incompatibilities with that version at the subject's level; None: with all
        that `register` compares it with, which a transitive level makes more than the newest.

        Every schema is compatible with a subject without versions.
        """
        which = "" if version is None else f"/{version}"
        path = f"/compatibility/subjects/{_quoted(subject)}/versions{which}?verbose=true"
        try:
            return self._request("POST", path, {"schema": _text(schema)}, read=problems_in)
        except RegistryError as error:
            if error.error_code == errors.SUBJECT_NOT_FOUND:
                return []
            raise

    def config(self, subject: str | None = None) -> str:
        """Returns the compatibility level that applies to a subject, or the global one."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}?defaultToGlobal=true"
        return self._request("GET", path, read=level_in)

    def own_config(self, subject: str) -> str | None:
        """Returns the level set for the subject itself; None if the global one applies."""
        try:
            return self._request("GET", f"/config/{_quoted(subject)}", read=level_in)
        except RegistryError as error:
            if error.error_code == errors.SUBJECT_LEVEL_NOT_CONFIGURED:
                return None
            raise

    def delete_config(self, subject: str) -> None:
        """Removes the subject's own level, so that the global one applies again."""
        self._request("DELETE", f"/config/{_quoted(subject)}", read=dict)

    def set_config(self, level: str, subject: str | None = None) -> None:
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        self._request("PUT", path, {"compatibility": level}, read=dict)

    # --- requests ---

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, read: Callable[[Any], T]
    ) -> T:
        """Returns what `read` makes of the first successful response's content."""
        url, content = self._answer(method, path, body)
        try:
            return read(content)
        except (LookupError, TypeError, ValueError, OverflowError):
            raise RegistryError(
                502, f"{url} answered {method} {path} with {shown(content)}: is a schema registry there?"
            ) from None

    def _answer(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, try_all: bool = False
    ) -> tuple[str, Any]:
        """Returns the URL and the content of the first successful response. `try_all`: tries the others after
        a refusal.
        """
        pause_s = RETRY_PAUSE_S
        for last_round in [False] * (self._retry_rounds - 1) + [True]:
            failures: list[str] = []
            refusal: RegistryError | None = None
            for url in list(self.urls):
                try:
                    content = content_of(self._http.request(method, url + path, json=body))
                except httpx.RequestError as error:
                    failures.append(f"{url}: {error or type(error).__name__}")
                    continue
                except RegistryError as error:
                    if error.retriable:
                        failures.append(f"{url}: {error}")
                        continue
                    if not try_all:
                        raise
                    refusal = error
                    continue
                if self.urls[0] != url:
                    self._prefer(url)
                return url, content
            if refusal is not None and (last_round or not failures):
                raise refusal
            if last_round:
                raise RegistryUnavailableError(
                    f"no schema registry answered {method} {path} ({'; '.join(failures)}); "
                    "is one running there?"
                )
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_PAUSE_MAX_S)
        raise AssertionError("the last round always returns or raises")

    def _prefer(self, url: str) -> None:
        with self._lock:
            self.urls = [url, *(other for other in self.urls if other != url)]

    @staticmethod
    def _make_room(cache: dict[Any, Any]) -> None:
        while len(cache) >= CACHED_SCHEMAS_MAX:
            del cache[next(iter(cache))]


def _schema_in(content: Any, url: str) -> str:
    if isinstance(content, dict) and isinstance(content.get("schema"), str):
        return str(content["schema"])
    raise RegistryError(502, f"unexpected response from {url}: no schema in {shown(content)}")


class SchemaConflictError(RegistryError):
    """Two registries have different schemas for one id: a value with this id can't be read for certain."""

    def __init__(self, schema_id: int, one: tuple[NamedUrl, str], other: tuple[NamedUrl, str]) -> None:
        self.schema_id = schema_id
        super().__init__(
            errors.ID_CONFLICT,
            f"schema id {schema_id} is {_short_name(one[1])} at {one[0]} and {_short_name(other[1])} at "
            f"{other[0]}. Read the values of each datacenter with its own registry alone; change one of the "
            "two schemas, for example its doc, for what is written from now on",
        )


def same_schema(one: str, other: str) -> bool:
    """Returns whether two texts are one schema, however they are spelled."""
    if one == other:
        return True
    from headrace.registry import schemas  # Avro's libraries: Terraform's provider has none

    try:
        return schemas.parse(one).is_same_as(schemas.parse(other))
    except InvalidSchemaError:
        return False


def _short_name(text: str) -> str:
    from headrace.registry import schemas

    try:
        return schemas.record_name(text)
    except InvalidSchemaError:
        return shown(text)


def _registered(content: dict[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(
        str(content["subject"]), int(content["version"]), int(content["id"]), str(content["schema"])
    )


def _text(schema: str | dict[str, Any]) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")
