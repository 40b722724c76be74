"""The container image itself: its user, the folders that it writes, an agent as its first process.

The programs in it are tested as processes, too: in `test_clients_cluster`, `test_foreground`, and (an agent
that ends its units) `test_agent_crash`.
"""

from __future__ import annotations

import re
import time
import tomllib
from pathlib import Path

import pytest

import container_image
from fix_containers import HOST, READY_WAIT_MAX_S, ContainerMember, RunContainer
from fix_ports import free_ports
from headrace.agent.client import AgentClient
from headrace.agent.errors import AgentUnreachableError
from headrace.agent.probes import ZooKeeperProbe
from headrace.site.addresses import Address

WAIT_S = 60.0


def test_the_image_id_changes_with_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    image, base = container_image.content(), container_image.base_content()
    assert (image, base) == (container_image.content(), container_image.base_content())
    monkeypatch.setattr(container_image, "PACKAGES", (*container_image.PACKAGES, "kcat"))
    assert container_image.base_content() != base
    assert container_image.content() != image


def pins(name: str) -> set[str]:
    """`package==version` of each line of a requirements file."""
    text = (container_image.ROOT / "requirements" / f"{name}.txt").read_text()
    return set(re.findall(r"^(\S+==\S+)", text, re.MULTILINE))


def test_the_image_has_the_packages_that_are_tested() -> None:
    assert pins("image") < pins("dev"), "`make requirements` brings them together"
    project = tomllib.loads((container_image.ROOT / "pyproject.toml").read_text())["project"]
    packages = {pin.partition("==")[0] for pin in pins("image")}
    assert set(project["dependencies"]) | {"supervisor"} <= packages


def test_a_missing_engine_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    assert container_image.engine_problem() == (
        f"no Docker engine here: {tmp_path}/none does not exist (DOCKER_HOST may name another)"
    )
    with pytest.raises(container_image.ImageError, match="no Docker engine here"):
        container_image.make_image(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert "only an engine of this machine" in str(container_image.engine_problem())


def wait_for_agent(container: ContainerMember, address: Address) -> AgentClient:
    """A client of the agent in a container, once it responds."""
    deadline = time.monotonic() + READY_WAIT_MAX_S
    while True:
        code, token = container.run("cat", "agent/token")
        client = AgentClient(f"http://{address}", token.strip())
        try:
            if code == 0:
                client.health()
                return client
        except AgentUnreachableError:
            pass
        client.close()
        assert container.is_running and time.monotonic() < deadline, container.output()
        time.sleep(0.1)


@pytest.mark.container
def test_an_agent_in_a_container_runs_units_and_ends_them_when_it_ends(run_container: RunContainer) -> None:
    agent, zookeeper = (Address(HOST, port) for port in free_ports(2, HOST))
    container = run_container(*("agent", "--listen", str(agent)), read_only=True, cap_drop=["ALL"])
    configuration = {"kind": "zookeeper", "datacenter": "east", "listen": str(zookeeper)}
    with wait_for_agent(container, agent) as client:
        client.put("keeper", configuration)
        assert client.unit("keeper", wait_s=WAIT_S).is_ready
    assert container.run("id", "-u") == (0, "1000\n")
    assert container.run("headrace-container", "health") == (0, "ready\n")
    assert container.stop() == 0
    assert "units have ended with it" in container.output()
    assert ZooKeeperProbe(zookeeper).check() is not None
    container.start(wait=False)
    with wait_for_agent(container, agent) as client:
        assert client.unit("keeper", wait_s=WAIT_S).is_ready, "it started again with the agent"
        assert client.unit("keeper").drift == ()


@pytest.mark.container
def test_an_unwritable_volume_is_reported(run_container: RunContainer) -> None:
    container = run_container("zookeeper", "--datacenter", "east", user="4711")
    assert container.container.wait()["StatusCode"] == 1
    assert container.output().startswith(
        "headrace: /var/lib/headrace is not a folder that user 4711 may write: mount a volume there"
    )


@pytest.mark.container
def test_other_arguments_run_the_command_line(run_container: RunContainer) -> None:
    container = run_container("dump-log", "/nowhere")
    assert container.container.wait()["StatusCode"] == 2
    assert "/nowhere" in container.output()
