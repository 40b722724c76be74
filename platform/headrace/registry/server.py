"""Confluent's REST interface over HTTP: paths, media types, error bodies. What the requests mean is
`registry.service`.

Handlers are plain functions, so the web framework runs them in its threads; they may wait for ZooKeeper.
"""

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, Final
from urllib.parse import unquote

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.registry import errors
from headrace.registry.errors import RegistryError
from headrace.registry.schemas import SCHEMA_MAX_BYTES
from headrace.registry.service import AVRO, Registry
from headrace.registry.store import SchemaStore

logger = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
BODY_MAX_BYTES: Final = 2 * SCHEMA_MAX_BYTES
"""JSON in JSON: escaping may double it."""
PAGE_DEFAULT: Final = -1


class RegistryResponse(JSONResponse):
    media_type = MEDIA_TYPE


def no(error_code: int, message: str) -> RegistryResponse:
    status = error_code // 100 if error_code > 999 else error_code
    return RegistryResponse({"error_code": error_code, "message": message}, status_code=status)


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request, whatever its Content-Type says (`curl -d` says a form)."""
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


def _subject(subject: Annotated[str, Path()]) -> str:
    return unquote(subject)


Subject = Annotated[str, Depends(_subject)]
Body = Annotated[dict[str, Any], Depends(read_body)]
Flag = Annotated[bool, Query()]


def page(items: list[Any], offset: int, limit: int) -> list[Any]:
    return items[offset:] if limit < 0 else items[offset : offset + limit]


class RawPath:
    """Routes by the path as it was sent: a subject may hold an escaped '/', which must not cut the path in
    two.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self._app(scope, receive, send)


def create_app(session: ZooKeeperSession) -> FastAPI:
    """The web application over a started session."""
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
    _add_root(app, session)
    registry = Registry(store)
    _add_subjects(app, registry)
    _add_schemas(app, registry)
    _add_compatibility(app, registry)
    _add_config(app, registry)
    _add_mode(app, registry)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RegistryError)
    async def refused(_: Request, error: RegistryError) -> Response:
        return no(error.error_code, error.message)

    @app.exception_handler(CoordinationError)
    async def store_failed(_: Request, error: CoordinationError) -> Response:
        logger.warning("a request failed: %s", error)
        return no(errors.STORE_FAILED, f"Error in the backend data store: {error}")

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return no(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def not_served(_: Request, error: HTTPException) -> Response:
        return no(error.status_code, f"HTTP {error.status_code} {error.detail}")

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return no(500, f"Internal error: {type(error).__name__}; the registry's log has more")


def _add_root(app: FastAPI, session: ZooKeeperSession) -> None:
    @app.get("/")
    def health() -> Response:
        connected = session.state is SessionState.CONNECTED
        answer = {"service": "headrace-registry", "zookeeper": session.state.value}
        return RegistryResponse(answer, status_code=200 if connected else 503)

    @app.get("/contexts")
    def contexts() -> list[str]:
        return ["."]


def _add_subjects(app: FastAPI, registry: Registry) -> None:
    @app.get("/subjects")
    def list_subjects(
        subject_prefix: Annotated[str, Query(alias="subjectPrefix")] = "",
        deleted: Flag = False,
        deleted_only: Annotated[bool, Query(alias="deletedOnly")] = False,
        deleted_only_python: Annotated[bool, Query(alias="deleted_only")] = False,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: int = PAGE_DEFAULT,
    ) -> list[str]:
        only = deleted_only or deleted_only_python
        # Confluent's clients send the prefix ":*:" to say "in any context"; there is one context here.
        prefix = subject_prefix.removeprefix(":*:")
        return page(registry.subjects(prefix=prefix, deleted=deleted, deleted_only=only), offset, limit)

    @app.post("/subjects/{subject}")
    def lookup(
        subject: Subject, body: Body, deleted: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return registry.lookup(subject, body, deleted=deleted)

    @app.delete("/subjects/{subject}")
    def delete_subject(subject: Subject, permanent: Flag = False) -> list[int]:
        return registry.delete_subject(subject, permanent=permanent)

    @app.get("/subjects/{subject}/versions")
    def list_versions(
        subject: Subject,
        deleted: Flag = False,
        deleted_only: Annotated[bool, Query(alias="deletedOnly")] = False,
        deleted_only_python: Annotated[bool, Query(alias="deleted_only")] = False,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: int = PAGE_DEFAULT,
    ) -> list[int]:
        only = deleted_only or deleted_only_python
        return page(registry.versions(subject, deleted=deleted, deleted_only=only), offset, limit)

    @app.post("/subjects/{subject}/versions")
    def register(subject: Subject, body: Body, normalize: Flag = False) -> dict[str, Any]:
        return registry.register(subject, body, normalize=normalize)

    @app.get("/subjects/{subject}/versions/{version}")
    def get_version(subject: Subject, version: str, deleted: Flag = False) -> dict[str, Any]:
        return registry.version(subject, version, deleted=deleted)

    @app.get("/subjects/{subject}/versions/{version}/schema")
    def get_version_schema(subject: Subject, version: str, deleted: Flag = False) -> Response:
        return Response(registry.version(subject, version, deleted=deleted)["schema"], media_type=MEDIA_TYPE)

    @app.get("/subjects/{subject}/versions/{version}/referencedby")
    def referenced_by(subject: Subject, version: str) -> list[int]:
        registry.version(subject, version)
        return []  # references are refused at registration

    @app.delete("/subjects/{subject}/versions/{version}")
    def delete_version(subject: Subject, version: str, permanent: Flag = False) -> int:
        return registry.delete_version(subject, version, permanent=permanent)


def _add_schemas(app: FastAPI, registry: Registry) -> None:
    @app.get("/schemas")
    def all_schemas(
        subject_prefix: Annotated[str, Query(alias="subjectPrefix")] = "",
        deleted: Flag = False,
        latest_only: Annotated[bool, Query(alias="latestOnly")] = False,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: int = PAGE_DEFAULT,
    ) -> list[dict[str, Any]]:
        prefix = subject_prefix.removeprefix(":*:")
        found = registry.all_schemas(prefix=prefix, deleted=deleted, latest_only=latest_only)
        return page(found, offset, limit)

    @app.get("/schemas/types")
    def types() -> list[str]:
        return [AVRO]

    @app.get("/schemas/ids/{schema_id}")
    def by_id(schema_id: int) -> dict[str, Any]:
        return {"schemaType": AVRO, "schema": registry.schema(schema_id)}

    @app.get("/schemas/ids/{schema_id}/schema")
    def text_by_id(schema_id: int) -> Response:
        return Response(registry.schema(schema_id), media_type=MEDIA_TYPE)

    @app.get("/schemas/ids/{schema_id}/subjects")
    def subjects_by_id(
        schema_id: int,
        subject: str | None = None,
        deleted: Flag = False,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: int = PAGE_DEFAULT,
    ) -> list[str]:
        uses = registry.uses(schema_id, subject=subject, deleted=deleted)
        return page(list(dict.fromkeys(use["subject"] for use in uses)), offset, limit)

    @app.get("/schemas/ids/{schema_id}/versions")
    def versions_by_id(
        schema_id: int,
        subject: str | None = None,
        deleted: Flag = False,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: int = PAGE_DEFAULT,
    ) -> list[dict[str, Any]]:
        return page(registry.uses(schema_id, subject=subject, deleted=deleted), offset, limit)


def _add_compatibility(app: FastAPI, registry: Registry) -> None:
    def answer(reasons: list[str], verbose: bool) -> dict[str, Any]:
        return {"is_compatible": not reasons, **({"messages": reasons} if verbose else {})}

    @app.post("/compatibility/subjects/{subject}/versions")
    def check_all(
        subject: Subject, body: Body, verbose: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return answer(registry.check(subject, None, body), verbose)

    @app.post("/compatibility/subjects/{subject}/versions/{version}")
    def check_one(
        subject: Subject, version: str, body: Body, verbose: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return answer(registry.check(subject, version, body), verbose)


def _add_config(app: FastAPI, registry: Registry) -> None:
    @app.get("/config")
    def get_global() -> dict[str, Any]:
        return registry.level(None)

    @app.put("/config")
    def put_global(body: Body) -> dict[str, Any]:
        return registry.set_level(None, body)

    @app.delete("/config")
    def delete_global() -> dict[str, Any]:
        return registry.delete_level(None)

    @app.get("/config/{subject}")
    def get_config(
        subject: Subject, default_to_global: Annotated[bool, Query(alias="defaultToGlobal")] = False
    ) -> dict[str, Any]:
        return registry.level(subject, default_to_global=default_to_global)

    @app.put("/config/{subject}")
    def put_config(subject: Subject, body: Body) -> dict[str, Any]:
        return registry.set_level(subject, body)

    @app.delete("/config/{subject}")
    def delete_config(subject: Subject) -> dict[str, Any]:
        return registry.delete_level(subject)


def _add_mode(app: FastAPI, registry: Registry) -> None:
    @app.get("/mode")
    def get_global_mode() -> dict[str, str]:
        return registry.mode(None)

    @app.put("/mode")
    def put_global_mode(body: Body, force: Flag = False) -> dict[str, str]:
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
    def put_mode(subject: Subject, body: Body, force: Flag = False) -> dict[str, str]:
        return registry.set_mode(subject, body)

    @app.delete("/mode/{subject}")
    def delete_mode(subject: Subject) -> dict[str, str]:
        return registry.delete_mode(subject)
