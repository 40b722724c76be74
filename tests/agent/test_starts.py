"""A unit that cannot start is known after a few attempts, with its own error; wrong settings before any."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_agent import RunningAgent
from fix_ports import free_port
from headrace.agent.errors import AgentRefusedError
from headrace.agent.kinds import parse_configuration
from headrace.agent.logs import collapsed
from headrace.agent.starts import ATTEMPTS_MIN, StartWatch, last_error
from headrace.agent.unit import Unit, UnitState
from headrace.site.addresses import Address
from stand_in_agent import stand_in

WAIT_S = 600.0


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    made = stand_in(tmp_path, "one", Address("127.0.0.1", 1))
    made.log_path.parent.mkdir(parents=True)
    return made


def fail(watch: StartWatch, unit: Unit, ended_s: int, line: str) -> str | None:
    """One attempt that ends: the process starts, writes a line and is gone."""
    assert watch.problem(unit, UnitState("one", "STARTING", 7, 0, "", ended_s - 1)) is None or ended_s > 3
    with unit.log_path.open("a") as log:
        log.write(f"starting\n{line}\n\n")
    return watch.problem(unit, UnitState("one", "BACKOFF", 0, 0, "Exited too quickly", ended_s))


def test_the_same_error_in_every_attempt_is_final(unit: Unit) -> None:
    watch = StartWatch()
    watch.begin("one")
    line = "2026-11-22 10:00:{:02d} ERROR: there is no setting 'x'"
    assert fail(watch, unit, 1, line.format(1)) is None
    assert fail(watch, unit, 2, line.format(2)) is None
    # Looking again at the same end is no further attempt.
    assert watch.problem(unit, UnitState("one", "BACKOFF", 0, 0, "", 2)) is None
    found = fail(watch, unit, 4, line.format(4))
    assert found == f"it does not start, {ATTEMPTS_MIN} attempts ended with: {line.format(4)}"
    watch.begin("one")
    assert watch.problem(unit, UnitState("one", "STARTING", 8, 0, "", 0)) is None, "it was put again"


def test_other_errors_each_time_are_not(unit: Unit) -> None:
    watch = StartWatch()
    watch.begin("one")
    for number, line in enumerate(
        ["ZooKeeper is unreachable", "not elected", "no brokers", "no room"], start=1
    ):
        assert fail(watch, unit, number, line) is None


def test_a_unit_that_ran_for_a_while_is_not_judged(unit: Unit) -> None:
    watch = StartWatch()
    watch.begin("one")
    fail(watch, unit, 1, "x")
    assert watch.problem(unit, UnitState("one", "RUNNING", 9, 6, "", 1)) is None
    for ended_s in (2, 3, 4, 5):
        assert fail(watch, unit, ended_s, "x") is None


def test_the_last_line_that_says_something() -> None:
    assert last_error("a\n b \n\n  \n") == "b"
    assert last_error("") == ""
    of_postgresql = """
        2026-11-23 17:00:00 UTC [7] LOG:  database system was interrupted
        2026-11-23 17:00:00 UTC [8] FATAL:  the database system is starting up
        2026-11-23 17:00:00 UTC [7] PANIC:  could not locate a valid checkpoint record
        2026-11-23 17:00:00 UTC [9] FATAL:  the database system is in recovery mode
        2026-11-23 17:00:01 UTC [6] LOG:  aborting startup due to startup process failure
        2026-11-23 17:00:01 UTC [6] LOG:  database system is shut down
    """
    assert last_error(of_postgresql).endswith("[7] PANIC:  could not locate a valid checkpoint record")
    assert collapsed("a\na\na\nb\n") == "a  (3 times)\nb"


# --- a real agent ---


def test_a_unit_that_cannot_start_fails_with_its_own_error(agent: RunningAgent) -> None:
    (agent.home / "one.broken").write_text("no room on this disk")
    with pytest.raises(AgentRefusedError, match="attempts ended with: no room on this disk") as caught:
        agent.client.put("one", agent.stand_in(), wait_s=WAIT_S)
    assert caught.value.code == "not_ready"
    assert "its process ends in every attempt to start it" in str(caught.value)
    (report,) = agent.client.units(["one"])
    assert report.failing and report.has_failed
    (agent.home / "one.broken").unlink()
    # supervisord goes on trying, and then it is an ordinary unit.
    assert agent.client.restart("one", wait_s=WAIT_S).is_ready


def test_a_brokers_settings_are_checked_before_it_exists(agent: RunningAgent) -> None:
    broker = {
        "kind": "broker",
        "datacenter": "east",
        "broker_id": 1,
        "listen": agent.stand_in()["listen"],
        "zookeeper": "127.0.0.1:1",
        "settings": {"num.partition": "3", "log.roll.ms": "soon", "max.connections": "10"},
    }
    for dry_run in (True, False):
        with pytest.raises(AgentRefusedError) as caught:
            agent.client.put("b", broker, dry_run=dry_run)
        assert caught.value.code == "configuration_invalid"
        assert {field["field"]: field["message"] for field in caught.value.details["fields"]} == {
            "settings.log.roll.ms": "not a number",
            "settings.num.partition": "there is no such broker setting; did you mean num.partitions?",
        }
    assert agent.client.units() == []
    broker["settings"] = {"num.partitions": "3"}
    assert agent.client.put("b", broker, dry_run=True).outcome == "created"


def test_no_broker_is_put_that_clients_would_seek_at_0_0_0_0(agent: RunningAgent) -> None:
    # One that no other test's broker has, on any address.
    port = free_port("0.0.0.0")
    broker = {
        "kind": "broker",
        "datacenter": "east",
        "broker_id": 1,
        "listen": f"0.0.0.0:{port}",
        "zookeeper": "127.0.0.1:1",
    }
    for advertise in ({}, {"advertise": f"0.0.0.0:{port}"}):
        with pytest.raises(
            AgentRefusedError, match=rf"advertise: 0\.0\.0\.0:{port}: .* give the one"
        ) as caught:
            agent.client.put("b", broker | advertise, dry_run=True)
        assert caught.value.code == "configuration_invalid"
    assert agent.client.put("b", broker | {"advertise": "broker-1:9092"}, dry_run=True).outcome == "created"


def test_a_unit_of_before_that_check_is_still_read() -> None:
    """Else the agent of its host would not start, and nothing there would be supervised."""
    given = {"kind": "broker", "datacenter": "east", "broker_id": 1, "zookeeper": "127.0.0.1:1"}
    assert parse_configuration("b", given | {"listen": "0.0.0.0:9092"}).kind == "broker"
