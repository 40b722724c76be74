"""Brokers change hosts by one apply while a producer writes: a living one, and two whose hosts are dead."""

import contextlib
import re
import threading
from collections.abc import Callable

import pytest

from fix_agent import RunningAgent
from fix_audit import wait_for
from fix_hosts import (
    TOPIC,
    WAIT_MAX_S,
    BrokersOnHosts,
    StartHosts,
    die,
    in_sync,
    log_bytes,
    publish,
    records,
)
from fix_terraform import Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.client.admin import Admin
from headrace.client.errors import ClientError
from headrace.client.producer import Producer

Make = Callable[[str], Workspace]
COUNT = 50
PAUSE_S = 0.02
FACTOR = 3


class Writer:
    """A producer that writes numbered events, one after another, until `stop`."""

    def __init__(self, bootstrap: list[str], first: int) -> None:
        self._bootstrap = bootstrap
        self._first = first
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._write)
        self.written = 0
        self._thread.start()

    def _write(self) -> None:
        try:
            with Producer(self._bootstrap) as producer:
                while not self._stopping.wait(PAUSE_S):
                    event = b"event %d" % (self._first + self.written)
                    producer.send(TOPIC, event, partition=0).result(WAIT_MAX_S)
                    self.written += 1
        except BaseException as error:
            self._errors.append(error)

    def stop(self) -> int:
        """Returns how many events were acknowledged; each of them was, or this raises."""
        self._stopping.set()
        self._thread.join(WAIT_MAX_S)
        assert not self._thread.is_alive(), "the producer still waits"
        assert not self._errors, self._errors
        return self.written


def begin(
    workspace: Make, zookeeper: ZooKeeperRoom, agents: dict[str, RunningAgent], hosts: tuple[str, ...]
) -> tuple[BrokersOnHosts, Workspace]:
    """Three brokers, and one topic with a replica on each of them."""
    site = BrokersOnHosts(agents, zookeeper, hosts)
    folder = workspace(site.hcl())
    assert "3 added" in folder.apply()
    with Admin(site.listens) as admin:
        admin.create_topic(TOPIC, 1, FACTOR)
    publish(site.listens, range(COUNT))
    return site, folder


def check(site: BrokersOnHosts, folder: Workspace, count: int) -> None:
    """Each broker has each event once and in order, in the same bytes, and nothing is left to do."""
    expected = [b"event %d" % number for number in range(count)]
    assert records(site.listens, count) == expected
    # The apply asked one of them; the others hear of it from ZooKeeper.
    wait_for(
        lambda: [in_sync(address) for address in site.listens] == [[1, 2, 3]] * FACTOR,
        lambda: [in_sync(address) for address in site.listens],
    )
    logs = [log_bytes(site.home(number), f"b{number}") for number in (1, 2, 3)]
    assert logs[1:] == logs[:1] * 2
    folder.plan(code=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_living_broker_moves_to_another_host_by_one_apply(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    agents = hosts(("host-a", "host-b"))
    site, folder = begin(workspace, zookeeper, agents, ("host-a", "host-a", "host-a"))
    writer = Writer(list(site.listens), COUNT)
    try:
        site.move(2, "host-b")
        folder.write(site.hcl())
        output = folder.plan()
        assert "# headrace_broker.b2 must be replaced" in output
        assert re.search(r'~ host +=.* "host-a" -> "host-b"', output)
        assert "1 added, 0 changed, 1 destroyed" in folder.apply()
        assert in_sync(site.listens[1]) == [1, 2, 3]
    finally:
        written = writer.stop()
    assert written, "the producer wrote nothing meanwhile"
    check(site, folder, COUNT + written)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_living_brokers_move_one_after_the_other_by_one_apply(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    """With both empty at once all that they hold would be on one disk."""
    agents = hosts(("host-a", "host-b"))
    site, folder = begin(workspace, zookeeper, agents, ("host-a", "host-a", "host-a"))
    done = threading.Event()
    fewest: list[int] = []

    def look() -> None:
        while not done.wait(0.1):
            with contextlib.suppress(ClientError):
                fewest.append(len(in_sync(site.listens[0])))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for number in (2, 3):
            site.move(number, "host-b")
        folder.write(site.hcl())
        output = folder.apply()
        assert "2 added, 0 changed, 2 destroyed" in output, output
    finally:
        done.set()
        watcher.join(WAIT_MAX_S)
    assert len(fewest) > 10 and min(fewest) >= 2
    check(site, folder, COUNT)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hosts_that_die_at_once_are_replaced_by_one_apply(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    agents = hosts(("host-a", "host-b", "host-c", "host-d"))
    site, folder = begin(workspace, zookeeper, agents, ("host-a", "host-b", "host-c"))
    writer = Writer(list(site.listens), COUNT)
    try:
        for dead in ("host-b", "host-c"):
            die(agents[dead])
        # The one is given up, the other may come back; both brokers are made again on one host.
        site.known.remove("host-b")
        for number in (2, 3):
            site.move(number, "host-d")
        folder.write(site.hcl())
        output = folder.apply()
        assert "2 added, 0 changed, 2 destroyed" in output, output
        assert in_sync(site.listens[0]) == [1, 2, 3]
    finally:
        written = writer.stop()
    assert written, "the producer wrote nothing meanwhile"
    check(site, folder, COUNT + written)
