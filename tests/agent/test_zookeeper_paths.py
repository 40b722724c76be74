"""A home whose path has letters beyond ASCII: ZooKeeper keeps its data there, as any other unit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_agent import RunningAgent, running_agent
from fix_ports import free_port
from headrace.agent.properties import misread, properties_text
from headrace.coordination.session import ZooKeeperSession


@pytest.fixture
def agent_of_jose(tmp_path: Path) -> Iterator[RunningAgent]:
    home = tmp_path / "josé \\u0041 家"
    with running_agent(home) as made:
        yield made


@pytest.mark.zookeeper
def test_zookeeper_keeps_its_data_in_its_home(agent_of_jose: RunningAgent) -> None:
    """Before, they were in a folder of another name beside the home, which a copy, a backup of the disk and
    `make clean` did not have: the home that was moved had no topics, and brokers deleted their logs."""
    agent, listen = agent_of_jose, f"127.0.0.1:{free_port()}"
    unit = {"kind": "zookeeper", "datacenter": "east", "listen": listen, "heap_mib_max": 64}
    agent.client.put("zookeeper", unit, wait_s=60)
    data = agent.home / "data" / "zookeeper" / "data"
    assert (data / "version-2").is_dir()
    assert sorted(agent.home.parent.iterdir()) == [agent.home]
    with ZooKeeperSession(listen, name="test") as session:
        session.ensure_path("/kept")
    agent.client.delete("zookeeper")
    # As an earlier version left them.
    before = misread(data)
    before.parent.mkdir(parents=True)
    data.rename(before)
    agent.client.put("zookeeper", unit, wait_s=60)
    with ZooKeeperSession(listen, name="test") as session:
        assert session.exists("/kept")
    assert (data / "version-2").is_dir() and not before.exists()


def test_values_are_escaped_as_java_reads_them() -> None:
    settings = {"dataDir": "/home/josé/a b", "other": "C:\\u0041#!=", "face": "\N{GRINNING FACE}", "n": 1}
    assert properties_text(settings) == (
        "dataDir=/home/jos\\u00e9/a b\nother=C:\\\\u0041#!=\nface=\\ud83d\\ude00\nn=1\n"
    )
    assert misread(Path("/home/josé")) == Path("/home/josÃ©")
    assert misread(Path("/home/ann")) == Path("/home/ann")
