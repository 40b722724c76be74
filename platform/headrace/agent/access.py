"""The two tokens of an agent, what each permits, and the gate that every request passes.

Owns the roles. The token of role operate runs programs as the agent's user; that of role read shows states,
logs and configurations without their secrets, and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.agent.actions import ActionLog
from headrace.agent.errors import AgentStateError
from headrace.agent.folders import Stamp, stamp_of
from headrace.agent.page import locked
from headrace.agent.tokens import is_authorized, make_token, read_token, with_password
from headrace.process.clock import now_ms
from headrace.process.page import HEADERS, KIND, VARIES, render, wants_page
from headrace.site.errors import SiteError

logger = logging.getLogger(__name__)

OPEN_PATHS: Final = ("/v1/health",)
PAGE_PATH: Final = "/"
READING: Final = ("GET", "HEAD")
ROLE: Final = "headrace.role"
"""The key of a request's scope."""


class Role(StrEnum):
    """What a token permits."""

    READ = "read"
    OPERATE = "operate"


class Tokens:
    """The tokens of one agent: files, made if they are not there, and read again when they change. While what
    one holds is no token, the one of before counts. Used by one thread.
    """

    def __init__(self, operate: Path, read: Path) -> None:
        """Raises `AgentStateError`."""
        self._paths = {Role.OPERATE: operate, Role.READ: read}
        for path in self._paths.values():
            make_token(path)
        self._stamps = self._look()
        self._tokens = {role: read_token(path) for role, path in self._paths.items()}

    def role(self, header: bytes | None) -> Role | None:
        """The role of an `Authorization` header; None without a valid token."""
        self._renew()
        return next((role for role, token in self._tokens.items() if is_authorized(header, token)), None)

    def know(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers has a valid token."""
        return self.role(with_password(dict(headers).get(b"authorization"))) is not None

    def _renew(self) -> None:
        before, self._stamps = self._stamps, self._look()
        for role, stamp in self._stamps.items():
            if stamp == before[role]:
                continue
            path = self._paths[role]
            try:
                self._tokens[role] = read_token(path)
            except AgentStateError as error:
                logger.error("%s; until then the token of before counts", error)
            else:
                logger.warning("the token in %s was replaced: the one of before counts no more", path)

    def _look(self) -> dict[Role, Stamp | None]:
        return {role: stamp_of(path) for role, path in self._paths.items()}


def may_see_secrets(request: Request) -> bool:
    """Whether the answer may hold passwords."""
    return request.scope.get(ROLE) is Role.OPERATE


class Gate:
    """Refuses requests before any routing, so that they cannot probe for paths, and records the others that
    change something."""

    def __init__(self, app: ASGIApp, tokens: Tokens, actions: ActionLog) -> None:
        self._app = app
        self._tokens = tokens
        self._actions = actions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        is_page = asks_for_page(scope)
        header = dict(scope["headers"]).get(b"authorization")
        # A browser sends a password that it knows to any path that another site makes it request: it permits
        # this page alone.
        role = self._tokens.role(with_password(header) if is_page else header)
        if role is None:
            try:
                self._actions.refused(_address(scope), scope["method"], scope["path"])
            except (SiteError, OSError) as error:
                logger.error("a refused request could not be recorded: %s", error)
            message = "send `Authorization: Bearer TOKEN`; it is in agent/token of the agent's home"
            refusal = _ask_for_password() if is_page else _refuse(401, "unauthorized", message)
            await refusal(scope, receive, send)
            return
        if scope["method"] in READING:
            await self._app({**scope, ROLE: role}, receive, send)
            return
        if role is not Role.OPERATE:
            self._record(scope, role, 403, b"")
            message = "this token only reads; the one in agent/token of the agent's home changes things, too"
            await _refuse(403, "read_only", message)(scope, receive, send)
            return
        await self._act({**scope, ROLE: role}, receive, send)

    async def _act(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and records its outcome before the client reads it."""
        digest = hashlib.sha256()
        is_recorded = False

        async def received() -> Message:
            message = await receive()
            digest.update(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            nonlocal is_recorded
            if message["type"] == "http.response.start":
                is_recorded = True
                self._record(scope, Role.OPERATE, message["status"], digest.digest())
            await send(message)

        try:
            await self._app(scope, received, sent)
        finally:
            if not is_recorded:
                self._record(scope, Role.OPERATE, 500, digest.digest())

    def _record(self, scope: Scope, role: Role, status: int, digest: bytes) -> None:
        fields: dict[str, Any] = {"role": role, "address": _address(scope), "method": scope["method"]}
        query = scope.get("query_string", b"").decode("ascii", "replace")
        fields |= {"path": scope["path"], "query": query, "status": status, "body_sha256": digest.hex()}
        try:
            self._actions.write(uses_reserve=role is Role.OPERATE, **fields)
        except (SiteError, OSError) as error:
            # The change has been made: an answer that never comes would only make the operator repeat it.
            logger.error("an action could not be recorded: %s: %s", error, json.dumps(fields))


def asks_for_page(scope: Scope) -> bool:
    """Whether a browser requests the agent's page."""
    accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
    return scope["path"] == PAGE_PATH and scope["method"] == "GET" and wants_page(accept)


def _ask_for_password() -> Response:
    headers = {
        **HEADERS,
        **VARIES,
        "Connection": "close",
        "WWW-Authenticate": 'Basic realm="headrace agent: the password is in agent/token-read of its home"',
    }
    return Response(render(locked(), now_ms()), 401, headers, KIND)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "unknown"


def _refuse(status: int, code: str, message: str) -> JSONResponse:
    headers = {"Connection": "close"}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": code, "message": message}, status, headers)
