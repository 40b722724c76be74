"""Talks to schema registries: ours, or anybody's that speaks Confluent's REST interface.

Given several addresses it takes the next one when one does not answer. A schema id that one registry does
not know is asked of the others too: with ids that follow from the content (ours) a value mirrored from
another datacenter can be read by whichever registry has its schema.

What can never change is cached: the schema of an id, the id of a registered schema. May be shared by threads.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import httpx

from headrace.registry import errors
from headrace.registry.errors import RegistryError, RegistryUnavailableError

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
DEFAULT_TIMEOUT_S: Final = 10.0
DEFAULT_RETRY_ROUNDS: Final = 3
RETRY_PAUSE_S: Final = 0.2
RETRY_PAUSE_MAX_S: Final = 2.0
CACHED_SCHEMAS_MAX: Final = 10_000


class RegisteredSchema(NamedTuple):
    """One version of a subject. `schema` is Avro's JSON text."""

    subject: str
    version: int
    schema_id: int
    schema: str


class SchemaRegistryClient:
    """A client of one registry, or of several (`urls`, tried in this order; the last that answered comes
    first).

    `timeout_s` bounds each request; when no registry answers, all are tried `retry_rounds` times with
    growing pauses before `RegistryUnavailableError`. A refusal raises `RegistryError` with Confluent's
    `error_code`.
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
        listed = urls.split(",") if isinstance(urls, str) else list(urls)
        self.urls = [url.strip().rstrip("/") for url in listed if url.strip()]
        if not self.urls:
            raise ValueError("a schema registry client needs at least one URL, such as http://127.1.0.3:8081")
        self._retry_rounds = retry_rounds
        self._sleep = sleep
        self._http = httpx.Client(
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
            # Reading the authorities costs as much as fifty requests.
            verify=any(not url.startswith("http:") for url in self.urls),
            headers={"Accept": f"{MEDIA_TYPE}, application/json", "Content-Type": MEDIA_TYPE},
        )
        self._lock = threading.Lock()
        self._schemas: dict[int, str] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # schemas

    def register(self, subject: str, schema: str | dict[str, Any], *, normalize: bool = False) -> int:
        """Registers a schema under a subject, if it is not there yet; answers its id. Raises `RegistryError`
        409 if it may not follow the earlier versions, 42201 if it is no schema."""
        text = _text(schema)
        known = self._ids.get((subject, text))
        if known is not None:
            return known
        query = "?normalize=true" if normalize else ""
        answer = self._request("POST", f"/subjects/{_q(subject)}/versions{query}", {"schema": text})
        schema_id = int(answer["id"])
        with self._lock:
            self._make_room(self._ids)
            self._ids[subject, text] = schema_id
        return schema_id

    def get_by_id(self, schema_id: int) -> str:
        """The schema's text. Raises `RegistryError` 40403 if none of the registries knows the id."""
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        text = str(self._request("GET", f"/schemas/ids/{schema_id}", ask_all=True)["schema"])
        with self._lock:
            self._make_room(self._schemas)
            self._schemas[schema_id] = text
        return text

    def lookup(self, subject: str, schema: str | dict[str, Any]) -> RegisteredSchema:
        """The version of the subject that is this schema; `RegistryError` 40401, 40403 if there is none.
        Registers nothing."""
        return _registered(self._request("POST", f"/subjects/{_q(subject)}", {"schema": _text(schema)}))

    def latest(self, subject: str) -> RegisteredSchema:
        return self.version(subject, "latest")

    def version(self, subject: str, version: int | str) -> RegisteredSchema:
        return _registered(self._request("GET", f"/subjects/{_q(subject)}/versions/{version}"))

    def subjects(self) -> list[str]:
        return list(self._request("GET", "/subjects"))

    def versions(self, subject: str) -> list[int]:
        return list(self._request("GET", f"/subjects/{_q(subject)}/versions"))

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Answers the deleted version numbers. `permanent` needs a deletion without it first."""
        flag = "?permanent=true" if permanent else ""
        versions = list(self._request("DELETE", f"/subjects/{_q(subject)}{flag}"))
        with self._lock:
            self._ids = {key: value for key, value in self._ids.items() if key[0] != subject}
        return versions

    def delete_version(self, subject: str, version: int | str, *, permanent: bool = False) -> int:
        flag = "?permanent=true" if permanent else ""
        gone = int(self._request("DELETE", f"/subjects/{_q(subject)}/versions/{version}{flag}"))
        with self._lock:
            self._ids = {key: value for key, value in self._ids.items() if key[0] != subject}
        return gone

    # compatibility and configuration

    def check_compatibility(
        self, subject: str, schema: str | dict[str, Any], *, version: int | str = "latest"
    ) -> list[str]:
        """Why the schema may not follow that version at the subject's level; empty if it may. A subject
        without versions takes anything."""
        path = f"/compatibility/subjects/{_q(subject)}/versions/{version}?verbose=true"
        try:
            answer = self._request("POST", path, {"schema": _text(schema)})
        except RegistryError as error:
            if error.error_code == errors.SUBJECT_NOT_FOUND:
                return []
            raise
        if answer["is_compatible"]:
            return []
        return [str(message) for message in answer.get("messages") or ["incompatible"]]

    def config(self, subject: str | None = None) -> str:
        """The compatibility level in force, of a subject or globally."""
        path = "/config" if subject is None else f"/config/{_q(subject)}?defaultToGlobal=true"
        return str(self._request("GET", path)["compatibilityLevel"])

    def own_config(self, subject: str) -> str | None:
        """The level set for this very subject; None where the global one is in force."""
        try:
            return str(self._request("GET", f"/config/{_q(subject)}")["compatibilityLevel"])
        except RegistryError as error:
            if error.error_code == errors.SUBJECT_LEVEL_NOT_CONFIGURED:
                return None
            raise

    def delete_config(self, subject: str) -> None:
        """Lets the global level be in force for the subject again."""
        self._request("DELETE", f"/config/{_q(subject)}")

    def set_config(self, level: str, subject: str | None = None) -> None:
        path = "/config" if subject is None else f"/config/{_q(subject)}"
        self._request("PUT", path, {"compatibility": level})

    # inside

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, ask_all: bool = False
    ) -> Any:
        pause_s = RETRY_PAUSE_S
        for last_round in [False] * (self._retry_rounds - 1) + [True]:
            failures: list[str] = []
            unknown: RegistryError | None = None
            for url in list(self.urls):
                try:
                    answer = _answer(self._http.request(method, url + path, json=body))
                except httpx.TransportError as error:
                    failures.append(f"{url}: {error or type(error).__name__}")
                    continue
                except RegistryError as error:
                    if error.retriable:
                        failures.append(f"{url}: {error}")
                        continue
                    if not ask_all:
                        raise
                    unknown = error
                    continue
                if self.urls[0] != url:
                    self._prefer(url)
                return answer
            if unknown is not None and (last_round or not failures):
                raise unknown
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


def _answer(response: httpx.Response) -> Any:
    try:
        content = response.json()
    except ValueError:
        content = None
    if response.is_success and content is not None:
        return content
    if isinstance(content, dict) and isinstance(content.get("error_code"), int):
        raise RegistryError(content["error_code"], str(content.get("message", "")))
    raise RegistryError(
        response.status_code, f"unexpected answer from {response.url}: {response.text[:200]!r}"
    )


def _registered(answer: dict[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(answer["subject"], int(answer["version"]), int(answer["id"]), answer["schema"])


def _text(schema: str | dict[str, Any]) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def _q(subject: str) -> str:
    return quote(subject, safe="")
