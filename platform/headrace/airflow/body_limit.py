"""A bound on the bodies of requests to Airflow's api-server, which takes them before any login.

Airflow holds a body as a whole, several times over, before it looks at the token: four bodies of 200 MB made
2.5 GB. Knows nothing of Airflow; `airflow.plugin` puts it before Airflow's own application (ASGI).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

BODY_MAX_BYTES: Final = 16 << 20
BODIES_MAX_BYTES: Final = 64 << 20
"""Of all requests that are being served, less those of at most `SMALL_BYTES`: these are always taken."""
SMALL_BYTES: Final = 64 << 10
BODY_WAIT_MAX_S: Final = 60.0
"""For each piece of a body: one that stops half way gives up its share."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BodyRefusedError(Exception):
    """The body is too large, or stopped half way."""


class BodyLimit:
    """ASGI middleware; one for a process."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._held_bytes = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _announced(scope) > BODY_MAX_BYTES:
            await _refuse(send)
            return
        held = ended = 0
        answered = False

        async def bounded() -> Message:
            nonlocal held, ended
            async with asyncio.timeout(None if ended else BODY_WAIT_MAX_S):
                message = await receive()
            ended = message["type"] != "http.request" or not message.get("more_body", False)
            size = len(message.get("body", b""))
            held += size
            self._held_bytes += size
            if held > BODY_MAX_BYTES or (held > SMALL_BYTES and self._held_bytes > BODIES_MAX_BYTES):
                raise BodyRefusedError
            return message

        async def watched(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._app(scope, bounded, watched)
        except (BodyRefusedError, TimeoutError):
            if not answered:
                await _refuse(send)
        finally:
            self._held_bytes -= held


def _announced(scope: Message) -> int:
    """The length that the request's head announces; 0 if it announces none."""
    for name, value in scope["headers"]:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


async def _refuse(send: Send) -> None:
    text = f"The request's body is longer than {BODY_MAX_BYTES} bytes, or others hold all of their share"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
