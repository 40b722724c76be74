"""Stand-in units under a real supervisord: order, readiness, crashes, taken ports, no orphans."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.fleet import operate
from headrace.fleet.addresses import holder_of, is_taken
from headrace.fleet.errors import AddressTakenError, FleetError, UnitFailedError
from headrace.fleet.probes import HttpProbe
from headrace.fleet.processes import is_alive, units_left_in
from headrace.fleet.site import Address, Site
from headrace.fleet.supervisor import Supervisor
from headrace.fleet.units import Unit, levels

# Serves pages after a while; leaves a child of its own behind when it is not ended as a group.
STAND_IN = """
import http.server, subprocess, sys, time
print("stand-in %d%% here")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
time.sleep(0.3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


def stand_in(home: Path, name: str, address: Address, requires: tuple[str, ...] = ()) -> Unit:
    script = home / 'it\'s a "stand in".py'
    return Unit(
        name=name,
        datacenter="east",
        kind="stand-in",
        command=(sys.executable, str(script), address.host, str(address.port)),
        listens=(address,),
        probe=HttpProbe(f"http://{address}/"),
        log_path=home / "logs" / f"{name}.log",
        requires=requires,
        environment={"A_VALUE": "100% of, it"},
        files={script: STAND_IN},
        start_timeout_s=20.0,
        stop_timeout_s=5,
    )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site.one_machine(tmp_path / ("a long name " * 6) / "home")
    site.home.mkdir(parents=True)
    yield site
    operate.down(site, units=())


@pytest.fixture
def pair(site: Site) -> tuple[Unit, Unit]:
    first = stand_in(site.home, "first", Address("127.106.1.1", 8081))
    second = stand_in(site.home, "second", Address("127.106.1.2", 8081), requires=("first",))
    return first, second


def eventually(true: Callable[[], bool], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)


def test_up_starts_in_order_and_down_leaves_nothing(site: Site, pair: tuple[Unit, Unit]) -> None:
    seen: list[tuple[str, str]] = []
    operate.up(site, lambda unit, what: seen.append((unit.name, what)), units=pair)
    assert seen == [("first", "starting"), ("first", "ready"), ("second", "starting"), ("second", "ready")]
    assert all(row.is_ready for row in operate.status(site, units=pair))
    pids = units_left_in(site.home)
    assert len(pids) == 4
    assert "stand-in %d%% here" in operate.log_tail(pair[0].log_path)

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
    eventually(lambda: pair[0].probe.problem() is None)


def test_a_changed_unit_is_started_anew(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    before = Supervisor(site.home).states()
    changed = replace(pair[1], environment={"A_VALUE": "another"})
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


def test_a_unit_of_another_site_is_named_as_such(site: Site, tmp_path: Path, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair[:1])
    holder = holder_of(pair[0].listens[0])
    assert holder is not None
    assert (holder.unit, holder.home) == ("first", str(site.home))


def test_a_unit_that_fails_shows_its_last_words(site: Site, pair: tuple[Unit, Unit]) -> None:
    words = "import sys; sys.exit('no room on this disk')"
    broken = replace(pair[0], command=(sys.executable, "-c", words), start_timeout_s=1.0)
    with pytest.raises(UnitFailedError, match="no room on this disk") as caught:
        operate.up(site, units=(broken, pair[1]))
    assert caught.value.unit == "first"
    assert Supervisor(site.home).states()["second"].state == "STOPPED", "it waits for the first"


def test_what_a_killed_supervisord_left_is_ended(site: Site, pair: tuple[Unit, Unit]) -> None:
    operate.up(site, units=pair)
    pids = units_left_in(site.home)
    os.kill(int(Supervisor(site.home).pid_path.read_text()), signal.SIGKILL)
    eventually(lambda: not Supervisor(site.home).is_alive())
    assert all(map(is_alive, pids))
    assert operate.down(site, units=pair)
    assert not any(map(is_alive, pids))


def test_two_at_once_are_refused(site: Site, pair: tuple[Unit, Unit]) -> None:
    with (site.home / "fleet.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FleetError, match="another `headrace up` or `down` is at work"):
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
    with pytest.raises(FleetError, match="in a circle: first → second → first"):
        levels((replace(first, requires=("second",)), second))
