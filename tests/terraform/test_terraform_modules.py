"""The modules and examples, by Terraform itself: their plans, and that the demo's example equals the site."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fix_agent import RunningAgent
from fix_terraform import ROOT, Workspace
from headrace.agent.configuration import Configuration
from headrace.agent.host import Host
from headrace.agent.kinds import parse_configuration, unit_of
from headrace.fleet.terraform.folder import make_folder, missing
from headrace.fleet.units import configurations_of, units_of
from headrace.site.site import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SOURCES = ROOT / "terraform"
NOT_CONFIGURATION = {"host", "name", "listen_host", "allow_data_loss", "drain_timeout_s"}
COMPUTED = {"id", "listens", "version", "ready", "drift"}


@pytest.fixture(scope="module")
def copy(terraform: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the modules and examples for these tests."""
    ignore = shutil.ignore_patterns("headrace", ".terraform*", "terraform.d", "*.tfstate*")
    return Path(shutil.copytree(SOURCES, tmp_path_factory.mktemp("hcl") / "terraform", ignore=ignore))


@pytest.mark.parametrize("folder", [SOURCES, ROOT / "tests" / "network"], ids=["terraform", "tests"])
def test_hcl_is_formatted(terraform: None, folder: Path) -> None:
    command = ["terraform", "fmt", "-check", "-recursive", "-diff", "-no-color", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", ["datacenter", "analysis"])
def test_a_modules_own_tests_pass(copy: Path, module: str) -> None:
    workspace = Workspace(copy / "modules" / module)
    workspace.run("init")
    assert "The configuration is valid." in workspace.run("validate")
    assert "0 failed" in workspace.run("test")


@pytest.fixture
def site_home(tmp_path: Path) -> Iterator[RunningAgent]:
    running = RunningAgent(tmp_path / "home")
    running.home.mkdir()
    running.start()
    yield running
    running.close()


def test_the_demos_example_is_the_site(
    terraform: None, site_home: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DAGS", str(site_home.home / "dags"))
    whole = Site.one_machine(site_home.home, block=118)
    east = whole.datacenters[0].model_copy(
        update={"broker_count": 4, "broker_settings": {"num.partitions": "5", "log.segment.bytes": "1000000"}}
    )
    site = whole.model_copy(
        update={
            "datacenters": (east, *whole.datacenters[1:]),
            "airflow_database": "postgresql",
        }
    )
    assert missing(site) is None
    workspace = Workspace(make_folder(site))
    workspace.run("init")
    assert "The configuration is valid." in workspace.run("validate")
    workspace.run("plan", "-out=plan")
    planned = json.loads(workspace.run("show", "-json", "plan"))["planned_values"]["root_module"]
    planned_units = {unit["name"]: _configuration(unit) for unit in _units_in(planned)}
    assert planned_units == configurations_of(site)
    host = Host.here(site.home)
    definitions = {name: unit_of(name, each, host).definition for name, each in planned_units.items()}
    # So neither `headrace up` nor Terraform restarts units that the other one started.
    assert definitions == {unit.name: unit.definition for unit in units_of(site)}


def _units_in(module: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in module.get("resources", []):
        yield {"type": resource["type"], **resource["values"]}
    for child in module.get("child_modules", []):
        yield from _units_in(child)


def _configuration(unit: dict[str, Any]) -> Configuration:
    """Returns a planned unit's configuration as the agent would receive it."""
    kind = unit["type"].removeprefix("headrace_").replace("warehouse", "hdfs")
    left_out = NOT_CONFIGURATION | COMPUTED | {"type"}
    values = {name: value for name, value in unit.items() if name not in left_out and value is not None}
    if kind == "hdfs":
        values["host"] = unit["listen_host"]
    if kind == "airflow":
        values["connections"] = {
            name: {what: value for what, value in each.items() if value is not None}
            for name, each in unit["connections"].items()
        }
    return parse_configuration(unit["name"], {**values, "kind": kind})


def test_the_smallest_example_is_planned(copy: Path, site_home: RunningAgent) -> None:
    # Each test process has its own address.
    address = f"127.118.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 2}"
    workspace = Workspace(copy / "examples" / "one-host")
    workspace.run("init")
    assert "The configuration is valid." in workspace.run("validate")
    output = workspace.plan(f"-var=address={address}", f"-var=home={site_home.home}")
    # ZooKeeper, broker, balancer, registry, auditor, and a topic.
    assert "Plan: 6 to add, 0 to change, 0 to destroy." in output
