"""An apply that ended half way, and the next one: what it must not take away. Real terraform and brokers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

import quick_kinds_agent
from fix_hosts import TOPIC, WAIT_MAX_S, BrokersOnHosts, StartHosts, in_sync, publish, records
from fix_terraform import VENV, Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.client.admin import Admin
from headrace.client.errors import ClientError

Make = Callable[[str], Workspace]
COUNT = 50
FACTOR = 3

# What a deletion that waits for broker 2 does at each second: "waits", or its error.
PATIENCE = """
import json, sys
from headrace.client.in_sync import Lack
from headrace.provider.lacking import Patience
from headrace.provider.problems import ResourceError

now_s, gone, made = 0.0, json.loads(sys.argv[1]), json.loads(sys.argv[2])
patience = Patience({"name": "b3", "drain_timeout_s": 200}, lambda _: now_s < made, lambda: now_s)
while True:
    try:
        patience.check(Lack({("clicks", 0): [2]}, (2,), (2,) if now_s < gone else ()))
    except ResourceError as error:
        print(json.dumps([now_s, error.problems[0].summary, error.problems[0].detail]))
        break
    now_s += 1.0
"""


@pytest.mark.parametrize(
    ("gone_until_s", "made_until_s", "ends_s", "text"),
    [
        (1000, 0, 60, "(broker 2 is not there)"),
        (1000, 90, 150, "(broker 2 is not there)"),
        (30, 0, 200, "after 200 s (drain_timeout_s)"),
    ],
)
def test_a_deletion_waits_for_a_broker_that_is_made_and_not_for_ever(
    terraform: None, gone_until_s: int, made_until_s: int, ends_s: int, text: str
) -> None:
    command = [str(VENV / "bin" / "python"), "-c", PATIENCE, str(gone_until_s), str(made_until_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    now_s, summary, detail = json.loads(done.stdout)
    assert (now_s, summary) == (ends_s, "Broker b3 is not destroyed yet")
    assert f"broker 2 of its cluster has not all replicas in sync: of clicks-0 {text}" in detail


def patient(site: BrokersOnHosts, drain_timeout_s: int) -> str:
    return site.hcl().replace("  settings ", f"  drain_timeout_s = {drain_timeout_s}\n  settings ")


@contextlib.contextmanager
def counted(bootstrap: str) -> Iterator[list[int]]:
    """Counts all the while how many brokers have the topic's partition in sync."""
    done = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while not done.wait(0.1):
            with contextlib.suppress(ClientError):
                seen.append(len(in_sync(bootstrap)))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join(WAIT_MAX_S)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_next_apply_takes_no_broker_away_while_one_of_the_last_apply_is_empty(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    agents = hosts(("host-a", "host-b", "host-c"))
    site = BrokersOnHosts(agents, zookeeper, ("host-a", "host-a", "host-a"))
    folder = workspace(patient(site, 3))
    assert "3 added" in folder.apply()
    with Admin(site.listens) as admin:
        admin.create_topic(TOPIC, 1, FACTOR)
    publish(site.listens, range(COUNT))

    # The first apply removes broker 2, and cannot make it: its new host is down.
    agents["host-b"].end(signal.SIGTERM)
    site.move(2, "host-b")
    folder.write(patient(site, 3))
    folder.run("apply", "-auto-approve", "-target=headrace_broker.b2", code=1)
    assert in_sync(site.listens[0]) == [1, 3]

    with counted(site.listens[0]) as seen:
        # The next one, with both: broker 3 waits for 2, and nothing is changed if that is not made.
        listen = site.listens[2]
        site.move(3, "host-c")
        folder.write(patient(site, 3))
        output = " ".join(folder.apply(code=1).replace("│", " ").split())
        assert "Broker b3 is not destroyed yet" in output
        assert f"broker 2 of its cluster has not all replicas in sync: of {TOPIC}-0 after 3 s" in output
        assert in_sync(site.listens[0]) == [1, 3]

        # The change is taken back, for a longer wait, and made again once the host is there.
        site.hosts[2], site.listens[2] = "host-a", listen
        folder.write(patient(site, int(WAIT_MAX_S)))
        folder.run("apply", "-auto-approve", "-target=headrace_broker.b3")
        site.move(3, "host-c")
        folder.write(patient(site, int(WAIT_MAX_S)))
        agents["host-b"].start(quick_kinds_agent.PROGRAM)
        output = folder.apply()
        assert "2 added, 1 changed, 1 destroyed" in output, output  # the change is b1's time
    assert len(seen) > 10 and min(seen) >= 2, "what is there is on two disks at any time"
    assert [in_sync(address) for address in site.listens] == [[1, 2, 3]] * FACTOR
    assert records(site.listens, COUNT) == [b"event %d" % number for number in range(COUNT)]
    folder.plan(code=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broker_with_empty_partitions_for_which_nobody_has_a_place_is_not_destroyed(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    site = BrokersOnHosts(hosts(("host-a",)), zookeeper, ("host-a", "host-a", "host-a"))
    folder = workspace(site.hcl())
    folder.apply()
    with Admin(site.listens) as admin:
        admin.create_topic(TOPIC, 1, FACTOR)

    whole = site.hcl()
    fewer = whole[: whole.index('resource "headrace_broker" "b3"')]
    folder.write(fewer)
    output = " ".join(folder.plan(code=1).replace("│", " ").split())
    assert "Broker b3 has replicas" in output
    assert f"It has 1 replica, without data: of {TOPIC}-0." in output
    assert f"{TOPIC}-0: its 3 replicas need 1 other broker" in output and "allow_data_loss = true" in output
    # A deletion that no plan looked at is refused as well.
    folder.write(whole)
    folder.run("plan", "-replace=headrace_broker.b3", "-out=replace", code=0)
    output = " ".join(folder.run("apply", "replace", code=1).replace("│", " ").split())
    assert "Broker b3 has replicas" in output
    assert in_sync(site.listens[0]) == [1, 2, 3]

    # With a place for it, it goes, and the partition keeps its replicas.
    with Admin(site.listens) as admin:
        admin.create_topic("pair", 3, 2)
        admin.delete_topic(TOPIC)
    folder.write(fewer)
    assert "0 added, 0 changed, 1 destroyed" in folder.apply()
    with Admin(site.listens[:2]) as admin:
        assert all(sorted(part.isr) == [1, 2] for part in admin.topic("pair").partitions.values())
