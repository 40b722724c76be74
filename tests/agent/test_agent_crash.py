"""SIGKILL of the agent at any step of a change, and of supervisord: in the end each unit that was
put runs, once."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from fix_agent import RunningAgent, eventually, units_left_in
from headrace.agent.errors import AgentUnreachableError
from headrace.agent.processes import is_alive
from headrace.agent.report import ChangeOutcome, DriftKind

READY_S = 60.0


def test_units_outlive_an_agent_that_ends_and_are_adopted(agent: RunningAgent) -> None:
    configuration = agent.stand_in()
    agent.client.put("one", configuration, wait_s=READY_S)
    pid = agent.pid("one")
    assert agent.end(signal.SIGTERM) == 0
    assert agent.pid("one") == pid
    agent.start()
    assert agent.client.unit("one", wait_s=READY_S).pid == pid
    assert agent.client.put("one", configuration).outcome is ChangeOutcome.UNCHANGED
    agent.end(signal.SIGKILL)
    agent.start()
    assert agent.client.put("one", configuration).outcome is ChangeOutcome.UNCHANGED
    assert agent.pid("one") == pid


def test_a_put_that_a_crash_interrupted_is_completed_by_the_next_agent(agent: RunningAgent) -> None:
    configurations = {name: agent.stand_in() for name in ("one", "two")}
    agent.put_all(configurations)
    untouched = agent.pid("two")
    for step in ("recorded", "stopped", "started", "applied"):
        before = agent.pid("one")
        (agent.home / "crash-at").write_text(step)
        changed = {**configurations["one"], "value": f"killed when it was {step}"}
        with pytest.raises(AgentUnreachableError):
            agent.client.put("one", changed, wait_s=READY_S)
        assert agent.has_ended() == -signal.SIGKILL
        agent.start()
        eventually(partial(agent.has_other_pid, "one", before))
        one = agent.client.unit("one", wait_s=READY_S)
        assert (one.configuration["value"], one.drift) == (changed["value"], ())
        # The client sends it again, since it never got a response.
        assert agent.client.put("one", changed, wait_s=READY_S).outcome is ChangeOutcome.UNCHANGED, step
        assert not is_alive(before), step
        assert agent.pid("two") == untouched, "the other unit did not notice"


@pytest.mark.parametrize("step", ["forgotten", "stopped"])
def test_a_deletion_that_a_crash_interrupted_is_completed_by_the_next_agent(
    agent: RunningAgent, step: str
) -> None:
    agent.client.put("one", agent.stand_in(), wait_s=READY_S)
    pid = agent.pid("one")
    (agent.home / "crash-at").write_text(step)
    with pytest.raises(AgentUnreachableError):
        agent.client.delete("one")
    assert agent.has_ended() == -signal.SIGKILL
    agent.start()
    eventually(lambda: not is_alive(pid) and "one" not in agent.states())
    assert agent.client.units() == []
    assert not agent.client.delete("one")


def test_a_creation_that_a_crash_interrupted_is_completed_by_the_next_agent(agent: RunningAgent) -> None:
    (agent.home / "crash-at").write_text("recorded")
    with pytest.raises(AgentUnreachableError):
        agent.client.put("one", agent.stand_in())
    agent.has_ended()
    assert "one" not in agent.states()
    agent.start()
    assert agent.client.unit("one", wait_s=READY_S).drift == ()


def kill_supervisord(agent: RunningAgent) -> None:
    os.kill(int(agent.supervisor.pid_path.read_text()), signal.SIGKILL)


def test_a_killed_supervisord_is_replaced_after_its_orphans_are_ended(agent: RunningAgent) -> None:
    agent.put_all({"one": agent.stand_in(), "two": agent.stand_in(requires=["one"])})
    orphans = units_left_in(agent.home)
    assert len(orphans) == 4, "two stand-ins and a child of each"
    kill_supervisord(agent)
    eventually(lambda: not any(map(is_alive, orphans)))
    for name in ("one", "two"):
        eventually(partial(agent.is_ready, name))
    assert len(units_left_in(agent.home)) == 4, "each runs once"


def test_orphans_are_ended_when_the_agent_starts(agent: RunningAgent) -> None:
    gone = agent.stand_in()
    agent.put_all({"one": agent.stand_in(), "two": gone})
    orphans = units_left_in(agent.home)
    agent.end(signal.SIGKILL)
    kill_supervisord(agent)
    eventually(lambda: not agent.supervisor.is_alive())
    assert all(map(is_alive, orphans))
    # As if an operator had deleted the file: an orphan that no agent knows.
    (agent.home / "agent" / "units" / "two.json").unlink()
    agent.start()
    assert agent.client.put("three", gone, wait_s=READY_S).outcome is ChangeOutcome.CREATED
    assert agent.client.unit("one", wait_s=READY_S).is_ready
    assert not any(map(is_alive, orphans))
    assert len(units_left_in(agent.home)) == 4


def test_a_unit_that_cannot_be_restarted_does_not_delay_the_others(agent: RunningAgent) -> None:
    agent.put_all({"one": agent.stand_in(), "two": agent.stand_in(requires=["one"])})
    value_file = agent.home / "one.value"
    value_file.unlink()
    value_file.mkdir()
    before = agent.pid("two")
    try:
        kill_supervisord(agent)
        eventually(partial(agent.has_other_pid, "two", before))
        assert agent.client.unit("two", wait_s=READY_S).is_ready
        one = agent.client.unit("one")
        assert {each.what for each in one.drift} == {DriftKind.PROCESS, DriftKind.FILE}
        assert "one cannot be started again" in (agent.home / "agent.out").read_text()
    finally:
        value_file.rmdir()


def test_with_ends_units_they_stop_with_the_agent_and_start_with_the_next(
    agent: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "options", ("--ends-units",))
    agent.restart()
    agent.put_all({"one": agent.stand_in(), "two": agent.stand_in(requires=["one"])})
    assert agent.end(signal.SIGTERM) == 0
    assert not agent.supervisor.is_alive() and not units_left_in(agent.home)
    log = (agent.home / "logs" / "supervisord.log").read_text()
    assert log.rindex("stopped: two") < log.rindex("stopped: one")
    monkeypatch.undo()
    agent.start()
    for name in ("one", "two"):
        eventually(partial(agent.is_ready, name))
