"""Brokers that are destroyed and made again, with the ZooKeeper of before: none of them is drained."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_hosts import BrokersOnHosts, StartHosts
from fix_terraform import Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.client.replica_admin import ReplicaAdmin


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_brokers_that_are_made_again_after_all_were_destroyed_get_replicas(
    workspace: Callable[[str], Workspace], hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    site = BrokersOnHosts(hosts(("host-a",)), zookeeper, ("host-a", "host-a"))
    folder = workspace(site.hcl())
    folder.apply()
    assert "2 destroyed" in folder.run("destroy", "-auto-approve")
    folder.apply()
    with ReplicaAdmin(site.listens) as admin:
        assert admin.replicas().drained == frozenset()
        admin.create_topic("clicks", 1, 2)
