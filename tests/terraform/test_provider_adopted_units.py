"""Units that are not ready in time when they enter the state, and may be later: what the next apply does. One
that was adopted, as after the state was lost, must not be replaced. Real terraform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quick_kinds_agent
from fix_agent import HOST, RunningAgent
from fix_ports import free_port, free_ports
from fix_terraform import Workspace

Make = Callable[[str], Workspace]


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


def site(agent: RunningAgent, more: str) -> str:
    token = (agent.home / "agent" / "token").read_text().strip()
    return f"""
provider "headrace" {{
  agents          = {{ "host-a" = {{ url = "http://{agent.address}", token = "{token}" }} }}
  ready_timeout_s = 1
}}
{more}
"""


def said(output: str) -> str:
    return " ".join(output.replace("│", " ").split())


def test_an_adopted_unit_that_is_late_is_not_replaced_by_the_next_apply(
    workspace: Make, agent: RunningAgent
) -> None:
    address = f"{HOST}:{free_port(HOST)}"
    (agent.home / "zk.broken").write_text("it reads its snapshot")
    agent.client.put("zk", {"kind": "zookeeper", "datacenter": "east", "listen": address})
    hcl = f"""
resource "headrace_zookeeper" "zk" {{
  host       = "host-a"
  name       = "zk"
  datacenter = "east"
  listen     = "{address}"
}}
"""
    folder = workspace(site(agent, hcl))
    assert "Unit zk is not ready" in said(folder.apply(code=1))
    (agent.home / "zk.broken").unlink()
    agent.client.restart("zk", wait_s=60)
    pid = agent.pid("zk")
    assert "0 destroyed" in folder.apply()
    assert agent.pid("zk") == pid
    folder.plan(code=0)


def test_a_broker_with_data_that_is_tainted_names_the_way_out(workspace: Make, agent: RunningAgent) -> None:
    zookeeper, address = (f"{HOST}:{port}" for port in free_ports(2, HOST))  # nobody listens at the first
    hcl = f"""
resource "headrace_broker" "b" {{
  host            = "host-a"
  name            = "b"
  datacenter      = "east"
  broker_id       = 1
  zookeeper       = "{zookeeper}"
  listen          = "{address}"
  allow_data_loss = ANSWER
}}
"""
    folder = workspace(site(agent, hcl.replace("ANSWER", "false")))
    assert "Unit b is not ready" in said(folder.apply(code=1))
    data = agent.home / "data" / "b"
    data.mkdir(parents=True, exist_ok=True)
    (data / "a-log").write_bytes(b"data")
    folder.write(site(agent, hcl.replace("ANSWER", "true")))
    output = said(folder.apply(code=1))
    assert "holds data" in output and "`terraform untaint` keeps it" in output, output
    folder.run("untaint", "headrace_broker.b")
    assert "0 to destroy" in folder.plan()
