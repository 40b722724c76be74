"""A dead host is replaced by one apply: the real terraform, agents, brokers and replicas."""

import re
from collections.abc import Callable
from functools import partial

import pytest

from fix_agent import HOST, eventually
from fix_hosts import WAIT_MAX_S, BrokersOnHosts, StartHosts, die, log_bytes, publish, records
from fix_ports import free_port
from fix_terraform import Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.client.admin import Admin

Make = Callable[[str], Workspace]
COUNT = 50


def is_gone(admin: Admin, topic: str) -> bool:
    return topic not in admin.topics()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dead_host_is_replaced_by_one_apply(
    workspace: Make, hosts: StartHosts, zookeeper: ZooKeeperRoom
) -> None:
    agents = hosts(("host-a", "host-b", "host-c"))
    # Host a has two of the three brokers, b one, and c stands by.
    site = BrokersOnHosts(agents, zookeeper, ("host-a", "host-b", "host-a"))
    folder = workspace(site.hcl())
    assert "3 added" in folder.apply()
    with Admin(site.listens) as admin:
        admin.create_topic("clicks", 1, 3)
        admin.create_topic("alone", 3, 1)
        on_dead = {number: part.replicas for number, part in admin.topic("alone").partitions.items()}
    publish(site.listens, range(COUNT))
    (lonely,) = (number for number, replicas in on_dead.items() if replicas == (2,))
    expected = records(site.listens, COUNT)
    before = log_bytes(agents["host-a"].home, "b1")

    die(agents["host-b"])
    # The plan goes on, and says what it does not know.
    output = " ".join(folder.plan().split())
    assert "broker host-b/b2 could not be read" in output and "give the unit another `host`" in output
    assert re.search(r"the agent of host host-b does not answer", output)

    # What was there alone would be lost, and is named.
    site.move(2, "host-c")
    folder.write(site.hcl())
    output = " ".join(folder.plan(code=1).split())
    assert "Whether Broker b2 holds data is not known" in output
    assert f"No other live broker has alone-{lonely} in sync" in output

    with Admin(site.listens) as admin:
        admin.delete_topic("alone")
    for address in (site.listens[0], site.listens[2]):
        with Admin(address) as admin:
            eventually(partial(is_gone, admin, "alone"), WAIT_MAX_S)
    output = folder.plan()
    assert "# headrace_broker.b2 must be replaced" in output and "# forces replacement" in output
    assert re.search(r'~ host +=.* "host-b" -> "host-c"', output)
    output = folder.apply()
    assert "1 added, 0 changed, 1 destroyed" in output
    assert "Unit b2 was not deleted from host host-b" in " ".join(output.split())
    with Admin(site.listens[1]) as admin:
        part = admin.topic("clicks").partitions[0]
        assert sorted(part.replicas) == sorted(part.isr) == [1, 2, 3]
    assert log_bytes(agents["host-c"].home, "b2") == before
    assert records([site.listens[1]], COUNT) == expected
    folder.plan(code=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_units_of_a_dead_host_move_and_only_a_given_up_host_keeps_what_is_deleted(
    workspace: Make, hosts: StartHosts
) -> None:
    agents = hosts(("host-a", "host-b"))
    port = {name: free_port(HOST) for name in ("zk", "one", "two")}

    def hcl(known: tuple[str, ...], one: str, *, two: bool = True, allow: bool = False) -> str:
        listed = "".join(
            f'    "{host}" = {{ url = "http://{agents[host].address}", '
            f'token_file = "{agents[host].home}/agent/token" }}\n'
            for host in known
        )
        text = f'provider "headrace" {{\n  agents = {{\n{listed}  }}\n}}\n'
        units = [("zookeeper", "zk", "host-b", f"allow_data_loss = {str(allow).lower()}")]
        units += [("registry", "one", one, 'zookeeper = "127.0.0.1:1"')]
        units += [("registry", "two", "host-b", 'zookeeper = "127.0.0.1:1"')] if two else []
        for kind, name, host, more in units:
            text += f"""
resource "headrace_{kind}" "{name}" {{
  host       = "{host}"
  name       = "{name}"
  datacenter = "east"
  listen     = "{HOST}:{port[name]}"
  {more}
}}
"""
        return text

    folder = workspace(hcl(("host-a", "host-b"), "host-b"))
    assert "3 added" in folder.apply()
    die(agents["host-b"])
    # The one moves, the other is told from a typing error: its host may come back.
    folder.write(hcl(("host-a", "host-b"), "host-a", two=False, allow=True))
    output = " ".join(folder.apply(code=1).split())
    assert "Unit one was not deleted from host host-b" in output
    assert "A host's agent does not answer" in output
    assert agents["host-a"].is_ready("one")
    assert folder.attributes("headrace_registry.one")["host"] == "host-a"
    assert folder.attributes("headrace_registry.two")["host"] == "host-b"
    # What Terraform's state alone has is stored all the same.
    assert folder.attributes("headrace_zookeeper.zk")["allow_data_loss"] is True

    # A host that is not in `agents` any more is given up.
    folder.write(hcl(("host-a",), "host-a", two=False, allow=True).replace('"host-b"', '"host-a"'))
    output = folder.apply()
    assert "1 added, 0 changed, 2 destroyed" in output, output
    folder.plan(code=0)
