"""Brokers without a front stay visible: whether they ended or hang. Their checks are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.balancer import withdrawn
from headrace.balancer.backends import Backend, Phase
from headrace.balancer.checking import NO_RESPONSE
from headrace.balancer.page import page
from headrace.balancer.withdrawn import ENDED_KEPT_MS, WITHDRAWN_MAX, WithdrawnBrokers
from headrace.process.command_line import HostPort
from headrace.process.page import Mark, Tone, render

REFUSED = "[Errno 111] Connect call failed"


def backend(broker_id: int, phase: Phase) -> Backend:
    return Backend(broker_id, ("127.1.0.1", broker_id), phase)


def checks(problems: dict[int, str]) -> Callable[[HostPort], Awaitable[str]]:
    async def check(address: HostPort) -> str:
        await asyncio.sleep(0)
        return problems[address[1]]

    return check


async def looked(brokers: WithdrawnBrokers) -> dict[int, str]:
    """The conditions after each broker was checked."""
    watching = asyncio.create_task(brokers.watch())
    async with asyncio.timeout(60):
        while any(row["condition"] == "not checked yet" for row in brokers.rows()):
            await asyncio.sleep(0)
    watching.cancel()
    return {row["broker_id"]: row["condition"] for row in brokers.rows()}


def test_a_broker_without_a_front_stays_and_says_whether_it_hangs() -> None:
    brokers = WithdrawnBrokers(checks({1: NO_RESPONSE, 2: REFUSED, 3: ""}))
    brokers.follow([backend(each, Phase.READY) for each in (1, 2, 3, 4)])
    assert brokers.rows() == []
    brokers.follow([*(backend(each, Phase.DRAINING) for each in (1, 2, 3)), backend(4, Phase.READY)])
    assert asyncio.run(looked(brokers)) == {1: "does not answer", 2: "not running", 3: "answers"}
    brokers.follow([backend(4, Phase.READY)])
    assert [row["broker_id"] for row in brokers.rows()] == [1, 2, 3], "they have drained, and stay"
    brokers.follow([backend(1, Phase.READY), backend(4, Phase.READY)])
    assert [row["broker_id"] for row in brokers.rows()] == [2, 3], "its front is back"


def test_the_page_names_the_broker_that_hangs() -> None:
    brokers = WithdrawnBrokers(checks({2: NO_RESPONSE}))
    brokers.follow([backend(2, Phase.DRAINING)])
    asyncio.run(looked(brokers))
    row = {"broker_id": 1, "address": "127.1.0.1:1", "phase": "ready", "is_up": True, "check": "ok"}
    status = {"engine": "embedded", "why": "", "listen": "127.1.0.3:9092", "problem": None}
    shown = page({**status, "backends": [row], "withdrawn": brokers.rows()})
    assert shown.state == Mark("1 of 2 brokers healthy", Tone.WARN)
    assert shown.problems == ["broker 2 at 127.1.0.1:2 does not answer, and gets no connections"]
    assert b"does not answer</span>" in render(shown, 0)


def test_what_has_ended_is_forgotten_after_a_time_and_what_hangs_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_ms = 0
    monkeypatch.setattr(withdrawn, "monotonic_ms", lambda: clock_ms)
    brokers = WithdrawnBrokers(checks({1: NO_RESPONSE, 2: REFUSED}))
    brokers.follow([backend(1, Phase.DRAINING), backend(2, Phase.DRAINING)])
    asyncio.run(looked(brokers))
    clock_ms = ENDED_KEPT_MS - 1
    brokers.follow([backend(3, Phase.DRAINING)])
    brokers.follow([backend(3, Phase.READY)])
    asyncio.run(brokers._look())
    assert [row["broker_id"] for row in brokers.rows()] == [1, 2]
    clock_ms += 1
    asyncio.run(brokers._look())
    assert [row["broker_id"] for row in brokers.rows()] == [1]


def test_withdrawn_brokers_are_bounded() -> None:
    brokers = WithdrawnBrokers()
    for each in range(1, 3 * WITHDRAWN_MAX):
        brokers.follow([backend(each, Phase.DRAINING)])
    assert len(brokers.rows()) == WITHDRAWN_MAX
