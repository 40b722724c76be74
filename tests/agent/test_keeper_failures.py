"""Errors in the middle of a change: what the agent began it completes, and no unit waits for another.

One real keeper and its supervisord, in this process; the steps of the watch are called one by one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fix_agent import HOST, eventually, keeper_of, units_left_in
from fix_ports import free_port
from headrace.agent import supervisor as supervisor_module
from headrace.agent import watch as watch_module
from headrace.agent.errors import NotReadyError, SupervisorError
from headrace.agent.keeper import Keeper
from headrace.agent.processes import has_ended, is_alive
from headrace.agent.rolling import Rolling
from headrace.agent.supervisor import Supervisor
from headrace.agent.watch import Watch
from headrace.site.addresses import Address
from stand_in_agent import STAND_IN_KINDS, StandIn

READY_S = 20.0


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    with keeper_of(tmp_path, STAND_IN_KINDS) as made:
        yield made


def stand_in(value: str = "a value", requires: tuple[str, ...] = ()) -> StandIn:
    listen = Address(HOST, free_port(HOST))
    return StandIn(datacenter="east", listen=listen, value=value, requires=requires)


def pid_of(keeper: Keeper, name: str) -> int:
    return Supervisor(keeper.home).states()[name].pid


def freeze(pid: int) -> None:
    """No signal but SIGKILL reaches the process until SIGCONT."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def recover(keeper: Keeper) -> None:
    """What the watch does when something is unfinished."""
    assert keeper.take_unfinished()
    for name in keeper.recover_changes():
        keeper.start_again(name)


def nothing_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """No unit ends within its time: each wait for a stop is over at once."""
    monkeypatch.setattr(supervisor_module, "STOP_TIMEOUT_MAX_S", -1.0)


def test_a_put_that_fails_after_the_stop_is_completed(keeper: Keeper) -> None:
    configuration = stand_in("before")
    keeper.put("one", configuration)
    file = keeper.home / "one.value"
    file.unlink()
    file.mkdir()
    changed = configuration.model_copy(update={"value": "after"})
    with pytest.raises(OSError):
        keeper.put("one", changed)
    recover(keeper)
    assert "one" not in Supervisor(keeper.home).states(), "it failed again"
    file.rmdir()
    recover(keeper)
    assert keeper.wait_ready("one", READY_S).is_ready
    assert file.read_text() == "after"
    assert not keeper.take_unfinished() and keeper.recover_changes() == []


def test_the_watch_completes_it(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "WATCH_INTERVAL_S", 0.05)
    monkeypatch.setattr(watch_module, "RETRY_INTERVAL_S", 0.05)
    ending = threading.Event()
    watch = Watch(keeper, ending)
    watch.start()
    try:
        keeper.put("one", stand_in())
        file = keeper.home / "two.value"
        file.mkdir()
        with pytest.raises(OSError):
            keeper.put("two", stand_in())
        file.rmdir()
        eventually(lambda: keeper.wait_ready("two", 0.0).is_ready, READY_S)
    finally:
        ending.set()
        watch.join()


def test_units_that_die_with_supervisord_come_back_when_a_put_starts_another(keeper: Keeper) -> None:
    keeper.put("one", stand_in())
    before = pid_of(keeper, "one")
    daemon = int(Supervisor(keeper.home).pid_path.read_text())
    assert keeper.take_unfinished()  # that first put started supervisord
    os.kill(daemon, signal.SIGKILL)
    assert has_ended(daemon, READY_S)
    keeper.put("two", stand_in())
    assert not is_alive(before), "an orphan of the old supervisord"
    recover(keeper)
    for name in ("one", "two"):
        assert keeper.wait_ready(name, READY_S).is_ready
    assert len(units_left_in(keeper.home)) == 4, "each runs once"


def test_a_forgotten_unit_that_did_not_stop_is_stopped_and_keeps_no_other_one_waiting(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.put("one", stand_in())
    keeper.put("two", stand_in())
    pid = pid_of(keeper, "one")
    freeze(pid)
    keeper.take_unfinished()
    with monkeypatch.context() as patch:
        nothing_stops(patch)
        with pytest.raises(SupervisorError, match="does not end"):
            keeper.delete("one")
        assert keeper.names() == ["two"]
        Supervisor(keeper.home).stop("two", wait=True)
        assert keeper.take_unfinished()
        assert keeper.recover_changes() == ["two"], "although the other one still does not stop"
    os.kill(pid, signal.SIGCONT)
    recover(keeper)
    assert not is_alive(pid)
    assert set(Supervisor(keeper.home).states()) == {"two"}


def test_a_restart_that_a_crash_interrupted_while_the_unit_stopped_is_completed(keeper: Keeper) -> None:
    keeper.put("one", stand_in())
    pid = pid_of(keeper, "one")
    freeze(pid)
    Supervisor(keeper.home).stop("one")
    assert Supervisor(keeper.home).states()["one"].state == "STOPPING"
    assert keeper.recover_changes() == ["one"]
    os.kill(pid, signal.SIGCONT)
    assert keeper.start_again("one")
    assert keeper.wait_ready("one", READY_S).is_ready
    assert pid_of(keeper, "one") != pid


def test_a_unit_that_does_not_end_keeps_no_other_one_from_an_orderly_end(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.put("one", stand_in())
    keeper.put("two", stand_in(requires=("one",)))
    removed: list[str] = []

    def remove(supervisor: Supervisor, name: str) -> None:
        removed.append(name)
        if name == "two":
            raise SupervisorError("unit two does not end")

    monkeypatch.setattr(Supervisor, "remove", remove)
    keeper.close(ends_units=True)
    assert removed == ["two", "one"]
    assert not Supervisor(keeper.home).is_alive()
    assert units_left_in(keeper.home) == []


def test_a_list_of_all_units_is_one_of_those_that_are_there(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is deleted while they are looked at."""
    keeper.put("one", stand_in())
    monkeypatch.setattr(Keeper, "names", lambda self: ["one", "two"])  # as they were a moment before
    assert [report.name for report in keeper.reports()] == ["one"]


def test_what_was_applied_is_on_disk_before_its_file_has_its_name(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file after a crash of the machine would keep the next agent from starting."""
    flushed: list[str] = []

    def fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    keeper.put("one", stand_in())
    assert flushed.count("one.json.new") == 2, "as it was recorded, and as it was applied"


def test_a_rolling_restart_stops_when_one_that_came_back_ends(keeper: Keeper) -> None:
    names = ["one", "two", "three"]
    for name in names:
        keeper.put(name, stand_in())
    for name in names:
        assert keeper.wait_ready(name, READY_S).is_ready
    before = pid_of(keeper, "three")
    rolled = Rolling(keeper).roll(names, READY_S)
    assert next(rolled).name == "one"
    (keeper.home / "one.broken").write_text("no room on this disk")
    os.kill(pid_of(keeper, "one"), signal.SIGKILL)
    eventually(lambda: not keeper.wait_ready("one", 0.0).is_ready)
    with pytest.raises(NotReadyError, match="unit one was ready after its restart, and is not") as caught:
        next(rolled)
    assert caught.value.details["left_alone"] == ["two", "three"]
    assert pid_of(keeper, "three") == before
