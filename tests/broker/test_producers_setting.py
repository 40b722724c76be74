"""`headrace.producers` of a topic at a real broker: refused by name, and its history is the broker's own."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_broker import BrokerCluster, StartCluster
from headrace.client import Admin
from headrace.client.errors import BrokerError
from headrace.coordination.declared import ANY, HISTORY, PRODUCERS, REPORTING, Change, history_of
from headrace.wire.errors import ErrorCode

WAIT_MAX_S = 30.0


@pytest.fixture
def admin(one_broker: BrokerCluster) -> Iterator[Admin]:
    with Admin(one_broker.bootstrap) as admin:
        yield admin


def declared(admin: Admin, topic: str) -> dict[str, str]:
    return admin.topic_settings([topic], (PRODUCERS, HISTORY)).get(topic, {})


def eventually_declared(admin: Admin, topic: str, producers: str) -> tuple[Change, ...]:
    """The history, once the broker sees what is declared now."""
    deadline = time.monotonic() + WAIT_MAX_S
    while (settings := declared(admin, topic)).get(PRODUCERS) != producers:
        assert time.monotonic() < deadline, settings
        time.sleep(0.05)
    return history_of(settings)


def new_topic(admin: Admin, **config: str) -> str:
    name = f"declared-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, 1, config={key.replace("_", "."): value for key, value in config.items()})
    return name


def changed_to_any(admin: Admin) -> tuple[str, tuple[Change, ...]]:
    """Makes a topic, and lets anybody produce: that applies from the next hour on. Returns its changes."""
    name = new_topic(admin)
    before_ms = time.time_ns() // 1_000_000
    admin.alter_configs(name, {PRODUCERS: ANY})
    first, change = changes = eventually_declared(admin, name, ANY)
    assert (first, change.producers) == (Change(REPORTING), ANY)
    assert change.from_ms is not None and before_ms < change.from_ms <= before_ms + 3_600_000 + 60_000
    return name, changes


def test_a_topic_declares_what_it_is_created_with(admin: Admin) -> None:
    assert eventually_declared(admin, new_topic(admin), REPORTING) == (Change(REPORTING),)
    assert eventually_declared(admin, new_topic(admin, headrace_producers=ANY), ANY) == (Change(ANY),)


def test_a_change_is_kept_with_its_hour(admin: Admin) -> None:
    name, changes = changed_to_any(admin)
    admin.alter_configs(name, {"retention.ms": "1000"})
    assert eventually_declared(admin, name, ANY) == changes


CLOCK_OF_BEFORE = """
import time

right = time.time_ns
time.time_ns = lambda: right() - 10 * 86_400 * 10**9
"""


def test_a_broker_whose_clock_is_behind_does_not_change_hours_that_are_over(
    broker_cluster: StartCluster, tmp_path: Path
) -> None:
    """Its word applied to the hours of the last ten days: of those nobody had to report any more, and what
    their producers had reported and lost was complete.
    """
    (tmp_path / "sitecustomize.py").write_text(CLOCK_OF_BEFORE)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    cluster = broker_cluster(environment={"PYTHONPATH": path})
    with Admin(cluster.bootstrap) as admin:
        name, _ = changed_to_any(admin)
        admin.alter_configs(name, {PRODUCERS: REPORTING})
        assert eventually_declared(admin, name, REPORTING) == (Change(REPORTING),), "the audit asks for more"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({PRODUCERS: "some"}, "headrace.producers=some: must be reporting or any"),
        ({PRODUCERS: ""}, "headrace.producers=: must be reporting or any"),
        ({HISTORY: "any"}, "headrace.producers.history is written by the brokers alone"),
    ],
)
def test_other_values_are_refused_by_name(admin: Admin, config: dict[str, str], problem: str) -> None:
    name = new_topic(admin)
    with pytest.raises(BrokerError) as refused:
        admin.alter_configs(name, config)
    assert refused.value.code is ErrorCode.INVALID_CONFIG and problem in str(refused.value)
    with pytest.raises(BrokerError) as refused:
        admin.create_topic(f"{name}-2", 1, config=config)
    assert refused.value.code is ErrorCode.INVALID_CONFIG and problem in str(refused.value)
    assert declared(admin, f"{name}-2") == {}, "a topic that does not exist has no settings"


def test_many_topics_are_read_at_once(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.admin._RESOURCES_PER_REQUEST_MAX", 2)
    names = [new_topic(admin) for _ in range(3)]
    found = admin.topic_settings([*names, "there-is-no-such-topic"], (PRODUCERS,))
    assert found == {name: {PRODUCERS: REPORTING} for name in names}
