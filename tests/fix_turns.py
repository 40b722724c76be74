"""A broker inside the test's own process, whose event loop says how much CPU its longest turn took.

Fixture: `measured_broker`, a factory, for the tests of a file. The CPU time of the loop's thread alone is
measured: what other threads and other processes do at the same time is not in it.
"""

import gc
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from fix_ports import free_port
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.broker.broker import Broker
from headrace.broker.loop import EventLoop
from headrace.broker.options import BrokerOptions

READY_WAIT_MAX_S: Final = 60.0


class MeasuredBroker:
    """`bootstrap` is its address; `longest_turn_s` the most CPU that one turn took since `forget_turns`."""

    def __init__(self, zookeeper: str, directory: Path, settings: Mapping[str, str]) -> None:
        self._turns_s: list[float] = []
        self._ready = threading.Event()
        port = free_port("127.0.0.1")
        self.bootstrap = f"127.0.0.1:{port}"
        options = BrokerOptions(1, "test", ("127.0.0.1", port), zookeeper, directory, settings=dict(settings))
        self._broker = Broker(options, lambda _: self._ready.set())
        self._thread = threading.Thread(target=self._broker.run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(READY_WAIT_MAX_S), "the broker is not ready"

    def stop(self) -> None:
        self._broker.stop()
        self._thread.join(READY_WAIT_MAX_S)

    def turned(self, cpu_s: float) -> None:
        self._turns_s.append(cpu_s)

    def forget_turns(self) -> None:
        self._turns_s.clear()

    @property
    def longest_turn_s(self) -> float:
        return max(self._turns_s, default=0.0)

    def is_loop_of(self, thread: threading.Thread) -> bool:
        return thread is self._thread


StartMeasured = Callable[..., MeasuredBroker]


@pytest.fixture(scope="module")
def measured_broker(zookeeper_server: ZooKeeperServer) -> Iterator[StartMeasured]:
    started: list[MeasuredBroker] = []
    directory = Path(tempfile.mkdtemp(prefix="headrace-measured-"))
    turn = EventLoop.turn

    def measured_turn(loop: EventLoop, wait_s: float) -> None:
        before_s = time.thread_time()
        try:
            turn(loop, wait_s)
        finally:
            for broker in started:
                if broker.is_loop_of(threading.current_thread()):
                    broker.turned(time.thread_time() - before_s)

    patch = pytest.MonkeyPatch()
    patch.setattr(EventLoop, "turn", measured_turn)
    # The collector would go through all that pytest and other tests have made.
    gc.collect()
    gc.freeze()

    def start(settings: Mapping[str, str] | None = None) -> MeasuredBroker:
        broker = MeasuredBroker(room_on(zookeeper_server).hosts, directory, settings or {})
        started.append(broker)
        broker.start()
        return broker

    try:
        yield start
    finally:
        for broker in started:
            broker.stop()
        gc.unfreeze()
        patch.undo()
        shutil.rmtree(directory, ignore_errors=True)
