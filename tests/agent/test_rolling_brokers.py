"""A rolling restart of three real brokers: each waits until the one before has fetched what it missed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from fix_agent import RunningAgent, eventually
from fix_restarts import BROKERS, NAMES, TOPIC, brokers_of, isr, slow_topic, watched
from headrace.agent.errors import AgentRefusedError
from headrace.client import Admin
from headrace.coordination.restart_turn import turn
from headrace.fleet import restarting
from headrace.site.errors import SiteError
from headrace.site.site import Site

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


def test_units_of_a_host_wait_for_a_broker_that_still_fetches(
    agent: RunningAgent, brokers: Sequence[str]
) -> None:
    """It answers, and is none of those that are restarted: it may be another host's."""
    slow_topic(brokers, bytes_per_s=1_000_000)
    site = Site.one_machine(agent.home)
    with watched(brokers) as in_sync, Admin(brokers) as admin:
        agent.supervisor.stop("broker-3", wait=True)
        eventually(lambda: len(isr(admin)) == 2)
        time.sleep(2)
        agent.client.restart("broker-3", wait_s=READY_S)
        assert len(isr(admin)) == 2, "it still fetches"
        with pytest.raises(
            SiteError, match=r"broker 3 lacks replicas of clicks-0; not restarted: broker-1, "
        ):
            restarting.restart(site, NAMES[:2], wait_s=1.0)
        restarting.restart(site, NAMES[:2], wait_s=2 * READY_S)
    assert min(in_sync) == 2, "never were two of three replicas out of sync"


def test_units_of_a_host_wait_for_the_turn_of_a_broker_that_somebody_else_restarts(
    agent: RunningAgent, brokers: Sequence[str]
) -> None:
    """An apply looked at all replicas, and so did this command: both found them in sync, and restarted."""
    site = Site.one_machine(agent.home)
    slow_topic(brokers, bytes_per_s=1_000_000)
    before = {name: agent.pid(name) for name in NAMES}
    zookeeper = str(agent.client.unit(NAMES[0]).configuration["zookeeper"])
    with turn(zookeeper, "terraform, for broker-3", READY_S) as holder:
        assert not holder
        with pytest.raises(
            SiteError, match=r"terraform, for broker-3 restarts brokers .* not restarted: broker-1, broker-2"
        ):
            restarting.restart(site, NAMES[:2], wait_s=1.0)
        assert {name: agent.pid(name) for name in NAMES} == before
    restarting.restart(site, NAMES[:2], wait_s=READY_S)
    assert {name for name in NAMES if agent.pid(name) != before[name]} == set(NAMES[:2])
    with turn(zookeeper, "the next one", READY_S) as holder:
        assert not holder, "it has given the turn back"
