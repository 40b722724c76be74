"""The platform engineer: two datacenters by HCL, as the tour shows; drift, imports, and wrong input.

The tour adds a fourth broker and removes it. tests/terraform has each resource by itself, tests/network
many hosts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fix_days import ROOT, Day, DaySite
from headrace.agent.client import AgentClient
from headrace.agent.local import find_agent
from headrace.agent.supervisor import Supervisor
from headrace.cli.errors import ExitCode
from shown_runs import Step, steps
from shown_shell import Shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# As for somebody at a terminal who answers yes, but without colours.
TERRAFORM: Final = {
    "TF_CLI_ARGS": "-no-color",
    "TF_CLI_ARGS_apply": "-auto-approve",
    "TF_INPUT": "0",
    "CHECKPOINT_DISABLE": "1",
}
TOUR: Final = "docs/tour.md"
REGISTRY: Final = "module.west.headrace_registry.this[0]"
NO_CHANGES: Final = "No changes."


@pytest.fixture(scope="module")
def shell(hcl_site: DaySite) -> Iterator[Shell]:
    with hcl_site.shell(hcl_site.folder / "hcl", **TERRAFORM) as made:
        yield made


@pytest.fixture
def agent(hcl_site: DaySite) -> Iterator[AgentClient]:
    found = find_agent(hcl_site.home)
    assert found is not None
    with found:
        yield found


def run(shell: Shell, command: str, *, code: int = 0) -> str:
    """Runs a command that must end with this code; returns its output, on one line."""
    ran = shell.run(command)
    assert ran.code == code, ran.output
    return " ".join(ran.output.split())


def pids(site: DaySite) -> dict[str, int]:
    return {name: state.pid for name, state in Supervisor(site.home).states().items()}


def test_two_datacenters_and_a_fourth_broker_as_in_the_tour(
    day: Day, hcl_site: DaySite, shell: Shell
) -> None:
    before: dict[str, int] = {}
    for step in hcl_site.steps(TOUR, "hcl"):
        if step.command == "terraform apply" and not before:
            follow(day, shell, step)
            before = pids(hcl_site)
            continue
        follow(day, shell, step)
    assert len(before) == 14
    assert pids(hcl_site) == before, "a fourth broker came and went, and no other unit was restarted"
    with day.step("terraform plan: no changes"):
        assert NO_CHANGES in run(shell, "terraform plan")


def follow(day: Day, shell: Shell, step: Step) -> None:
    with day.step(str(step)):
        shell.follow(step)


def test_what_other_pages_show(day: Day, hcl_site: DaySite, shell: Shell) -> None:
    paths = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    for page in paths:
        if page != TOUR and list(steps(page, (ROOT / page).read_text(), "hcl")):
            for step in hcl_site.steps(page, "hcl"):
                follow(day, shell, step)


def test_headrace_up_leaves_terraforms_units(day: Day, hcl_site: DaySite, shell: Shell) -> None:
    before = pids(hcl_site)
    with day.step("headrace up --without airflow, refused"):
        output = run(shell, "headrace up --without airflow", code=ExitCode.NEGATIVE)
    assert "made by terraform" in output and "Nothing was changed" in output
    assert pids(hcl_site) == before
    with day.step("the wrong cluster: an unknown context"):
        output = run(shell, "headrace topics list --context staging", code=ExitCode.NEGATIVE)
    assert "staging" in output and "tour" in output


def test_drift_is_found_and_repaired(day: Day, shell: Shell, agent: AgentClient) -> None:
    agent.delete("west-registry")
    with day.step("somebody deletes a unit: terraform plan, apply"):
        assert f"# {REGISTRY} will be created" in run(shell, "terraform plan")
        assert "Plan: 1 to add, 0 to change, 0 to destroy." in run(shell, "terraform apply")
        assert NO_CHANGES in run(shell, "terraform plan")


def test_a_unit_that_runs_already_is_imported(day: Day, hcl_site: DaySite, shell: Shell) -> None:
    before = pids(hcl_site)
    with day.step("terraform state rm, import, plan"):
        run(shell, f"terraform state rm '{REGISTRY}'")
        run(shell, f"terraform import '{REGISTRY}' local/west-registry")
        assert NO_CHANGES in run(shell, "terraform plan")
    assert pids(hcl_site) == before


def test_wrong_input_is_named_at_its_line(day: Day, hcl_site: DaySite, shell: Shell) -> None:
    main = shell.folder / "main.tf"
    right = main.read_text()
    before = pids(hcl_site)
    try:
        with day.step("a setting that no broker has"):
            main.write_text(
                right.replace(
                    "brokers = 3\n", 'brokers = 4\n  broker_settings = { "num.partitons" = "3" }\n', 1
                )
            )
            output = run(shell, "terraform plan", code=1)
            assert "num.partitons" in output
        with day.step("no brokers at all"):
            main.write_text(right.replace("brokers = 3\n", "brokers = 0\n", 1))
            assert "brokers" in run(shell, "terraform plan", code=1)
        with day.step("a broker that cannot start fails its apply with its own error"):
            (hcl_site.home / "blocked").write_text("a file where a folder should be")
            main.write_text(right + hcl_site.localised(broken_broker(hcl_site.home / "blocked" / "data")))
            output = run(shell, "terraform apply", code=1)
            assert "west-broker-8" in output and "blocked" in output
    finally:
        main.write_text(right)
    with day.step("without it: terraform apply"):
        run(shell, "terraform apply")
    assert pids(hcl_site) == before


def broken_broker(data_dir: Path) -> str:
    return f"""
resource "headrace_broker" "broken" {{
  host       = "local"
  name       = "west-broker-8"
  datacenter = "west"
  broker_id  = 8
  zookeeper  = module.west.zookeeper
  listen     = "127.2.0.18:9092"
  data_dir   = {json.dumps(str(data_dir))}
}}
"""


def test_what_holds_data_is_not_destroyed(day: Day, hcl_site: DaySite, shell: Shell) -> None:
    before = pids(hcl_site)
    with day.step("terraform destroy, refused"):
        output = run(shell, "terraform destroy -auto-approve", code=1)
    assert "holds" in output and "allow_data_loss = true" in output
    assert pids(hcl_site) == before
