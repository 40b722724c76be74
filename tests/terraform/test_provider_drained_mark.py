"""The mark of a drained broker: one that is made again does not have it, and a plan names one that stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_hosts import BrokersOnHosts, StartHosts
from fix_terraform import Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.client.replica_admin import ReplicaAdmin
from headrace.reassignment.operations import DRAINED, undrain


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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_plan_names_a_broker_that_stays_and_that_an_interrupted_deletion_left_drained(
    workspace: Callable[[str], Workspace], hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    site = BrokersOnHosts(hosts(("host-a",)), zookeeper, ("host-a", "host-a"))
    folder = workspace(site.hcl())
    folder.apply()
    with ReplicaAdmin(site.listens) as admin:
        # What a deletion does first, and what is left if Ctrl-C ends it then.
        admin.alter_broker_configs(2, {DRAINED: "true"})
        shown = " ".join(folder.run("plan").split())
        assert "Broker b2 is drained" in shown and "Broker b1 is drained" not in shown
        assert "`headrace brokers undrain 2 -d east`" in shown and "No changes." in shown
        undrain(admin, 2)
    assert "is drained" not in folder.run("plan")
