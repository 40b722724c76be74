"""The registry as a web application: its state, the routes, and an error body for whatever goes wrong.

`registry.routes` has the paths, `registry.parameters` what they read from a request, `registry.service` what
they do, `process.web` bounds connections.
"""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import ZooKeeperSession
from headrace.process.rendered import RenderedPage
from headrace.registry import errors, routes
from headrace.registry.errors import RegistryError
from headrace.registry.levels import Levels
from headrace.registry.page import page
from headrace.registry.parameters import RegistryResponse
from headrace.registry.service import SchemaRegistry
from headrace.registry.store import SchemaStore

logger = logging.getLogger(__name__)


def error_response(error_code: int, message: str) -> RegistryResponse:
    status = RegistryError(error_code, message).status
    return RegistryResponse({"error_code": error_code, "message": message}, status_code=status)


class RawPath:
    """Routes by the path as it was sent: an escaped '/' in a subject must not split the path."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self._app(scope, receive, send)


def create_app(store: SchemaStore, registry: SchemaRegistry, session: ZooKeeperSession) -> FastAPI:
    """Returns the web application of a registry over a started session."""
    store.prepare()
    session.on_restored(store.prepare)
    store.follow()
    app = FastAPI(
        title="headrace schema registry",
        default_response_class=RegistryResponse,
        openapi_url=None,
        docs_url=None,
    )
    app.add_middleware(RawPath)
    _add_error_handlers(app)
    routes.add_root(app, session, RenderedPage(lambda: page(session.state, store.known_subjects())))
    routes.add_subjects(app, registry)
    routes.add_schemas(app, registry)
    routes.add_compatibility(app, registry)
    levels = Levels(store)
    routes.add_config(app, levels)
    routes.add_modes(app, levels)
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
