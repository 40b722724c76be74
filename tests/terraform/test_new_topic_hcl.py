"""What `headrace topics new --hcl` prints, as Terraform itself reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from fix_terraform import Workspace
from headrace.coordination.declared import ANY
from headrace.fleet.topics import hcl
from headrace.fleet.topics.wanted import NewTopic, read_event_schema
from headrace.site.context import context_of
from headrace.site.site import Site

SCHEMA = Path(__file__).parents[2] / "docs" / "examples" / "first-topic" / "order-placed.avsc"


def test_the_resources_are_valid_and_formatted(workspace: Callable[[str], Workspace], tmp_path: Path) -> None:
    topic = NewTopic(
        "order-placed",
        read_event_schema(SCHEMA),
        partitions=6,
        settings={"retention.ms": "604800000", "retention.bytes": "10737418240"},
        producers=ANY,
        compatibility="FULL",
        load={"owner": 'the "${shop}"', "completeness": 0.99, "retries": 2, "schedule": "*/10 * * * *"},
    )
    text = hcl.blocks(topic, context_of(Site.one_machine(tmp_path)))
    terraform = workspace('provider "headrace" {}\n')
    shutil.copy(SCHEMA, terraform.folder)
    (terraform.folder / "order-placed.tf").write_text(text)
    assert "The configuration is valid" in terraform.run("validate")
    assert terraform.run("fmt", "-check", "-diff", "order-placed.tf", code=None) == ""
