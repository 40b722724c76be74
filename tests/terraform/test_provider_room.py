"""Terraform's plans look at the room on the other brokers' disks. Real terraform and brokers."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from fix_agent import eventually
from fix_hosts import TOPIC, BrokersOnHosts, StartHosts, in_sync, publish
from fix_terraform import Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.client.admin import Admin
from headrace.coordination.topics import TopicRegistry

Make = Callable[[str], Workspace]
HUGE_RESERVE = 1 << 60


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broker_whose_replicas_the_others_have_no_room_for_is_not_destroyed(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    """Brokers 1 and 2 have to keep more free than any disk has."""
    site = BrokersOnHosts(hosts(("host-a",)), zookeeper, ("host-a", "host-a", "host-a"))
    session = '{ "zookeeper.session.timeout.ms" = "4000" }'
    reserve = f'{session[:-2]}, "headrace.disk.free.min.bytes" = "{HUGE_RESERVE}" }}'
    whole = site.hcl().replace(session, reserve, 2)
    last = whole.index('resource "headrace_broker" "b3"')
    folder = workspace(whole)
    folder.apply()
    with zookeeper.session() as opened:
        TopicRegistry(opened).create(TOPIC, uuid4(), {0: (3,)})
    with Admin(site.listens) as admin:
        eventually(lambda: TOPIC in admin.topics() and admin.topic(TOPIC).partitions[0].leader == 3)
    publish(site.listens, range(20))

    folder.write(whole[:last])
    output = " ".join(folder.plan(code=1).replace("│", " ").split())
    assert "Broker b3 holds data" in output
    assert f"{TOPIC}-0: none of brokers 1, 2 has room for its" in output
    assert f"{HUGE_RESERVE:,} are its reserve" in output
    assert "headrace brokers drain 3 --ignore-room" in output
    output = " ".join(folder.apply(code=1).replace("│", " ").split())
    assert "Broker b3 holds data" in output and in_sync(site.listens[0]) == [3]

    # More replicas are refused for the same cause, before anything is changed.
    topic = f"""
resource "headrace_topic" "clicks" {{
  bootstrap_servers  = ["{site.listens[0]}"]
  name               = "{TOPIC}"
  partitions         = 1
  replication_factor = %d
}}
"""
    folder.write(whole + topic % 1)
    folder.run("import", "headrace_topic.clicks", f"{site.listens[0]}/{TOPIC}")
    folder.write(whole + topic % 2)
    output = " ".join(folder.plan(code=1).replace("│", " ").split())
    assert f"Topic {TOPIC} cannot have 2 replicas" in output and "has room for its" in output

    # With room, the broker goes: the others' reserve is as usual.
    usual = site.hcl()
    folder.write(usual + topic % 1)
    folder.apply()
    folder.write(usual[: usual.index('resource "headrace_broker" "b3"')] + topic % 1)
    assert "1 destroyed" in folder.apply()
    assert in_sync(site.listens[0]) in ([1], [2])
