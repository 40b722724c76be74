"""The agent of a host, attacked: half requests, a token that only reads, paths out of the home, files."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from fix_agent import RunningAgent, eventually, half_requests
from headrace.agent.actions import FILE_MAX_BYTES, FILES_MAX, ActionLog
from headrace.agent.configuration import secret_fields
from headrace.agent.errors import ConfigurationError, SupervisorError
from headrace.agent.host import Host
from headrace.agent.kinds import KINDS, parse_configuration, unit_of
from headrace.agent.permitted import PermittedPaths, permit
from headrace.agent.report import HIDDEN, report_of
from headrace.agent.supervisor import Supervisor, _make_own_folder

BROKER = {"kind": "broker", "datacenter": "x", "broker_id": 1, "zookeeper": "127.0.0.1:1"}
SECRET = "postgresql://user:hunter2@db/airflow"


def ask(agent: RunningAgent, role: str, method: str, path: str, **options: Any) -> httpx.Response:
    name = {"operate": "token", "read": "token-read"}[role]
    headers = {"Authorization": f"Bearer {(agent.home / 'agent' / name).read_text().strip()}"}
    url = f"http://{agent.address}{path}"
    return httpx.request(method, url, headers=headers, trust_env=False, timeout=60, **options)


def actions(agent: RunningAgent) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (agent.home / "logs" / "actions.log").read_text().splitlines()]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /v1/health HTTP/1.1\r\nHost: x\r\n",
        b"PUT /v1/units/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/health HTTP/1.1\r\n",
    ],
    ids=["nothing", "half a head", "half a body", "a second half"],
)
def test_half_requests_without_a_token_lock_nobody_out(agent: RunningAgent, data: bytes) -> None:
    with half_requests(agent, data):
        assert ask(agent, "operate", "GET", "/v1/units").status_code == 200
        assert (
            ask(agent, "operate", "PUT", "/v1/units/one?wait_s=60", json=agent.stand_in()).status_code == 201
        )


# --- tokens and private files ---


def test_the_token_that_reads_changes_nothing_and_sees_no_secret(agent: RunningAgent) -> None:
    put = agent.stand_in()
    assert ask(agent, "operate", "PUT", "/v1/units/one?wait_s=60", json=put).status_code == 201
    for method, path in (
        ("PUT", "/v1/units/two"),
        ("DELETE", "/v1/units/one"),
        ("POST", "/v1/units/one/restart"),
        ("POST", "/v1/restart"),
        ("POST", "/v1/shutdown"),
        ("PUT", "/v1/loads/page-view"),
    ):
        refused = ask(agent, "read", method, path, json=put)
        assert (refused.status_code, refused.json()["error"]) == (403, "read_only"), path
    shown = ask(agent, "read", "GET", "/v1/units/one").json()
    assert (shown["name"], shown["ready"]) == ("one", True)
    (listed,) = ask(agent, "read", "GET", "/v1/units").json()["units"]
    assert listed["uptime_s"] >= shown["uptime_s"]
    assert {**listed, "uptime_s": 0} == {**shown, "uptime_s": 0}
    assert ask(agent, "read", "GET", "/v1/units/one/log").status_code == 200


def test_every_change_and_every_refusal_is_recorded_without_its_content(agent: RunningAgent) -> None:
    path = agent.home / "logs" / "actions.log"
    before = len(actions(agent)) if path.exists() else 0
    put = agent.stand_in(value="hunter2")
    ask(agent, "operate", "PUT", "/v1/units/one?wait_s=60", json=put)
    ask(agent, "operate", "GET", "/v1/units")
    ask(agent, "read", "DELETE", "/v1/units/one")
    ask(agent, "operate", "PUT", "/v1/units/bad%0Aname", json=put)
    lines = [line for line in actions(agent)[before:] if "method" in line]
    seen = [(line["role"], line["method"], line["path"], line["status"]) for line in lines]
    assert seen == [
        ("operate", "PUT", "/v1/units/one", 201),
        ("read", "DELETE", "/v1/units/one", 403),
        ("operate", "PUT", "/v1/units/bad\nname", 422),
    ]
    assert all(len(line["body_sha256"]) in (0, 64) and line["time"].endswith("Z") for line in lines)
    assert "hunter2" not in path.read_text()
    assert path.read_text().count("\n") == len(actions(agent))


def test_nobody_else_can_read_logs_configuration_and_state(agent: RunningAgent) -> None:
    assert ask(agent, "operate", "PUT", "/v1/units/one?wait_s=60", json=agent.stand_in()).status_code == 201
    eventually(lambda: (agent.home / "logs" / "one.log").exists())
    kept = [agent.home / "supervisord.conf", *(agent.home / "logs").iterdir()]
    kept += [path for path in (agent.home / "agent").rglob("*") if path.is_file()]
    open_to_others = [path for path in kept if path.stat().st_mode & 0o077 and path.is_file()]
    assert len(kept) > 5
    assert open_to_others == []


# --- paths ---


@pytest.mark.parametrize(
    ("field", "configuration"),
    [
        ("data_dir", {**BROKER, "data_dir": "/etc"}),
        ("data_dir", {**BROKER, "data_dir": "HOME/../../etc"}),
        ("data_dir", {**BROKER, "data_dir": "HOME/link/x"}),
        ("python", {"kind": "airflow", "datacenter": "x", "component": "scheduler", "python": "/bin/sh"}),
        ("dags", {"kind": "airflow", "datacenter": "x", "component": "scheduler", "dags": "/srv/dags"}),
        (
            "settings.dfs.namenode.name.dir",
            {"kind": "hdfs", "datacenter": "x", "settings": {"dfs.namenode.name.dir": "file:///etc/x"}},
        ),
        (
            "settings.net.topology.script.file.name",
            {"kind": "hdfs", "datacenter": "x", "settings": {"net.topology.script.file.name": "/bin/id"}},
        ),
    ],
)
def test_a_path_outside_of_the_home_is_refused_by_name(
    tmp_path: Path, field: str, configuration: dict[str, Any]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "link").symlink_to("/etc")
    text = json.dumps(configuration).replace("HOME", str(home))
    parsed = parse_configuration("one", json.loads(text))
    with pytest.raises(ConfigurationError, match="--allow-path") as caught:
        PermittedPaths((home,)).check("one", parsed)
    assert field in str(caught.value)
    PermittedPaths((home, Path("/"))).check("one", parsed)


def test_paths_in_the_home_and_the_hosts_own_are_taken(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "python"
    permitted = PermittedPaths((tmp_path / "home",), (python,))
    permitted.check("one", parse_configuration("one", {**BROKER, "data_dir": f"{tmp_path}/home/data"}))
    airflow = {"kind": "airflow", "datacenter": "x", "component": "scheduler", "python": str(python)}
    permitted.check("one", parse_configuration("one", airflow))


def test_commands_of_the_host_permit_what_their_site_names(tmp_path: Path) -> None:
    file = tmp_path / "home" / "permitted-paths"
    permitted = PermittedPaths((tmp_path / "home",), file=file)
    named = parse_configuration("one", {**BROKER, "data_dir": "/srv/data"})
    other = parse_configuration("one", {**BROKER, "data_dir": "/srv/other"})
    with pytest.raises(ConfigurationError):
        permitted.check("one", named)
    permit(file, [named])
    permit(file, [named])
    assert file.read_text() == "/srv/data\n" and file.stat().st_mode & 0o077 == 0
    permitted.check("one", named)
    with pytest.raises(ConfigurationError):
        permitted.check("one", other)


def test_the_running_agent_refuses_such_paths(agent: RunningAgent) -> None:
    refused = ask(agent, "operate", "PUT", "/v1/units/b1?dry_run=true", json={**BROKER, "data_dir": "/etc"})
    assert (refused.status_code, refused.json()["error"]) == (422, "configuration_invalid")
    assert "--allow-path" in refused.json()["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/units/..%2f..%2fetc%2fpasswd/log",
        "/v1/units/%2fetc%2fpasswd/log",
        "/v1/units/agent/log",
        "/v1/units/supervisord/log",
        "/v1/units/a%0ab/log",
        "/v1/units/one%0a",
        "/v1/loads/..%2f..%2fagent%2ftoken",
        "/v1/loads/..",
        "/v1/loads/%2e%2e%2fagent%2ftoken",
    ],
)
def test_no_path_of_a_request_leads_to_a_file(agent: RunningAgent, path: str) -> None:
    token = (agent.home / "agent" / "token").read_text().strip()
    for method in ("GET", "PUT", "DELETE"):
        refused = ask(agent, "operate", method, path, json=agent.stand_in())
        assert refused.status_code in (404, 405, 422), (method, refused.text)
        assert token not in refused.text and "root:" not in refused.text


@pytest.mark.parametrize("control", ["\n", "\r", "\x85", "\u2028", "\u2029", "\u202e", "\xad"])
def test_a_text_that_no_file_can_hold_hinders_no_other_unit(agent: RunningAgent, control: str) -> None:
    """supervisord's file has all units: what it cannot hold of one kept every unit from being changed."""
    value = f"x{control}[program:evil]{control}command=id"
    for name, put in (
        ("two", agent.stand_in(value=value)),
        ("b1", {**BROKER, "settings": {"client.name": value}}),
        ("b1", {**BROKER, "rack": value}),
        ("b1", {**BROKER, "data_dir": f"{agent.home}/{value}"}),
    ):
        refused = ask(agent, "operate", "PUT", f"/v1/units/{name}", json=put)
        assert (refused.status_code, refused.json()["error"]) == (422, "configuration_invalid"), put
    changed = ask(
        agent, "operate", "PUT", "/v1/units/one?wait_s=60", json=agent.stand_in(value=control.encode().hex())
    )
    assert changed.status_code in (200, 201), changed.text
    assert [unit["name"] for unit in ask(agent, "operate", "GET", "/v1/units").json()["units"]] == ["one"]


def test_signs_of_other_programs_files_are_values(agent: RunningAgent) -> None:
    value = "%(ENV_HOME)s ; touch x # </value> ${x} `id`"
    made = ask(agent, "operate", "PUT", "/v1/units/one?wait_s=60", json=agent.stand_in(value=value))
    assert made.status_code in (200, 201), made.text
    assert (agent.home / "one.value").read_text() == value


# --- secrets ---


@pytest.mark.parametrize(
    ("configuration", "field"),
    [
        (
            {
                "kind": "auditor",
                "datacenter": "x",
                "bootstrap": ["127.0.0.1:1"],
                "registry_urls": ["http://a"],
                "status": "127.0.0.1:2",
                "store": SECRET,
            },
            "store",
        ),
        (
            {"kind": "airflow", "datacenter": "x", "component": "scheduler", "database_url": SECRET},
            "database_url",
        ),
        (
            {
                "kind": "airflow",
                "datacenter": "x",
                "component": "api-server",
                "connections": {"a": {"password": SECRET}},
            },
            "connections",
        ),
    ],
)
def test_passwords_stand_in_private_files_only(
    tmp_path: Path, configuration: dict[str, Any], field: str
) -> None:
    parsed = parse_configuration("one", configuration)
    unit = unit_of("one", parsed, Host.here(tmp_path))
    assert "hunter2" not in " ".join(unit.command)
    assert "hunter2" not in json.dumps(dict(unit.environment))
    assert any("hunter2" in text for text in unit.files.values())
    assert field in secret_fields(KINDS[parsed.kind].configuration)
    Supervisor(tmp_path).write_configuration([unit])
    assert "hunter2" not in (tmp_path / "supervisord.conf").read_text()


def test_secrets_are_hidden_from_readers(agent: RunningAgent) -> None:
    configuration = {"kind": "airflow", "datacenter": "x", "component": "scheduler", "database_url": SECRET}
    parsed = parse_configuration("one", configuration)
    report = report_of(unit_of("one", parsed, Host.here(agent.home)), None, None, ())
    assert report.configuration["database_url"] == SECRET
    assert report.without(secret_fields(type(parsed))).configuration["database_url"] == HIDDEN


def test_a_socket_is_made_only_in_a_folder_of_this_user(tmp_path: Path) -> None:
    own = tmp_path / "own"
    _make_own_folder(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.chmod(0o770)
    with pytest.raises(SupervisorError, match="chmod go-w"):
        _make_own_folder(own)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(SupervisorError, match="others than this user"):
        _make_own_folder(link)


# --- the record of actions ---


def test_refusals_are_counted_and_written_once_a_minute(tmp_path: Path) -> None:
    times = [0.0]
    log = ActionLog(tmp_path / "actions.log", now_s=lambda: 1e9, monotonic_s=lambda: times[0])
    for second in range(130):
        times[0] = float(second)
        for _ in range(100):
            log.refused("127.0.0.1:1", "GET", "/v1/units\n" + "x" * 1000)
    lines = [json.loads(line) for line in (tmp_path / "actions.log").read_text().splitlines()]
    assert [line["requests"] for line in lines] == [1, 6000, 6000]
    assert len((tmp_path / "actions.log").read_text()) < 2000


def test_the_record_has_a_bound(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "actions.log")
    for number in range(FILES_MAX + 5):
        (tmp_path / "actions.log").write_bytes(b"x" * FILE_MAX_BYTES)
        log.write(number=number)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == FILES_MAX
    assert json.loads((tmp_path / "actions.log").read_text())["number"] == FILES_MAX + 4
