"""A rolling restart of three real brokers: each waits until the one before has fetched what it missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from fix_agent import RunningAgent
from fix_restarts import BROKERS, NAMES, TOPIC, brokers_of, isr, slow_topic, watched
from headrace.agent.errors import AgentRefusedError
from headrace.client import Admin

READY_S = 60.0

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def brokers(agent: RunningAgent) -> Iterator[Sequence[str]]:
    """Three brokers as units of one agent; their addresses."""
    listens = brokers_of(agent)
    yield listens
    with Admin(listens) as admin:  # the units' data is there for the next test, too
        admin.delete_topic(TOPIC)


def test_the_next_broker_waits_until_the_one_before_is_in_sync(
    agent: RunningAgent, brokers: Sequence[str]
) -> None:
    slow_topic(brokers, bytes_per_s=500_000)
    with watched(brokers) as in_sync:
        rolled = agent.client.roll(NAMES, wait_s=READY_S)
    assert [unit.name for unit in rolled] == NAMES
    assert min(in_sync) == 2, "never were two of three replicas out of sync"
    with Admin(brokers) as admin:
        assert set(isr(admin)) == set(BROKERS)


def test_a_broker_that_does_not_get_in_sync_ends_the_rolling_restart(
    agent: RunningAgent, brokers: Sequence[str]
) -> None:
    slow_topic(brokers, bytes_per_s=1)
    before = {name: agent.pid(name) for name in NAMES}
    with (
        watched(brokers),
        pytest.raises(
            AgentRefusedError, match=r"broker-1 is not ready within 8 s .* still fetches 1 of .* \(clicks-0\)"
        ) as caught,
    ):
        agent.client.roll(NAMES, wait_s=8.0)
    assert (caught.value.status, caught.value.code) == (504, "not_ready")
    assert caught.value.details["left_alone"] == ["broker-2", "broker-3"]
    assert {name for name in NAMES if agent.pid(name) != before[name]} == {"broker-1"}
