"""What a plan of a schema promises of the version that its registry will give it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from fix_registry import StartRegistry
from fix_terraform import VENV, Workspace
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.registry.client import SchemaRegistryClient

PLAN = """
import json, sys, threading
from tf.types import Unknown
from headrace.provider.planning import change_of
from headrace.provider.resource import Context, ResourceCall
from headrace.provider.schemas import SCHEMA, SchemaResource

prior, config = json.loads(sys.argv[1])
call = ResourceCall(threading.Event())
planned = SchemaResource(Context()).plan(call, change_of(SCHEMA, config, prior)).planned
print(json.dumps([None if planned[name] is Unknown else planned[name] for name in ("schema_id", "version")]))
"""
PRIOR = {
    "registry_url": "http://127.0.0.1:1",
    "subject": "t-value",
    "schema": '"string"',
    "compatibility": None,
    "id": "t-value",
    "schema_id": 17,
    "version": 3,
}


HCL = """
resource "headrace_schema" "s" {{
  registry_url  = "{url}"
  subject       = "t-value"
  schema        = jsonencode({{ type = "record", name = "T", fields = [{{ name = "a", type = "long" }}] }})
  compatibility = {level}
}}
"""


def record(default: str) -> str:
    fields = f'[{{"name": "a", "type": "double", "default": {default}}}]'
    return f'{{"type": "record", "name": "T", "fields": {fields}}}'


def planned(prior: str | None = None, **changed: str) -> list[int | None]:
    before = PRIOR if prior is None else {**PRIOR, "schema": prior}
    command = [str(VENV / "bin" / "python"), "-c", PLAN, json.dumps([before, {**before, **changed}])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[int | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"compatibility": "FULL"}, [17, 3]),
        ({"schema": ' "string"'}, [17, 3]),
        ({"schema": '"long"'}, [None, None]),
        ({"registry_url": "http://127.0.0.1:2"}, [None, None]),
    ],
)
def test_another_registry_may_number_versions_otherwise(
    terraform: None, changed: dict[str, str], expected: list[int | None]
) -> None:
    assert planned(**changed) == expected


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [("0", "0.0", False), ("1", "true", False), ("1.0", "1e0", True), ("1", "1 ", True)],
)
def test_a_number_that_is_written_otherwise_is_another_schema_for_the_registry(
    terraform: None, before: str, after: str, is_same: bool
) -> None:
    """Terraform calls it a bug of the provider if the version is not the planned one."""
    assert planned(record(before), schema=record(after)) == ([17, 3] if is_same else [None, None])


@pytest.mark.zookeeper
def test_a_subject_that_moves_to_another_registry_takes_its_level_along(
    workspace: Callable[[str], Workspace], zookeeper_server: ZooKeeperServer, start_registry: StartRegistry
) -> None:
    one, two = (start_registry(hosts=room_on(zookeeper_server).hosts) for _ in range(2))
    with SchemaRegistryClient(two.url) as registry:
        folder = workspace(HCL.format(url=one.url, level='"FULL"'))
        folder.apply()
        folder.write(HCL.format(url=two.url, level='"FULL"'))
        folder.apply()
        assert registry.own_config("t-value") == "FULL"
        folder.plan(code=0)
        # Back, and without a level of its own.
        folder.write(HCL.format(url=one.url, level="null"))
        folder.apply()
        folder.plan(code=0)
