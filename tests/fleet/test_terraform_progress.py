"""Terraform's output as progress, outcome and error text; and the working copy that it runs in."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.fleet.terraform import folder, missing
from headrace.fleet.terraform.progress import TerraformProgress
from headrace.site.site import Datacenter, MirrorRoute, Site

BROKER = 'module.east.headrace_broker.this["1"]'
TOPIC = 'module.east.headrace_topic.this["a.headrace_broker.b"]'


def progress_of(*lines: dict[str, Any] | str) -> TerraformProgress:
    progress = TerraformProgress()
    for line in lines:
        progress.read_line(line if isinstance(line, str) else json.dumps(line))
    return progress


def planned(address: str, action: str = "create") -> dict[str, Any]:
    return {"type": "planned_change", "change": {"resource": {"addr": address}, "action": action}}


def done(address: str, action: str = "create") -> dict[str, Any]:
    return {"type": "apply_complete", "hook": {"resource": {"addr": address}, "action": action}}


def summary(operation: str, add: int = 0, change: int = 0, remove: int = 0) -> dict[str, Any]:
    counts = {"add": add, "change": change, "import": 0, "remove": remove}
    return {"type": "change_summary", "changes": {**counts, "operation": operation}}


def error(summary_text: str, detail: str = "", **more: Any) -> dict[str, Any]:
    diagnostic = {"severity": "error", "summary": summary_text, "detail": detail, **more}
    return {"type": "diagnostic", "diagnostic": diagnostic}


def test_units_are_pending_while_planned_and_not_done() -> None:
    progress = progress_of("Terraform 1.11", "[]", planned(BROKER), planned(TOPIC), planned("x", "delete"))
    assert not progress.is_planned
    progress.read_line(json.dumps(summary("plan", add=2)))
    assert progress.is_planned
    assert progress.changes is None
    assert progress.pending_units() == {BROKER}
    progress.read_line(json.dumps(done(BROKER)))
    assert progress.pending_units() == set()
    assert progress.planned - progress.done == {TOPIC}
    progress.read_line(json.dumps(summary("apply", add=2, remove=1)))
    assert progress.outcome() == "2 added, 1 destroyed"


def test_the_outcome_of_a_run_without_changes() -> None:
    assert progress_of(summary("plan"), summary("apply")).outcome() == "no changes"


def test_errors_are_shown_once_with_their_location_up_to_a_limit() -> None:
    place = {"range": {"filename": "main.tf", "start": {"line": 7}}, "address": BROKER}
    first = error("127.1.0.11:9092 is taken", "By process 7.\nEnd it.", **place)
    progress = progress_of(
        first, first, {**first, "diagnostic": {**first["diagnostic"], "severity": "warning"}}
    )
    assert progress.error_text() == (
        f"127.1.0.11:9092 is taken\n  {BROKER}, main.tf line 7\n  By process 7.\n  End it."
    )
    progress = progress_of(*(error(f"number {number}") for number in range(5)))
    assert progress.error_text() == "number 0\nnumber 1\nnumber 2\n… and 2 more"


def test_why_terraform_cannot_provision_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site.one_machine(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv(folder.ENVIRONMENT_VARIABLE, str(tmp_path / "environment"))
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert missing(site) == "Terraform is not installed"
    program = programs / "terraform"
    monkeypatch.setattr("shutil.which", lambda name: str(program))

    def has_version(version: str) -> None:
        program.write_text(f"""#!/bin/sh\necho '{{"terraform_version": "{version}"}}'\n""")
        program.chmod(0o755)

    has_version("1.5.7")
    assert missing(site) == f"Terraform 1.9 or newer is needed, and {program} is 1.5.7"
    has_version("1.10.0-rc1")
    assert missing(site) == "the Terraform provider is not set up (`make terraform`)"
    (tmp_path / "environment" / "plugins").mkdir(parents=True)
    assert missing(site) is None
    north = (*site.datacenters, Datacenter(name="north", network="127.3.0"))
    mirrors = (*site.mirrors, MirrorRoute(source="north", target="analysis"))
    other = site.model_copy(update={"datacenters": north, "mirrors": mirrors})
    assert missing(other) == "site.yaml has other datacenters than terraform/examples/linkedin"


def test_the_working_copy_is_brought_up_to_date_and_keeps_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(folder.ENVIRONMENT_VARIABLE, str(tmp_path / "environment"))
    site = Site.one_machine(tmp_path / "home", block=7)
    here = folder.make_folder(site)
    (here / "terraform.tfstate").write_text("{}")
    (here / "gone.tf").write_text("")
    (here / "main.tf").write_text("changed by hand")
    assert folder.make_folder(site) == here
    names = {path.name for path in here.iterdir()}
    assert {"terraform.tfstate", "main.tf", "terraform.tfvars.json"} <= names
    assert "gone.tf" not in names
    assert (here / "main.tf").read_text() == (folder.sources() / "examples/linkedin/main.tf").read_text()
    assert (here / "../../modules/datacenter/main.tf").is_file()
    assert (here / "terraform.d/plugins").readlink() == tmp_path / "environment" / "plugins"
    variables = json.loads((here / "terraform.tfvars.json").read_text())
    assert variables["home"] == str(site.home)
    assert variables["west"]["network"] == "127.9.0"
