"""One apply that changes the settings of all brokers: each is in sync again before the next one restarts."""

from __future__ import annotations

from collections.abc import Callable

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
