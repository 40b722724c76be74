"""A broker whose loop stands still is shown as one that does, by the threads that still answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fix_one_broker import wait_until
from fix_ports import free_port
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.broker import pulse as pulses
from headrace.broker.broker import Broker
from headrace.broker.options import BrokerOptions
from headrace.broker.pulse import BEAT_INTERVAL_MS, STUCK_MS, Pulse


class Clock:
    """Seconds that a test tells."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_loop_that_beats_in_time_is_not_late() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    assert pulse.status() == {"late_ms": None, "is_stuck": False}
    pulse.beat()
    clock.now_s += BEAT_INTERVAL_MS / 1000
    assert pulse.status() == {"late_ms": 0, "is_stuck": False}
    clock.now_s += STUCK_MS / 1000
    assert pulse.status() == {"late_ms": STUCK_MS, "is_stuck": False}
    clock.now_s += 1
    assert pulse.status() == {"late_ms": STUCK_MS + 1_000, "is_stuck": True}
    pulse.beat()
    assert pulse.status() == {"late_ms": 0, "is_stuck": False}


@pytest.mark.zookeeper
def test_a_broker_that_waits_for_its_disk_without_end_is_stuck_until_it_goes_on(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulses, "STUCK_MS", 300)
    ready, answers = threading.Event(), threading.Event()

    def hang() -> None:
        answers.wait()

    address = "127.0.0.1", free_port("127.0.0.1")
    broker = Broker(
        BrokerOptions(1, "test", address, room_on(zookeeper_server).hosts, tmp_path), lambda _: ready.set()
    )
    thread = threading.Thread(target=broker.run, daemon=True)
    thread.start()
    assert ready.wait(60.0)
    try:
        wait_until(lambda: broker.status()["loop"]["late_ms"] is not None)
        assert not broker.status()["loop"]["is_stuck"]
        broker._loop.post(hang)
        wait_until(lambda: broker.status()["loop"]["is_stuck"])
        answers.set()
        wait_until(lambda: not broker.status()["loop"]["is_stuck"])
    finally:
        answers.set()
        broker.stop()
        thread.join(60.0)


def test_a_loop_whose_first_turn_never_ends_is_stuck() -> None:
    now_s = 5.0
    pulse = Pulse(lambda: now_s)
    begun: list[object] = []
    pulse.begin(lambda period_ms, beat: begun.append((period_ms, beat)))
    assert begun == [(BEAT_INTERVAL_MS, pulse.beat)] and not pulse.status()["is_stuck"]
    now_s += (BEAT_INTERVAL_MS + STUCK_MS + 1) / 1000
    assert pulse.status()["is_stuck"]
