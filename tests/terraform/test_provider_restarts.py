"""Applies that change the settings of all brokers: each is in sync again before the next one restarts, also
where the brokers of one cluster are in two states.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fix_hosts import BrokersOnHosts, StartHosts
from fix_restarts import BROKERS, isr, slow_topic, watched
from fix_terraform import Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.client import Admin

Make = Callable[[str], Workspace]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_changed_brokers_restart_one_after_another_each_once_the_one_before_is_in_sync(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    site = BrokersOnHosts(hosts(("host-a", "host-b")), zookeeper, ("host-a", "host-b", "host-a"))
    folder = workspace(site.hcl())
    folder.apply()
    slow_topic(site.listens, bytes_per_s=500_000)
    folder.write(site.hcl().replace('"4000"', '"5000"'))
    with watched(site.listens) as in_sync:
        assert "0 added, 3 changed, 0 destroyed" in folder.apply()
    assert min(in_sync) == 2, "never were two of three replicas out of sync"
    with Admin(site.listens) as admin:
        assert set(isr(admin)) == set(BROKERS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_applies_at_once_restart_no_two_brokers_of_a_cluster(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom, tmp_path: Path
) -> None:
    site = BrokersOnHosts(hosts(("host-a", "host-b")), zookeeper, ("host-a", "host-b", "host-a"))
    provider, *brokers = site.hcl().split('resource "headrace_broker"')
    texts = [
        provider + "".join(f'resource "headrace_broker"{each}' for each in part)
        for part in (brokers[:2], brokers[2:])
    ]
    first = workspace(texts[0])
    second = Workspace(tmp_path / "colleague")
    second.folder.mkdir()
    second.write(texts[1])
    second.run("init")
    first.apply()
    second.apply()
    slow_topic(site.listens, bytes_per_s=500_000)
    first.write(texts[0].replace('"4000"', '"5000"'))
    second.write(texts[1].replace('"4000"', '"5000"'))
    with watched(site.listens) as in_sync, ThreadPoolExecutor() as both:
        outputs = [each.result() for each in [both.submit(first.apply), both.submit(second.apply)]]
    assert "2 changed" in outputs[0] and "1 changed" in outputs[1]
    assert min(in_sync) == 2, "never were two of three replicas out of sync"
    with Admin(site.listens) as admin:
        assert set(isr(admin)) == set(BROKERS)
