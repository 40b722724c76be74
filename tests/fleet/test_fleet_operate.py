"""Stand-in units under a real agent and supervisord: order, readiness, crashes, taken ports, no orphans."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fix_agent import eventually, units_left_in
from headrace.agent import local
from headrace.agent.client import AgentClient
from headrace.agent.errors import AddressTakenError, AgentStateError, UnitFailedError
from headrace.agent.home import AgentHome, AgentRecord, is_locked
from headrace.agent.logs import log_tail
from headrace.agent.processes import holder_of, is_alive
from headrace.agent.report import UNSUPERVISED
from headrace.agent.supervisor import Supervisor
from headrace.agent.unit import Unit, levels
from headrace.fleet import operate, restarting
from headrace.fleet.killing import kill_for_good
from headrace.fleet.status import unit_reports
from headrace.site.addresses import Address, is_taken
from headrace.site.errors import SiteError
from headrace.site.site import Site
from stand_in_agent import stand_in

pytestmark = pytest.mark.usefixtures("stand_in_program")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site.one_machine(tmp_path / ("a long name " * 6) / "home", block=97)
    site.home.mkdir(parents=True)
    yield site
    operate.down(site, units=())


@pytest.fixture
def pair(site: Site) -> tuple[Unit, Unit]:
    first = stand_in(site.home, "first", Address("127.106.1.1", 8081))
    second = stand_in(site.home, "second", Address("127.106.1.2", 8081), requires=("first",))
    return first, second


def test_up_starts_in_order_and_down_leaves_nothing(site: Site, pair: tuple[Unit, Unit]) -> None:
    seen: list[tuple[str, str]] = []
    operate.up(site, lambda unit, what: seen.append((unit.name, what)), units=pair)
    assert seen == [("first", "starting"), ("first", "ready"), ("second", "starting"), ("second", "ready")]
    assert all(row.is_ready for row in unit_reports(site, units=pair))
    pids = units_left_in(site.home)
    assert len(pids) == 4
    assert "stand-in %d%% here" in log_tail(pair[0].log_path)

    seen.clear()
    operate.up(site, lambda unit, what: seen.append((unit.name, what)), units=pair)
    assert ("first", "ready") in seen
    assert set(pids) == set(units_left_in(site.home)), "a second `up` leaves running units alone"

    seen.clear()
    assert operate.down(site, lambda unit, what: seen.append((unit.name, what)), units=pair)
    assert [name for name, what in seen if what == "stopped"] == ["second", "first"]
    assert not any(map(is_alive, pids))
    assert operate.down(site, units=pair) is False


def test_a_killed_unit_comes_back(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    before = Supervisor(site.home).states()["first"].pid
    os.kill(before, signal.SIGKILL)
    eventually(lambda: Supervisor(site.home).states()["first"].pid not in (0, before))
    eventually(lambda: pair[0].probe.check() is None)


def test_a_unit_that_is_killed_for_good_stays_away_until_the_next_up(
    site: Site, pair: tuple[Unit, Unit]
) -> None:
    operate.up(site, units=pair)
    before = Supervisor(site.home).states()
    assert kill_for_good(site.home, "first") == before["first"].pid
    assert not is_alive(before["first"].pid)
    eventually(lambda: Supervisor(site.home).states()["first"].state == "STOPPED")
    assert "terminated by SIGKILL" in Supervisor(site.home).log_path.read_text(), "it never saw SIGTERM"
    with pytest.raises(SiteError, match="unit first does not run, so it cannot be killed"):
        kill_for_good(site.home, "first")
    ready = {report.name: report.is_ready for report in unit_reports(site, units=pair)}
    assert ready == {"first": False, "second": True}
    operate.up(site, units=pair)
    assert all(row.is_ready for row in unit_reports(site, units=pair))
    assert Supervisor(site.home).states()["second"].pid == before["second"].pid


def test_a_changed_unit_is_restarted(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    before = Supervisor(site.home).states()
    changed = stand_in(site.home, "second", pair[1].listens[0], requires=("first",), value="another")
    operate.up(site, units=(pair[0], changed))
    after = Supervisor(site.home).states()
    assert after["first"].pid == before["first"].pid
    assert after["second"].pid != before["second"].pid


def test_a_taken_address_names_the_unit_and_the_holder(site: Site, pair: tuple[Unit, Unit]) -> None:
    address = pair[1].listens[0]
    with socket.create_server(address), pytest.raises(AddressTakenError) as caught:
        operate.up(site, units=pair)
    message = str(caught.value)
    assert "127.106.1.2:8081, for unit second, is taken by process" in message
    assert str(os.getpid()) in message
    assert not Supervisor(site.home).is_alive(), "nothing was started"


def test_an_agents_error_between_two_log_reads_is_found(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent may write its error after the log was read and before it ends: the log is read once more."""
    reads = iter(["", "", "the agent cannot start: no room on this disk"])
    monkeypatch.setattr(local, "log_tail", lambda *_: next(reads))
    monkeypatch.setattr(local, "PROGRAM", ("sh", "-c", 'echo words >>"$HEADRACE_HOME/logs/agent.log"'))
    with pytest.raises(AgentStateError, match="no room on this disk"):
        local.ensure_agent(site.home, site.agent_address)


def test_a_unit_of_another_site_is_named_as_such(site: Site, tmp_path: Path, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair[:1])
    holder = holder_of(pair[0].listens[0])
    assert holder is not None
    assert (holder.unit, holder.home) == ("first", str(site.home))


def test_the_error_of_a_failed_unit_shows_its_last_log_lines(site: Site, pair: tuple[Unit, Unit]) -> None:
    (site.home / "first.broken").write_text("no room on this disk")
    broken = stand_in(site.home, "first", pair[0].listens[0], start_timeout_s=1.0)
    with pytest.raises(UnitFailedError, match="no room on this disk") as caught:
        operate.up(site, units=(broken, pair[1]))
    assert caught.value.unit == "first"
    assert "second" not in Supervisor(site.home).states(), "it waits for the first"


def test_down_ends_the_orphans_of_a_killed_agent_and_supervisord(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    pids = units_left_in(site.home)
    there = AgentRecord.read(AgentHome(site.home).record)
    assert there is not None
    # The agent first: it would start another supervisord at once.
    os.kill(there.pid, signal.SIGKILL)
    os.kill(int(Supervisor(site.home).pid_path.read_text()), signal.SIGKILL)
    eventually(lambda: not Supervisor(site.home).is_alive())
    assert all(map(is_alive, pids))
    assert operate.down(site, units=pair)
    assert not any(map(is_alive, pids))
    assert operate.down(site, units=pair) is False


def test_units_of_a_killed_agent_are_seen_and_stopped(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    pids = units_left_in(site.home)
    there = AgentRecord.read(AgentHome(site.home).record)
    assert there is not None
    os.kill(there.pid, signal.SIGKILL)
    eventually(lambda: not is_alive(there.pid))
    assert all(row.is_ready for row in unit_reports(site, units=pair))
    assert operate.down(site, units=pair)
    assert not any(map(is_alive, pids))


def test_units_that_outlived_agent_and_supervisord_are_reported_as_running(
    site: Site, pair: tuple[Unit, Unit]
) -> None:
    operate.up(site, units=pair)
    before = {row.name: row.pid for row in unit_reports(site, units=pair)}
    there = AgentRecord.read(AgentHome(site.home).record)
    assert there is not None
    os.kill(there.pid, signal.SIGKILL)
    os.kill(int(Supervisor(site.home).pid_path.read_text()), signal.SIGKILL)
    eventually(lambda: not Supervisor(site.home).is_alive() and not is_alive(there.pid))
    rows = unit_reports(site, units=pair)
    assert {row.name: row.pid for row in rows} == before
    for row in rows:
        assert row.state == UNSUPERVISED
        assert row.problem == "running, supervised by nobody"
    with pytest.raises(SiteError, match=r"run without an agent; `headrace up`"):
        restarting.restart(site, None)
    os.kill(before["first"] or 0, signal.SIGKILL)
    eventually(lambda: not is_alive(before["first"] or 0))
    problems = {row.name: row.problem or "" for row in unit_reports(site, units=pair)}
    # A child of it is left.
    assert problems["first"].startswith(
        "running, supervised by nobody, and not ready: http://127.106.1.1:8081"
    )
    assert problems["second"] == "running, supervised by nobody"
    # The way out.
    operate.up(site, units=pair)
    assert all(row.is_ready for row in unit_reports(site, units=pair))
    assert not is_alive(before["second"] or 0)


@pytest.mark.parametrize("hung", ["agent", "supervisord"])
def test_a_hung_agent_or_supervisord_hides_no_unit(site: Site, pair: tuple[Unit, Unit], hung: str) -> None:
    operate.up(site, units=pair)
    before = {row.name: row.pid for row in unit_reports(site, units=pair)}
    there = AgentRecord.read(AgentHome(site.home).record)
    assert there is not None
    pid = there.pid if hung == "agent" else int(Supervisor(site.home).pid_path.read_text())
    problems: list[str] = []
    os.kill(pid, signal.SIGSTOP)
    try:
        rows = unit_reports(site, units=pair, tell=problems.append, agent_max_s=1.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert {row.name: row.pid for row in rows} == before
    (problem,) = problems
    assert f"the agent at {there.url} does not answer" in problem and "drift is not known" in problem
    # Units whose supervisor does not answer are found by their processes.
    assert {row.is_ready for row in rows} == {hung == "agent"}
    assert {row.state for row in rows} <= ({"STARTING", "RUNNING"} if hung == "agent" else {UNSUPERVISED})


def test_down_works_when_the_agent_dies_in_a_request(
    site: Site, pair: tuple[Unit, Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    operate.up(site, units=pair)
    pids = units_left_in(site.home)
    there = AgentRecord.read(AgentHome(site.home).record)
    assert there is not None
    units = AgentClient.units

    def kill_then_ask(agent: AgentClient, *, with_drift: bool) -> object:
        os.kill(there.pid, signal.SIGKILL)
        return units(agent, with_drift=with_drift)

    monkeypatch.setattr(AgentClient, "units", kill_then_ask)
    assert operate.down(site, units=pair)
    assert not any(map(is_alive, pids))
    assert operate.down(site, units=pair) is False


def test_a_restart_goes_from_unit_to_unit(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    before = Supervisor(site.home).states()
    seen: list[str] = []
    restarting.restart(site, ["second", "first"], seen.append)
    assert seen == ["second", "first"]
    after = Supervisor(site.home).states()
    assert all(after[name].pid != before[name].pid for name in seen)
    (site.home / "first.broken").touch()
    os.kill(after["first"].pid, signal.SIGKILL)
    eventually(lambda: Supervisor(site.home).states()["first"].state == "BACKOFF")
    with pytest.raises(SiteError, match=r"unit first is not ready .*so no unit was restarted"):
        restarting.restart(site, ["second", "first"])
    assert Supervisor(site.home).states()["second"].pid == after["second"].pid


def test_a_restart_stops_when_a_unit_that_came_back_ends(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    before = Supervisor(site.home).states()["first"].pid

    def end(name: str) -> None:
        (site.home / f"{name}.broken").touch()
        os.kill(Supervisor(site.home).states()[name].pid, signal.SIGKILL)
        eventually(lambda: Supervisor(site.home).states()[name].state == "BACKOFF")

    with pytest.raises(SiteError, match=r"second was ready after its restart, .*; not restarted: first"):
        restarting.restart(site, ["second", "first"], end)
    assert Supervisor(site.home).states()["first"].pid == before


def test_a_unit_that_is_no_longer_wanted_is_stopped(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    before = Supervisor(site.home).states()
    operate.up(site, units=pair[:1])
    after = Supervisor(site.home).states()
    assert set(after) == {"first"}
    assert after["first"].pid == before["first"].pid


def test_units_may_swap_their_addresses(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    here, there = (unit.listens[0] for unit in pair)
    swapped = (
        stand_in(site.home, "first", there),
        stand_in(site.home, "second", here, requires=("first",)),
    )
    operate.up(site, units=swapped)
    assert {row.name: row.listens for row in unit_reports(site, units=swapped)} == {
        "first": (str(there),),
        "second": (str(here),),
    }


def test_up_and_its_units_do_not_keep_the_callers_pipes_open(site: Site, pair: tuple[Unit, Unit]) -> None:
    script = """if True:
        import pathlib, sys
        from headrace.fleet import operate
        from headrace.agent import local
        from headrace.site.addresses import Address
        from headrace.site.site import Site
        from stand_in_agent import PROGRAM, stand_in
        local.PROGRAM = PROGRAM
        site = Site.one_machine(pathlib.Path(sys.argv[1]), block=97)
        operate.up(site, units=[stand_in(site.home, "first", Address("127.106.1.1", 8081))])
        print("up")
    """
    command = [sys.executable, "-c", script, str(site.home)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Returns once no process has the other ends of its pipes open.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("up\n", "", 0)
    assert units_left_in(site.home)
    assert is_locked(AgentHome(site.home))


def test_up_is_refused_while_another_runs(site: Site, pair: tuple[Unit, Unit]) -> None:
    with (site.home / "fleet.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SiteError, match=r"another `headrace up`, `down`, .* is running"):
            operate.up(site, units=pair)


def test_an_address_is_taken_only_while_somebody_listens() -> None:
    address = Address("127.106.1.3", 9092)
    assert not is_taken(address)
    with socket.create_server(address):
        assert is_taken(address)
    assert not is_taken(address)
    assert holder_of(address) is None


def test_units_that_require_each_other_are_refused(site: Site, pair: tuple[Unit, Unit]) -> None:
    first, second = pair
    with pytest.raises(SiteError, match="in a circle: first → second → first"):
        levels((replace(first, requires=("second",)), second))
