"""A broker_id given twice: the broker that has it keeps what it holds. Real terraform and brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_agent import HOST
from fix_hosts import TOPIC, BrokersOnHosts, StartHosts
from fix_ports import free_port
from fix_terraform import Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.client.admin import Admin
from headrace.client.replica_admin import ReplicaAdmin

Make = Callable[[str], Workspace]
SETTINGS = {"zookeeper.session.timeout.ms": "4000"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_unit_with_the_id_of_a_broker_that_runs_is_not_made_and_its_deletion_drains_nobody(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    site = BrokersOnHosts(hosts(("host-a",)), zookeeper, ("host-a",) * 3)
    folder = workspace(site.hcl())
    folder.apply()
    with Admin(site.listens) as admin:
        admin.create_topic(TOPIC, 6, 2)
        before = {number: part.replicas for number, part in admin.topic(TOPIC).partitions.items()}
    assert any(1 in replicas for replicas in before.values())

    listen = f"{HOST}:{free_port(HOST)}"
    first = site.hcl()[site.hcl().index('resource "headrace_broker" "b1"') :].split("\n}\n")[0] + "\n}\n"
    twin = first.replace('"b1"', '"twin"').replace(site.listens[0], listen)
    folder.write(site.hcl() + twin)
    output = " ".join(folder.apply(code=1).replace("│", " ").split())
    assert "Another broker has the id 1" in output and f"runs at {site.listens[0]}" in output, output

    # One that is there all the same: it was put to the agent by hand, or by an earlier version.
    fields = {"datacenter": "east", "broker_id": 1, "zookeeper": zookeeper.hosts, "listen": listen}
    site.agents["host-a"].client.put("twin", {"kind": "broker", **fields, "settings": SETTINGS})
    folder.run("import", "headrace_broker.twin", "host-a/twin")
    folder.write(site.hcl())
    assert "1 destroyed" in folder.apply()
    with ReplicaAdmin(site.listens) as replica_admin:
        after = replica_admin.topic(TOPIC).partitions
        assert {number: part.replicas for number, part in after.items()} == before
        assert not replica_admin.replicas().drained
    folder.plan(code=0)
