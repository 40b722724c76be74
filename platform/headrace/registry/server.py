"""Confluent's REST interface over HTTP: paths, parameters, media types, error bodies.

`registry.service` implements the requests. Handlers are plain functions, so the web framework runs them in
its threads: they may wait for ZooKeeper.
"""

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.registry import errors
from headrace.registry.errors import MEDIA_TYPE, RegistryError
from headrace.registry.schemas import SCHEMA_MAX_BYTES
from headrace.registry.service import AVRO, SchemaRegistry
from headrace.registry.store import SchemaStore

logger = logging.getLogger(__name__)

BODY_MAX_BYTES: Final = 2 * SCHEMA_MAX_BYTES
"""A schema is a JSON string inside JSON: escaping may double its size."""

_T = TypeVar("_T")


class RegistryResponse(JSONResponse):
    media_type = MEDIA_TYPE


def error_response(error_code: int, message: str) -> RegistryResponse:
    status = RegistryError(error_code, message).status
    return RegistryResponse({"error_code": error_code, "message": message}, status_code=status)


async def read_body(request: Request) -> dict[str, Any]:
    """Reads a request's JSON object, whatever its Content-Type is (`curl -d` sends that of a form)."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > BODY_MAX_BYTES:
            raise RegistryError(413, f"The request's body is longer than {BODY_MAX_BYTES} bytes")
    try:
        body = json.loads(received)
    except (ValueError, RecursionError) as error:
        raise RegistryError(400, f"The request's body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RegistryError(400, "The request's body must be a JSON object")
    return body


# --- parameters ---


def _subject(subject: Annotated[str, Path()]) -> str:
    return unquote(subject)


def _subject_prefix(prefix: Annotated[str, Query(alias="subjectPrefix")] = "") -> str:
    # Confluent's clients send the prefix ":*:" for "in any context"; there is only one context here.
    return prefix.removeprefix(":*:")


def _deleted_only(
    deleted_only: Annotated[bool, Query(alias="deletedOnly")] = False,
    deleted_only_python: Annotated[bool, Query(alias="deleted_only")] = False,
) -> bool:
    return deleted_only or deleted_only_python


class Page:
    """The part of a list to return; all of it by default."""

    def __init__(self, offset: Annotated[int, Query(ge=0)] = 0, limit: int = -1) -> None:
        self._slice = slice(offset, None if limit < 0 else offset + limit)

    def of(self, items: list[_T]) -> list[_T]:
        return items[self._slice]


Subject = Annotated[str, Depends(_subject)]
SubjectPrefix = Annotated[str, Depends(_subject_prefix)]
DeletedOnly = Annotated[bool, Depends(_deleted_only)]
Paging = Annotated[Page, Depends()]
Body = Annotated[dict[str, Any], Depends(read_body)]
Flag = Annotated[bool, Query()]


# --- the application ---


class RawPath:
    """Routes by the path as it was sent: an escaped '/' in a subject must not split the path."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self._app(scope, receive, send)


def create_app(session: ZooKeeperSession) -> FastAPI:
    """Returns the web application over a started session."""
    store = SchemaStore(session)
    store.prepare()
    session.on_restored(store.prepare)
    app = FastAPI(
        title="headrace schema registry",
        default_response_class=RegistryResponse,
        openapi_url=None,
        docs_url=None,
    )
    app.add_middleware(RawPath)
    _add_error_handlers(app)
    _add_root_routes(app, session)
    registry = SchemaRegistry(store)
    _add_subject_routes(app, registry)
    _add_schema_routes(app, registry)
    _add_compatibility_routes(app, registry)
    _add_config_routes(app, registry)
    _add_mode_routes(app, registry)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RegistryError)
    async def on_registry_error(_: Request, error: RegistryError) -> Response:
        return error_response(error.error_code, error.message)

    @app.exception_handler(CoordinationError)
    async def on_store_failed(_: Request, error: CoordinationError) -> Response:
        logger.warning("a request failed: %s", error)
        return error_response(errors.STORE_FAILED, f"Error in the backend data store: {error}")

    @app.exception_handler(RequestValidationError)
    async def on_invalid_parameter(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return error_response(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def on_path_not_found_or_method_not_allowed(_: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, f"HTTP {error.status_code} {error.detail}")

    @app.exception_handler(Exception)
    async def on_internal_error(_: Request, error: Exception) -> Response:
        return error_response(500, f"Internal error: {type(error).__name__}; see the registry's log")


# --- routes ---


def _add_root_routes(app: FastAPI, session: ZooKeeperSession) -> None:
    @app.get("/")
    def get_health() -> Response:
        connected = session.state is SessionState.CONNECTED
        health = {"service": "headrace-registry", "zookeeper": session.state.value}
        return RegistryResponse(health, status_code=200 if connected else 503)

    @app.get("/contexts")
    def list_contexts() -> list[str]:
        return ["."]


def _add_subject_routes(app: FastAPI, registry: SchemaRegistry) -> None:
    @app.get("/subjects")
    def list_subjects(
        prefix: SubjectPrefix, only: DeletedOnly, page: Paging, deleted: Flag = False
    ) -> list[str]:
        return page.of(registry.subjects(prefix=prefix, deleted=deleted, deleted_only=only))

    @app.post("/subjects/{subject}")
    def look_up_schema(
        subject: Subject, body: Body, deleted: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return registry.lookup(subject, body, deleted=deleted)

    @app.delete("/subjects/{subject}")
    def delete_subject(subject: Subject, permanent: Flag = False) -> list[int]:
        return registry.delete_subject(subject, permanent=permanent)

    @app.get("/subjects/{subject}/versions")
    def list_versions(subject: Subject, only: DeletedOnly, page: Paging, deleted: Flag = False) -> list[int]:
        return page.of(registry.versions(subject, deleted=deleted, deleted_only=only))

    @app.post("/subjects/{subject}/versions")
    def register_schema(subject: Subject, body: Body, normalize: Flag = False) -> dict[str, Any]:
        return registry.register(subject, body, normalize=normalize)

    @app.get("/subjects/{subject}/versions/{version}")
    def get_version(subject: Subject, version: str, deleted: Flag = False) -> dict[str, Any]:
        return registry.version(subject, version, deleted=deleted)

    @app.get("/subjects/{subject}/versions/{version}/schema")
    def get_schema_text_of_version(subject: Subject, version: str, deleted: Flag = False) -> Response:
        return Response(registry.version(subject, version, deleted=deleted)["schema"], media_type=MEDIA_TYPE)

    @app.get("/subjects/{subject}/versions/{version}/referencedby")
    def list_references_to_version(subject: Subject, version: str) -> list[int]:
        registry.version(subject, version)
        return []  # schemas with references are refused

    @app.delete("/subjects/{subject}/versions/{version}")
    def delete_version(subject: Subject, version: str, permanent: Flag = False) -> int:
        return registry.delete_version(subject, version, permanent=permanent)


def _add_schema_routes(app: FastAPI, registry: SchemaRegistry) -> None:
    @app.get("/schemas")
    def list_schemas(
        prefix: SubjectPrefix,
        page: Paging,
        deleted: Flag = False,
        latest_only: Annotated[bool, Query(alias="latestOnly")] = False,
    ) -> list[dict[str, Any]]:
        return page.of(registry.all_schemas(prefix=prefix, deleted=deleted, latest_only=latest_only))

    @app.get("/schemas/types")
    def list_schema_types() -> list[str]:
        return [AVRO]

    @app.get("/schemas/ids/{schema_id}")
    def get_schema(schema_id: int) -> dict[str, Any]:
        return {"schemaType": AVRO, "schema": registry.schema(schema_id)}

    @app.get("/schemas/ids/{schema_id}/schema")
    def get_schema_text(schema_id: int) -> Response:
        return Response(registry.schema(schema_id), media_type=MEDIA_TYPE)

    @app.get("/schemas/ids/{schema_id}/subjects")
    def list_subjects_of_schema(
        schema_id: int, page: Paging, subject: str | None = None, deleted: Flag = False
    ) -> list[str]:
        uses = registry.uses(schema_id, subject=subject, deleted=deleted)
        return page.of(list(dict.fromkeys(use["subject"] for use in uses)))

    @app.get("/schemas/ids/{schema_id}/versions")
    def list_versions_of_schema(
        schema_id: int, page: Paging, subject: str | None = None, deleted: Flag = False
    ) -> list[dict[str, Any]]:
        return page.of(registry.uses(schema_id, subject=subject, deleted=deleted))


def _add_compatibility_routes(app: FastAPI, registry: SchemaRegistry) -> None:
    def result(problems: list[str], verbose: bool) -> dict[str, Any]:
        return {"is_compatible": not problems, **({"messages": problems} if verbose else {})}

    @app.post("/compatibility/subjects/{subject}/versions")
    def check_against_subject(
        subject: Subject, body: Body, verbose: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return result(registry.check(subject, None, body), verbose)

    @app.post("/compatibility/subjects/{subject}/versions/{version}")
    def check_against_version(
        subject: Subject, version: str, body: Body, verbose: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return result(registry.check(subject, version, body), verbose)


def _add_config_routes(app: FastAPI, registry: SchemaRegistry) -> None:
    @app.get("/config")
    def get_global_config() -> dict[str, Any]:
        return registry.level(None)

    @app.put("/config")
    def set_global_config(body: Body) -> dict[str, Any]:
        return registry.set_level(None, body)

    @app.delete("/config")
    def delete_global_config() -> dict[str, Any]:
        return registry.delete_level(None)

    @app.get("/config/{subject}")
    def get_config(
        subject: Subject, default_to_global: Annotated[bool, Query(alias="defaultToGlobal")] = False
    ) -> dict[str, Any]:
        return registry.level(subject, default_to_global=default_to_global)

    @app.put("/config/{subject}")
    def set_config(subject: Subject, body: Body) -> dict[str, Any]:
        return registry.set_level(subject, body)

    @app.delete("/config/{subject}")
    def delete_config(subject: Subject) -> dict[str, Any]:
        return registry.delete_level(subject)


def _add_mode_routes(app: FastAPI, registry: SchemaRegistry) -> None:
    @app.get("/mode")
    def get_global_mode() -> dict[str, str]:
        return registry.mode(None)

    @app.put("/mode")
    def set_global_mode(body: Body, force: Flag = False) -> dict[str, str]:
        return registry.set_mode(None, body)

    @app.delete("/mode")
    def delete_global_mode() -> dict[str, str]:
        return registry.delete_mode(None)

    @app.get("/mode/{subject}")
    def get_mode(
        subject: Subject, default_to_global: Annotated[bool, Query(alias="defaultToGlobal")] = False
    ) -> dict[str, str]:
        return registry.mode(subject, default_to_global=default_to_global)

    @app.put("/mode/{subject}")
    def set_mode(subject: Subject, body: Body, force: Flag = False) -> dict[str, str]:
        return registry.set_mode(subject, body)

    @app.delete("/mode/{subject}")
    def delete_mode(subject: Subject) -> dict[str, str]:
        return registry.delete_mode(subject)
