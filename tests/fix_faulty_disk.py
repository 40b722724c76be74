"""A disk that fails or stalls under a running broker.

The broker is a real process; a `sitecustomize` of its own lets its fsyncs, writes and reads fail or stall,
partition by partition, as a file says. Fixture: `faulty_broker`.
"""

import os
import time
from pathlib import Path

import pytest

from fix_broker import BrokerCluster, BrokerProcess, RawClient, StartCluster

WAIT_MAX_S = 120.0

FAULTY_OS = '''
"""Lets calls of os fail: each line of the file $FAULTS is "CALL ERROR PATH-PART"; ERROR may be STALL."""
import errno, os, time

def wrapped(name):
    real = getattr(os, name)
    def call(fd, *rest):
        for attempt in range(3_000):
            try:
                with open(os.environ["FAULTS"]) as lines:
                    plan = [line.split() for line in lines]
            except OSError:
                plan = []
            path = os.readlink(f"/proc/self/fd/{fd}") if plan else ""
            what = next((error for call, error, part in plan if call == name and part in path), None)
            if what is None:
                return real(fd, *rest)
            if what != "STALL":
                number = getattr(errno, what)
                raise OSError(number, os.strerror(number))
            time.sleep(0.01)
        raise AssertionError("stalled for too long")
    return call

for each in ("fdatasync", "pwritev", "pread"):
    setattr(os, each, wrapped(each))
'''


class FaultyBroker:
    """A broker with the partitions bad-0 and good-0, whose disk fails or stalls on command."""

    def __init__(self, start: StartCluster, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(FAULTY_OS)
        self._plan = folder / "faults"
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        cluster: BrokerCluster = start(environment={"PYTHONPATH": path, "FAULTS": str(self._plan)})
        self.process: BrokerProcess = cluster[1]
        with RawClient(self.process.address) as client:
            client.create_topic("bad")
            client.create_topic("good")

    def fail(self, *faults: str) -> None:
        """Makes calls fail or stall: lines as in `FAULTY_OS`; none: the disk works."""
        changed = self._plan.with_suffix(".new")
        changed.write_text("\n".join(faults))
        changed.replace(self._plan)

    def log_line(self, text: str) -> str:
        """Returns the broker's log line that contains `text`, once there is one."""
        deadline = time.monotonic() + WAIT_MAX_S
        while True:
            lines = [line for line in self.process.output().splitlines() if text in line]
            if lines:
                return lines[0]
            assert time.monotonic() < deadline, self.process.output()[-4000:]
            time.sleep(0.02)


@pytest.fixture
def faulty_broker(broker_cluster: StartCluster, tmp_path_factory: pytest.TempPathFactory) -> FaultyBroker:
    return FaultyBroker(broker_cluster, tmp_path_factory.mktemp("faulty"))
