"""A null in a map, as `cond ? value : null` leaves it: it is not there, or it is named. Real terraform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quick_kinds_agent
from fix_agent import HOST, RunningAgent
from fix_broker import BrokerCluster
from fix_ports import free_port
from fix_terraform import Workspace
from headrace.client.admin import Admin

Make = Callable[[str], Workspace]
TOPIC = """
resource "headrace_topic" "t" {{
  bootstrap_servers  = ["{servers}"]
  name               = "nulls"
  partitions         = 1
  replication_factor = 1
  config             = {{ "retention.ms" = {retention}, "segment.bytes" = 1048576 }}
  allow_data_loss    = true
}}
"""
AIRFLOW = """
provider "headrace" {{
  home = "{home}"
}}
resource "headrace_airflow" "a" {{
  host        = "local"
  name        = "a"
  datacenter  = "east"
  component   = "api-server"
  listen      = "{address}"
  connections = {{
    site = {{ conn_type = "headrace", password = null, extra = {{ home = "/x", more = null }} }}
  }}
}}
"""
BROKER = """
resource "headrace_broker" "b" {
  host       = "local"
  name       = "b"
  datacenter = "east"
  broker_id  = 1
  zookeeper  = "127.0.0.1:1"
  settings   = { "num.partitions" = null, "log.retention.ms" = 86400000 }
}
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    home = tmp_path / "home"
    home.mkdir()
    made = RunningAgent(home)
    try:
        made.start(quick_kinds_agent.PROGRAM)
        yield made
    finally:
        made.close()


def test_null_settings_and_connections_of_units_are_left_out(workspace: Make, agent: RunningAgent) -> None:
    hcl = AIRFLOW.format(home=agent.home, address=f"{HOST}:{free_port(HOST)}")
    folder = workspace(hcl)
    folder.apply()
    connections = agent.client.unit("a").configuration["connections"]
    assert connections == {"site": {"conn_type": "headrace", "extra": {"home": "/x"}}}
    folder.plan(code=0)
    folder.write(hcl + BROKER)
    assert "1 to add, 0 to change" in folder.plan()
    # Terraform itself would end with a crash of its own: the objects have an attribute that is sensitive.
    folder.write(hcl.replace("site = {", "gone = null\n    site = {"))
    shown = " ".join(folder.plan(code=1).replace("│", " ").split())
    assert "Invalid connections" in shown and "gone is null: leave it out" in shown, shown


@pytest.mark.slow
def test_a_null_setting_is_the_brokers_default_and_the_next_plan_is_empty(
    workspace: Make, one_broker: BrokerCluster
) -> None:
    def own_settings() -> set[str]:
        with Admin(one_broker.bootstrap) as admin:
            return {entry.name for entry in admin.describe_configs("nulls").values() if entry.is_own}

    def hcl(retention: str) -> str:
        return TOPIC.format(servers=one_broker.bootstrap, retention=retention)

    folder = workspace(hcl("null"))
    folder.apply()
    try:
        assert own_settings() == {"segment.bytes"}
        folder.plan(code=0)
        folder.write(hcl("86400000"))
        folder.apply()
        assert own_settings() == {"segment.bytes", "retention.ms"}
        folder.write(hcl("null"))
        folder.apply()
        assert own_settings() == {"segment.bytes"}
        folder.plan(code=0)
        with Admin(one_broker.bootstrap) as admin:
            admin.alter_configs("nulls", {"retention.ms": "5000000"})
        assert '"retention.ms" = "5000000" -> null' in " ".join(folder.plan().split())
        folder.apply()
        assert own_settings() == {"segment.bytes"}
    finally:
        folder.run("destroy", "-auto-approve")
