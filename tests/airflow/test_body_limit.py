"""Bodies that anybody may send to Airflow's api-server before a login: bounded one by one, and together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.airflow import body_limit
from headrace.airflow.body_limit import BodyLimit

PIECE = 1 << 20


def scope(**headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "headers": named}


def pieces(count: int, size: int = PIECE) -> Callable[[], Awaitable[dict[str, Any]]]:
    left = iter(range(count, 0, -1))

    async def receive() -> dict[str, Any]:
        number = next(left, 0)
        return {"type": "http.request", "body": bytes(size), "more_body": number > 1}

    return receive


class App:
    """Reads a request's body as a whole, as Airflow does, and waits for `may_answer`."""

    def __init__(self) -> None:
        self.bodies: list[int] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = 0, True
        while more:
            message = await receive()
            body, more = body + len(message["body"]), message["more_body"]
        await self.may_answer.wait()
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def asked(limit: BodyLimit, scope: Any, receive: Any) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await limit(scope, receive, send)
    return int(sent[0]["status"])


async def settled() -> None:
    """Lets every task go on until it waits."""
    for _ in range(200):
        await asyncio.sleep(0)


def test_a_body_is_bounded_by_what_is_announced_and_by_what_comes() -> None:
    async def run() -> None:
        app = App()
        limit = BodyLimit(app)
        never = pieces(0)
        assert await asked(limit, scope(content_length=str(body_limit.BODY_MAX_BYTES + 1)), never) == 413
        assert await asked(limit, scope(content_length="9" * 400), never) == 413
        assert await asked(limit, scope(), pieces(10**9)) == 413, "it announces nothing, and never ends"
        assert app.bodies == []
        assert await asked(limit, scope(content_length="x"), pieces(3)) == 200
        assert app.bodies == [3 * PIECE] and limit._held_bytes == 0

    asyncio.run(run())


def test_all_bodies_together_are_bounded_and_small_ones_are_always_taken() -> None:
    async def run() -> None:
        app = App()
        limit = BodyLimit(app)
        app.may_answer.clear()
        held = [asyncio.ensure_future(asked(limit, scope(), pieces(16))) for _ in range(4)]
        await settled()
        assert limit._held_bytes == body_limit.BODIES_MAX_BYTES
        assert await asked(limit, scope(), pieces(2)) == 413
        small = asyncio.ensure_future(asked(limit, scope(), pieces(1, 1_000)))
        await settled()
        app.may_answer.set()
        assert await asyncio.gather(*held, small) == [200] * 5
        assert limit._held_bytes == 0
        assert await asked(limit, scope(), pieces(16)) == 200

    asyncio.run(run())


def test_a_body_that_stops_half_way_gives_up_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "BODY_WAIT_MAX_S", 0.01)

    async def run() -> None:
        limit = BodyLimit(App())
        begun = pieces(2)

        async def receive() -> dict[str, Any]:
            message = await begun()
            if not message["more_body"]:
                await asyncio.Event().wait()
            return message

        assert await asked(limit, scope(), receive) == 413
        assert limit._held_bytes == 0

    asyncio.run(run())


def test_other_connections_are_left_alone() -> None:
    async def run() -> None:
        seen: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append((scope, receive, send))

        arguments = ({"type": "lifespan"}, pieces(0), pieces(0))
        await BodyLimit(app)(*arguments)  # type: ignore[arg-type]
        assert seen == [arguments]

    asyncio.run(run())
