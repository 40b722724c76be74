"""Units of a host by the real terraform: created, changed, imported, refused, and interrupted by Ctrl-C."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

import quick_kinds_agent
from fix_agent import HOST, RunningAgent
from fix_ports import free_ports
from fix_postgresql import UNIT as POSTGRESQL
from fix_postgresql import ask, needs_postgresql
from fix_terraform import ROOT, VENV, Workspace
from headrace.agent.processes import is_alive
from headrace.postgresql.place import socket_folder

Make = Callable[[str], Workspace]


@pytest.fixture(scope="module")
def _agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    home = tmp_path_factory.mktemp("terraform") / "home"
    home.mkdir()
    made = RunningAgent(home)
    try:
        made.start(quick_kinds_agent.PROGRAM)
        yield made
    finally:
        made.close()


@pytest.fixture
def agent(_agent: RunningAgent) -> Iterator[RunningAgent]:
    yield _agent
    for path in _agent.home.glob("*.broken"):
        path.unlink()
    for report in _agent.client.units(with_drift=False):
        _agent.client.delete(report.name)


def provider(agent: RunningAgent, more: str = "") -> str:
    return f"""
variable "token" {{ sensitive = true }}
provider "headrace" {{
  agents = {{ "host-a" = {{ url = "http://{agent.address}", token = var.token }} }}
  {more}
}}
"""


def unit(kind: str, name: str, port: int, more: str = "") -> str:
    return f"""
resource "headrace_{kind}" "{name}" {{
  host       = "host-a"
  name       = "{name}"
  datacenter = "east"
  listen     = "{HOST}:{port}"
  {more}
}}
"""


def give_token(workspace: Workspace, agent: RunningAgent) -> str:
    token = (agent.home / "agent" / "token").read_text().strip()
    workspace.environment["TF_VAR_token"] = token
    return token


def test_units_follow_the_hcl(workspace: Make, agent: RunningAgent) -> None:
    ports = free_ports(3, HOST)
    secret = "postgresql://airflow:hunter2@db/airflow"

    more = f"""
  component    = "api-server"
  database_url = "{secret}"
  connections = {{
    spark = {{ conn_type = "spark", host = "local", port = 7077, password = "hunter3", extra = {{ a = 1 }} }}
  }}"""

    def hcl(heap: str) -> str:
        return (
            provider(agent)
            + unit("zookeeper", "zk", ports[0], heap)
            + unit("registry", "reg", ports[1], "zookeeper = headrace_zookeeper.zk.listen")
            + unit("airflow", "af", ports[2], more)
            + """
resource "headrace_load" "clicks" {
  host         = "host-a"
  topic        = "clicks"
  owner        = "web"
  completeness = 0.99
}
"""
        )

    folder = workspace(hcl(""))
    token = give_token(folder, agent)
    output = folder.apply()
    assert "4 added" in output
    assert token not in output and "hunter" not in output and "database_url = (sensitive value)" in output
    # Defaults are in the plan.
    assert re.search(r"\+ heap_mib_max += 128", output)
    assert agent.client.load("clicks")["completeness"] == 0.99
    assert agent.client.unit("af").configuration["connections"]["spark"] == {
        "conn_type": "spark",
        "host": "local",
        "port": 7077,
        "password": "hunter3",
        "extra": {"a": "1"},
    }
    ready = {report.name: report.is_ready for report in agent.client.units()}
    assert ready == {"af": True, "reg": True, "zk": True}
    assert folder.attributes("headrace_registry.reg")["zookeeper"] == f"{HOST}:{ports[0]}"
    folder.plan(code=0)

    pid = agent.pid("reg")
    (agent.home / "zk.value").write_text("something else")
    agent.client.delete("af")
    agent.client.put_load("clicks", {"owner": "somebody else"})
    folder.write(hcl("heap_mib_max = 64"))
    output = folder.plan("-out=plan")
    assert "zk.value was changed by somebody else" in output and re.search(
        r"heap_mib_max += 128 -> 64", output
    )
    assert "headrace_airflow.af will be created" in output
    assert re.search(r'owner += "somebody else" -> "web"', output)
    assert "hunter" not in output
    assert "1 added, 2 changed, 0 destroyed" in folder.run("apply", "plan")
    assert agent.client.unit("zk").configuration["heap_mib_max"] == 64
    assert agent.client.unit("zk").drift == () and agent.client.unit("af").is_ready
    assert agent.client.load("clicks")["owner"] == "web"
    # A unit without changes is not restarted.
    assert agent.pid("reg") == pid


@needs_postgresql
def test_a_postgresql_is_made_changed_and_gone_but_for_its_data(workspace: Make, agent: RunningAgent) -> None:
    """The real server, which Airflow's units of the module find by the unit's name."""

    folder = workspace(
        provider(agent)
        + f"""
resource "headrace_postgresql" "this" {{
  host       = "host-a"
  name       = "{POSTGRESQL}"
  datacenter = "east"
}}
"""
    )
    give_token(folder, agent)
    assert "1 added" in folder.apply()
    sockets = socket_folder(agent.home, POSTGRESQL)
    assert ask(sockets, "SELECT current_user, current_database()") == [("airflow", "airflow")]
    ask(sockets, "CREATE TABLE kept AS SELECT 7 AS n")
    folder.plan(code=0)
    # Somebody deletes the unit: the next apply makes it again, on its data.
    agent.client.delete(POSTGRESQL)
    assert "1 added" in folder.apply()
    assert ask(sockets, "SELECT n FROM kept") == [(7,)]
    before = agent.pid(POSTGRESQL)
    assert "1 destroyed" in folder.run("destroy", "-auto-approve")
    assert not agent.client.units(with_drift=False) and not is_alive(before)
    assert (agent.home / "data" / POSTGRESQL / "cluster" / "PG_VERSION").exists(), "its data stays"


def test_problems_are_shown_at_their_line(workspace: Make, agent: RunningAgent) -> None:
    (port,) = free_ports(1, HOST)
    folder = workspace(
        provider(agent)
        + unit("zookeeper", "Zk", port, "heap_mib_max = 1")
        + unit("broker", "b", 99999, 'broker_id = 1\n  zookeeper = "nowhere"\n  settings = { "a b" = "c" }')
        + """
resource "headrace_mirror" "m" {
  host             = "host-a"
  name             = "m"
  datacenter       = "analysis"
  source           = "east"
  source_bootstrap = ["127.0.0.1:9092", "127.0.0.1"]
  target_bootstrap = ["127.0.0.1:9092"]
  target_zookeeper = "127.0.0.1:2181"
  status           = "127.0.0.1:8083"
  topics           = "("
}

resource "headrace_load" "l" {
  host     = "host-a"
  topic    = "clicks"
  owner    = "web"
  schedule = "whenever"
}
"""
    )
    give_token(folder, agent)
    output = " ".join(folder.run("validate", code=1).split())
    for line, message in (
        ('name = "Zk"', "name is 'Zk'; expected 1 to 63 lowercase letters"),
        ("heap_mib_max = 1", "greater than or equal to 32"),
        (f'listen = "{HOST}:99999"', "with a port from 1 to 65535"),
        ('zookeeper = "nowhere"', "should match pattern"),
        ('source_bootstrap = ["127.0.0.1:9092", "127.0.0.1"]', "expected HOST:PORT"),
        ('topics = "("', "not a regular expression"),
        ('schedule = "whenever"', "schedule 'whenever' is not a cron expression"),
    ):
        assert re.search(rf"on main\.tf line \d+, .*: {re.escape(line)} .*{re.escape(message)}", output), (
            message
        )


def test_a_plan_is_a_dry_run_at_the_agent_and_an_import_adopts_a_unit(
    workspace: Make, agent: RunningAgent
) -> None:
    ports = free_ports(3, HOST)
    agent.client.put(
        "zk", {"kind": "zookeeper", "datacenter": "east", "listen": f"{HOST}:{ports[0]}"}, wait_s=60
    )
    folder = workspace(
        provider(agent)
        + unit("zookeeper", "zk", ports[0])
        + unit("registry", "reg", agent.address.port, f'zookeeper = "{HOST}:{ports[0]}"')
        + unit("registry", "other", ports[2], 'zookeeper = "127.0.0.1:1"').replace('"host-a"', '"host-b"')
        + unit("airflow", "a", ports[1], 'component = "scheduler"\n  database_url = var.url')
        + 'variable "url" { sensitive = true }'
    )
    give_token(folder, agent)
    folder.environment["TF_VAR_url"] = "postgresql://airflow:hunter2@db\t"
    output = " ".join(folder.plan(code=1).split())
    # The address is the agent's own. That the unit exists already is a warning.
    assert "on main.tf line" in output and f"{agent.address} is in use" in output
    assert "Unit zk already exists; Terraform adopts it" in output
    assert "Invalid database_url" in output and "hunter2" not in output
    assert "Unknown host 'host-b'" in output and 'host = "host-b"' in output
    folder.write(provider(agent) + unit("zookeeper", "zk", ports[0]))
    folder.run("import", "headrace_zookeeper.zk", "host-a/zk")
    pid = agent.pid("zk")
    folder.plan(code=0)
    assert agent.pid("zk") == pid


def test_an_apply_continues_after_ctrl_c_and_a_failed_unit_shows_its_log(
    workspace: Make, agent: RunningAgent
) -> None:
    ports = free_ports(2, HOST)

    def hcl(heap: int, wait_s: int) -> str:
        return (
            provider(agent, f"ready_timeout_s = {wait_s}")
            + unit("zookeeper", "first", ports[0], f"heap_mib_max = {heap}")
            + unit("registry", "second", ports[1], "zookeeper = headrace_zookeeper.first.listen")
        )

    broken = agent.home / "first.broken"
    broken.write_text("it is out of order")
    folder = workspace(hcl(128, 600))
    give_token(folder, agent)
    began = time.monotonic()
    output = folder.interrupt_apply(
        lambda: "first" in {each.name for each in agent.client.units(with_drift=False)}
    )
    assert time.monotonic() - began < 120 and "Interrupted" in output, output
    left = folder.attributes("headrace_zookeeper.first")
    assert left["ready"] is False and "status" not in left
    broken.unlink()
    output = folder.apply()
    # It may have become ready since; in any case it must not be created again.
    assert re.search(r"1 added, [01] changed, 0 destroyed", output)
    assert folder.attributes("headrace_zookeeper.first")["ready"] is True

    broken.write_text("it is out of order")
    folder.write(hcl(64, 2))
    output = folder.apply(code=1)
    assert "Unit first is not ready" in output and "it is out of order" in output
    assert folder.attributes("headrace_zookeeper.first")["ready"] is False


def test_the_documented_reference_is_the_generated_one(terraform: None) -> None:
    done = subprocess.run(
        [str(VENV / "bin" / "python"), "-m", "headrace.provider.reference"],
        capture_output=True,
        text=True,
        check=True,
    )
    documented = (ROOT / "docs" / "terraform.md").read_text().partition("<!-- reference -->\n")[2]
    assert documented == done.stdout, "run `python -m headrace.provider.reference` for docs/terraform.md"
    rows = [row for row in documented.splitlines() if row.startswith("| `")]
    assert len(rows) > 100 and not [row for row in rows if row.endswith("|  |")], (
        "an attribute without a description"
    )


def test_a_new_brokers_settings_fail_the_plan(workspace: Make, agent: RunningAgent) -> None:
    (port,) = free_ports(1, HOST)
    settings = 'settings = { "num.partition" = "3", "log.roll.ms" = "soon" }'
    folder = workspace(
        provider(agent)
        + unit("broker", "b", port, f'broker_id = 1\n  zookeeper = "127.0.0.1:1"\n  {settings}')
    )
    give_token(folder, agent)
    output = " ".join(folder.plan(code=1).split())
    assert "num.partition: Got 3: there is no such broker setting; did you mean num.partitions?." in output
    assert "log.roll.ms: Got soon: not a number." in output
    assert re.search(rf"on main\.tf line \d+, .*: {re.escape(settings)}", output)
    assert agent.client.units() == []


def test_a_unit_that_cannot_start_fails_its_apply_with_its_own_error(
    workspace: Make, agent: RunningAgent
) -> None:
    (port,) = free_ports(1, HOST)
    # So long would the apply wait for a unit that is only slow.
    folder = workspace(provider(agent, "ready_timeout_s = 3600") + unit("zookeeper", "zk", port))
    give_token(folder, agent)
    (agent.home / "zk.broken").write_text("no room on this disk")
    output = " ".join(folder.apply(code=1).split())
    assert "Unit zk is not ready, its process ends in every attempt to start it" in output
    assert "attempts ended with: no room on this disk" in output
    assert output.count("no room on this disk") <= 1 + 3 * 2, "the log's lines are few"
    (agent.home / "zk.broken").unlink()
    folder.apply()
    assert agent.is_ready("zk")
    assert agent.client.unit("zk").made_by == "terraform"
