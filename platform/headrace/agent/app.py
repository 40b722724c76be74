"""The agent over HTTP: paths, parameters, status codes, error bodies. `keeper` does what is requested.

Every response but a log and the page is JSON; an error is `{"error": code, "message": …}`, with more fields
where they help. Handlers are plain functions, which the web framework runs in its threads; they may wait.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from headrace.agent.access import PAGE_PATH, Gate, Tokens, asks_for_page, may_see_secrets
from headrace.agent.actions import ActionLog
from headrace.agent.broker_settings import check_broker_addresses, check_broker_settings
from headrace.agent.configuration import NAME_LENGTH_MAX, NAME_PATTERN, secret_fields
from headrace.agent.errors import (
    AgentError,
    BadRequestError,
    BodyTooLongError,
    NotReadyError,
    SupervisorError,
    shortened,
)
from headrace.agent.folders import folder_size_bytes
from headrace.agent.keeper import UNITS_MAX, Keeper
from headrace.agent.kinds import Kinds, parse_configuration
from headrace.agent.loads import LoadStore
from headrace.agent.logs import LOG_LINES_MAX, log_tail
from headrace.agent.page import page
from headrace.agent.permitted import PermittedPaths
from headrace.agent.report import ChangeOutcome, UnitReport
from headrace.agent.rolling import Rolling
from headrace.process.disk import explained
from headrace.process.page import HEADERS, KIND, VARIES, Page
from headrace.process.rendered import RenderedPage
from headrace.process.shared_answers import SharedAnswer
from headrace.site.errors import SiteError

logger = logging.getLogger(__name__)

BODY_MAX_BYTES: Final = 256 << 10
WAIT_MAX_S: Final = 600.0
LOG_LINES_DEFAULT: Final = 100
HEALTH_PAUSE_S: Final = 0.2
"""Between two questions to supervisord, which serves one request at a time: strangers ask, too."""
ERROR_LOG_LINES: Final = 15
# The agent's own files and programs have these names.
RESERVED_NAMES: Final = ("agent", "supervisord")

_NAME: Final = re.compile(NAME_PATTERN)


def refuse(status: int, code: str, message: str, details: Mapping[str, Any] | None = None) -> JSONResponse:
    return JSONResponse({"error": code, "message": message, **(details or {})}, status)


async def read_body(request: Request) -> Any:
    """Reads the JSON body of a request; None for an empty one. Raises `BadRequestError`."""
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk
            if len(received) > BODY_MAX_BYTES:
                break
    except ClientDisconnect:
        raise BadRequestError("the client went before its request was complete") from None
    if len(received) > BODY_MAX_BYTES:
        raise BodyTooLongError(f"the request's body is longer than {BODY_MAX_BYTES} bytes")
    if not received:
        return None
    try:
        return json.loads(received, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the request's body is not JSON: {error}") from None


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a JSON value")


def _unit_name(name: Annotated[str, Path()]) -> str:
    if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise BadRequestError(
            f"{shortened(name)!r} is not a unit name: expected 1 to {NAME_LENGTH_MAX} lowercase "
            f"letters, digits and hyphens, starting with a letter, and not {' or '.join(RESERVED_NAMES)}"
        )
    return name


UnitName = Annotated[str, Depends(_unit_name)]
Body = Annotated[Any, Depends(read_body)]
WaitS = Annotated[float, Query(ge=0, le=WAIT_MAX_S, allow_inf_nan=False)]
MadeBy = Annotated[str, Query(pattern=r"^[a-z0-9 -]{0,40}$")]


def create_app(
    keeper: Keeper,
    loads: LoadStore,
    tokens: Tokens,
    actions: ActionLog,
    permitted: PermittedPaths,
    kinds: Kinds,
    about: Mapping[str, Any],
    end: Callable[[], None],
) -> ASGIApp:
    """The web application of one keeper and its home's loads.

    `about` are the fields of `/v1/version`; `end` ends the process.
    """
    app = FastAPI(title="headrace agent", openapi_url=None, docs_url=None, redoc_url=None)
    _add_error_handlers(app)
    _add_page(app, keeper, about)
    _add_agent(app, keeper, kinds, about, end)
    _add_units(app, keeper, kinds, permitted)
    _add_rolling(app, keeper)
    _add_loads(app, loads)
    return Gate(app, tokens, actions)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(AgentError)
    async def refused(_: Request, error: AgentError) -> Response:
        return refuse(error.status, error.code, str(error), error.details)

    @app.exception_handler(SiteError)
    async def failed(_: Request, error: SiteError) -> Response:
        logger.warning("a request failed: %s", error)
        if isinstance(error, SupervisorError):
            return refuse(503, "supervisor_failed", str(error))
        return refuse(500, "host_failed", str(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"][1:]))
        return refuse(422, "request_invalid", f"{field}: {shortened(repr(first['input']))}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> Response:
        code = {404: "path_unknown", 405: "method_not_allowed"}.get(error.status_code, "request_invalid")
        requested = f"{request.method} {shortened(request.url.path)}"
        message = f"{requested}: {error.detail}; docs/agent.md lists what is served"
        return refuse(error.status_code, code, message)

    @app.exception_handler(OSError)
    async def disk_failed(_: Request, error: OSError) -> Response:
        logger.error("a request failed: %s", error)
        return refuse(500, "host_failed", f"a file or process of the host failed: {explained(error)}")

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return refuse(500, "agent_broken", f"{type(error).__name__} in the agent; see its log")


def _add_page(app: FastAPI, keeper: Keeper, about: Mapping[str, Any]) -> None:
    def made() -> Page:
        try:
            reports = keeper.reports(with_drift=False)
            urls = {unit.name: unit.page_url for unit in keeper.units()}
        except SiteError as error:
            return page(about, [], {}, str(error))
        return page(about, reports, urls)

    rendered = RenderedPage(made)

    @app.get(PAGE_PATH)
    def show_page(request: Request) -> Response:
        if not asks_for_page(request.scope):
            raise HTTPException(404)
        return Response(rendered.html(request.url.query), 200, {**HEADERS, **VARIES}, KIND)


def _add_agent(
    app: FastAPI, keeper: Keeper, kinds: Kinds, about: Mapping[str, Any], end: Callable[[], None]
) -> None:
    is_supervised = SharedAnswer(keeper.is_supervised, HEALTH_PAUSE_S)

    @app.get("/v1/health")
    async def health() -> dict[str, str]:
        if await is_supervised():
            return {"status": "ok", "supervisord": "running"}
        return {"status": "ok" if not keeper.names() else "degraded", "supervisord": "not running"}

    @app.get("/v1/version")
    def version() -> dict[str, Any]:
        return {**about, "pid": os.getpid()}

    @app.get("/v1/kinds")
    def described_kinds() -> dict[str, Any]:
        return {"kinds": {name: kind.configuration.model_json_schema() for name, kind in kinds.items()}}

    @app.post("/v1/shutdown")
    def shut_down() -> dict[str, str]:
        keeper.shut_down()
        end()
        return {"outcome": "ended"}


def _add_units(app: FastAPI, keeper: Keeper, kinds: Kinds, permitted: PermittedPaths) -> None:
    def shown(report: UnitReport, request: Request) -> dict[str, Any]:
        if not may_see_secrets(request):
            report = report.without(secret_fields(kinds[report.kind].configuration))
        return report.to_json()

    @app.get("/v1/units")
    def list_units(
        request: Request,
        name: Annotated[list[str] | None, Query(max_length=UNITS_MAX)] = None,
        drift: bool = True,
    ) -> dict[str, Any]:
        return {"units": [shown(report, request) for report in keeper.reports(name, with_drift=drift)]}

    @app.get("/v1/units/{name}")
    def get_unit(request: Request, name: UnitName, wait_s: WaitS = 0.0) -> dict[str, Any]:
        if not wait_s:
            return shown(keeper.reports([name])[0], request)
        keeper.unit(name)
        return shown(_waited(keeper, name, wait_s), request)

    @app.put("/v1/units/{name}")
    def put_unit(
        name: UnitName, body: Body, wait_s: WaitS = 0.0, dry_run: bool = False, made_by: MadeBy = ""
    ) -> Response:
        configuration = parse_configuration(name, body, kinds)
        permitted.check(name, configuration)
        check_broker_addresses(name, configuration)
        check_broker_settings(name, configuration)
        outcome = keeper.put(name, configuration, dry_run=dry_run, made_by=made_by)
        if dry_run:
            return JSONResponse({"outcome": outcome, "dry_run": True})
        report = _waited(keeper, name, wait_s, {"outcome": outcome})
        status = 201 if outcome is ChangeOutcome.CREATED else 200
        return JSONResponse({"outcome": outcome, "unit": report.to_json()}, status)

    @app.delete("/v1/units/{name}")
    def delete_unit(name: UnitName) -> dict[str, str]:
        keeper.delete(name)
        return {"outcome": "deleted"}

    @app.post("/v1/units/{name}/restart")
    def restart_unit(name: UnitName, wait_s: WaitS = 0.0) -> dict[str, Any]:
        keeper.restart(name)
        report = _waited(keeper, name, wait_s, {"outcome": "restarted"})
        return {"outcome": "restarted", "unit": report.to_json()}

    @app.get("/v1/units/{name}/log")
    def read_log(
        name: UnitName, lines: Annotated[int, Query(ge=1, le=LOG_LINES_MAX)] = LOG_LINES_DEFAULT
    ) -> Response:
        text = log_tail(keeper.unit(name).log_path, lines)
        return PlainTextResponse(text + "\n" if text else "")

    @app.get("/v1/units/{name}/data")
    def measure_data(name: UnitName) -> dict[str, Any]:
        directory = keeper.unit(name).data_dir
        size_bytes = 0 if directory is None else folder_size_bytes(directory)
        return {"directory": None if directory is None else str(directory), "size_bytes": size_bytes}


def _waited(keeper: Keeper, name: str, wait_s: float, more: Mapping[str, Any] | None = None) -> UnitReport:
    """Reports the unit after a wait of at most `wait_s`. Raises `NotReadyError` if it is not ready then."""
    if not wait_s:
        # The change has just removed any drift.
        return keeper.reports([name], with_drift=False)[0]
    report = keeper.wait_ready(name, wait_s)
    if report.is_ready:
        return report
    cause = f"not within {wait_s:g} s"
    if report.failing:
        cause = "its process ends in every attempt to start it"
    elif report.has_failed:
        cause = f"supervisord has given up ({report.note})"
    raise NotReadyError(
        f"unit {name} is not ready, {cause}: {report.problem}; see its log, {report.log}",
        {
            **(more or {}),
            "unit": report.to_json(),
            "log_tail": log_tail(keeper.unit(name).log_path, ERROR_LOG_LINES),
        },
    )


def _add_rolling(app: FastAPI, keeper: Keeper) -> None:
    rolling = Rolling(keeper)

    @app.post("/v1/restart")
    def roll(body: Body, wait_s: Annotated[float, Query(gt=0, le=WAIT_MAX_S)] = 60.0) -> dict[str, Any]:
        names = body.get("units") if isinstance(body, dict) and set(body) == {"units"} else None
        if (
            not isinstance(names, list)
            or not 1 <= len(names) <= UNITS_MAX
            or not all(isinstance(name, str) for name in names)
            or len(set(names)) < len(names)
        ):
            raise BadRequestError(
                'expected {"units": ["east-broker-1", …]}: the units to restart, each once, in this order'
            )
        done = [report.to_json() for report in rolling.roll(names, wait_s)]
        return {"outcome": "restarted", "units": done}


def _add_loads(app: FastAPI, loads: LoadStore) -> None:
    @app.get("/v1/loads")
    def list_loads() -> dict[str, Any]:
        return {"loads": loads.all()}

    @app.get("/v1/loads/{topic}")
    def get_load(topic: str) -> dict[str, Any]:
        return {"topic": topic, "load": loads.load(topic)}

    @app.put("/v1/loads/{topic}")
    def put_load(topic: str, body: Body, dry_run: bool = False) -> Response:
        outcome = loads.put(topic, body, dry_run=dry_run)
        if dry_run:
            return JSONResponse({"outcome": outcome, "dry_run": True})
        status = 201 if outcome is ChangeOutcome.CREATED else 200
        return JSONResponse({"outcome": outcome, "topic": topic, "load": loads.load(topic)}, status)

    @app.delete("/v1/loads/{topic}")
    def delete_load(topic: str) -> dict[str, str]:
        loads.delete(topic)
        return {"outcome": "deleted"}
