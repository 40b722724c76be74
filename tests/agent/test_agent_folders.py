"""Folders of data: those that two units of a host cannot have, as they are the same on the disk or one inside
of the other; and those that cannot be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fix_agent import HOST, RunningAgent
from fix_ports import free_port
from headrace.agent.errors import AgentRefusedError


def broker(broker_id: int, folder: Path | str, **more: Any) -> dict[str, Any]:
    """A broker that nobody waits for: there is no ZooKeeper."""
    fields = {"kind": "broker", "datacenter": "east", "broker_id": broker_id, "data_dir": str(folder)}
    listen, zookeeper = f"{HOST}:{free_port(HOST)}", f"{HOST}:{free_port(HOST)}"
    return {**fields, "listen": listen, "zookeeper": zookeeper, **more}


@pytest.fixture
def place(agent: RunningAgent, tmp_path: Path) -> Path:
    """A folder in the agent's home for one test: units may have their data there."""
    folder = agent.home / tmp_path.name
    folder.mkdir()
    return folder


@pytest.mark.parametrize("other", ["link/one", "disk/../disk/one", "disk/one/", "disk/one/below", "disk"])
def test_a_folder_of_another_unit_is_refused_however_it_is_written(
    agent: RunningAgent, place: Path, other: str
) -> None:
    (place / "disk").mkdir()
    (place / "link").symlink_to(place / "disk")
    agent.client.put("one", broker(1, place / "disk" / "one"))
    with pytest.raises(AgentRefusedError) as caught:
        agent.client.put("two", broker(2, f"{place}/{other}"))
    assert (caught.value.status, caught.value.code) == (409, "conflict")
    assert "for unit two, is taken by unit one of this host" in str(caught.value)
    assert "two" not in agent.states()


def test_a_folder_beside_another_units_is_none_of_its(agent: RunningAgent, place: Path) -> None:
    agent.client.put("one", broker(1, place / "disk" / "broker-1"))
    agent.client.put("two", broker(2, place / "disk" / "broker-11"))
    assert {"one", "two"} <= set(agent.states())


def test_units_whose_folders_met_later_can_still_be_changed(agent: RunningAgent, place: Path) -> None:
    """A link came later, or an earlier agent took both: refusing each change of theirs would mend nothing."""
    one, two = broker(1, place / "disk" / "one"), broker(2, place / "disk" / "two")
    agent.client.put("one", one)
    agent.client.put("two", two)
    agent.supervisor.stop("two", wait=True)
    folder = place / "disk" / "two"
    if folder.is_dir():
        folder.rename(place / "disk" / "before")
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(place / "disk" / "one")
    changed = agent.client.put("two", {**two, "settings": {"num.partitions": "2"}})
    assert changed.outcome == "changed"


def test_a_folder_that_cannot_be_read_is_not_empty(agent: RunningAgent, place: Path) -> None:
    """Terraform destroys what holds nothing."""
    agent.client.put("one", broker(1, place / "one"))
    agent.supervisor.stop("one", wait=True)
    if (place / "one").is_dir():
        (place / "one").rename(place / "before")
    (place / "one").symlink_to(place / "one")
    with pytest.raises(AgentRefusedError, match="one"):
        agent.client.data("one")
