"""A call between brokers goes out at once: the loop has no further turn for it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from fix_client import FakeCluster
from fix_link import Link
from headrace.broker.network.links import Lost
from headrace.client.calls import metadata_call
from headrace.client.connection import BrokerConnection


def test_a_call_goes_out_at_once_and_waits_only_behind_others(
    link: Link, fake_cluster: Callable[..., FakeCluster]
) -> None:
    port = fake_cluster().brokers[0].port
    answers: list[object] = []

    def ask() -> None:
        assert link.peers.ask("127.0.0.1", port, metadata_call([], create=False), answers.append)

    ask()
    link.turn_until(lambda: answers)
    changed: list[int] = []
    link.loop.modify = lambda fd, events: changed.append(events)  # type: ignore[method-assign]
    ask()
    assert not changed, "the kernel has all of it: there is no need to wait until it takes more"
    link.turn_until(lambda: len(answers) == 2)
    assert not any(isinstance(answer, Lost) for answer in answers)


def test_a_call_that_the_kernel_refuses_is_lost_in_the_next_turn(
    link: Link, fake_cluster: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, call = fake_cluster().brokers[0].port, metadata_call([], create=False)
    answers: list[object] = []
    assert link.peers.ask("127.0.0.1", port, call, answers.append)
    link.turn_until(lambda: answers)

    def refuses(_: BrokerConnection) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(BrokerConnection, "_flush", refuses)
    assert link.peers.ask("127.0.0.1", port, call, answers.append)
    assert len(answers) == 1, "not from within the call that asks"
    link.loop.turn(1)
    assert isinstance(answers[1], Lost)
    assert link.peers.is_idle
