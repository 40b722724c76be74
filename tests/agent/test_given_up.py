"""Units that supervisord has given up are started again, at longer and longer intervals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fix_agent import HOST, eventually, keeper_of
from fix_ports import free_port
from headrace.agent import given_up as given_up_module
from headrace.agent import supervisor as supervisor_module
from headrace.agent import watch as watch_module
from headrace.agent.configuration import Configuration
from headrace.agent.given_up import AGAIN_AFTER_MAX_S, AGAIN_AFTER_S, GivenUp
from headrace.agent.host import Host
from headrace.agent.keeper import Keeper
from headrace.agent.kinds import Kinds, UnitKind
from headrace.agent.supervisor import Supervisor
from headrace.agent.unit import UnitProcess, UnitState
from headrace.agent.watch import Watch
from headrace.site.addresses import Address
from stand_in_agent import STAND_IN_KINDS, StandIn

READY_S = 20.0


def unit(name: str, state: str) -> UnitState:
    return UnitState(name, state, pid=0, uptime_s=0, note="")


def test_a_unit_is_due_after_growing_pauses() -> None:
    now_s = 0.0
    given_up = GivenUp(lambda: now_s)
    fatal, due_s = [unit("broker", "FATAL"), unit("registry", "RUNNING")], []
    while now_s < 4 * AGAIN_AFTER_MAX_S:
        if given_up.due(fatal):
            due_s.append(now_s)
            given_up.due([unit("broker", "BACKOFF")])  # supervisord tries it, and gives it up again
        now_s += 1.0
    pauses_s = [after - before for before, after in zip([0.0, *due_s], due_s, strict=False)]
    assert pauses_s[0] == AGAIN_AFTER_S
    assert all(after >= before for before, after in pairwise(pauses_s))
    assert pauses_s[-1] == pytest.approx(AGAIN_AFTER_MAX_S, abs=2)


def test_one_that_runs_again_or_is_deleted_is_forgotten() -> None:
    now_s = 0.0
    given_up = GivenUp(lambda: now_s)
    for states in ([unit("broker", "RUNNING")], []):
        assert given_up.due([unit("broker", "FATAL")]) == []
        now_s += AGAIN_AFTER_S - 1
        assert given_up.due(states) == given_up.due([unit("broker", "FATAL")]) == []
        now_s += AGAIN_AFTER_S - 1
        assert given_up.due([unit("broker", "FATAL")]) == []
        now_s += 1
        assert given_up.due([unit("broker", "FATAL")]) == ["broker"]
        given_up.due([])


def _waiting(name: str, configuration: Configuration, host: Host) -> UnitProcess:
    """A stand-in that ends at once, until the file `awaited` is in the home."""
    process = STAND_IN_KINDS["stand-in"].process(name, configuration, host)
    script = 'test -e "$0" || exit 1; exec "$@"'
    return replace(process, command=("sh", "-c", script, str(host.home / "awaited"), *process.command))


KINDS: Kinds = {**STAND_IN_KINDS, "stand-in": UnitKind(StandIn, _waiting)}


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    with keeper_of(tmp_path, KINDS) as made:
        yield made


def test_what_a_unit_waited_for_comes_late(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stayed down until somebody restarted it."""
    monkeypatch.setattr(supervisor_module, "START_RETRIES", 1)
    for name in ("WATCH_INTERVAL_S", "GIVEN_UP_INTERVAL_S"):
        monkeypatch.setattr(watch_module, name, 0.05)
    monkeypatch.setattr(given_up_module, "AGAIN_AFTER_S", 0.1)
    ending = threading.Event()
    watch = Watch(keeper, ending)
    keeper.put("one", StandIn(datacenter="east", listen=Address(HOST, free_port(HOST))))
    eventually(lambda: Supervisor(keeper.home).states()["one"].state == "FATAL", READY_S)
    assert keeper.wait_ready("one", 0.0).has_failed
    (keeper.home / "awaited").touch()
    watch.start()
    try:
        eventually(lambda: keeper.wait_ready("one", 0.0).is_ready, READY_S)
    finally:
        ending.set()
        watch.join()


def test_an_error_of_the_agent_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw costs one look: without its thread a host would be watched by nobody."""

    def fail(*_: object) -> None:
        raise RuntimeError("not foreseen")

    with keeper_of(tmp_path, STAND_IN_KINDS) as keeper:
        watch = Watch(keeper, threading.Event())
        with monkeypatch.context() as patched:
            patched.setattr(Supervisor, "states", fail)
            patched.setattr(Keeper, "start_order", fail)
            watch._start_given_up()
            watch._keep_zookeepers_room()
