"""A real agent over HTTP: its token, its responses, units put, changed, restarted, deleted."""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest

from fix_agent import HOST, RunningAgent
from fix_pages import PageReader
from fix_ports import free_port
from headrace.agent.client import AgentClient
from headrace.agent.errors import AgentRefusedError
from headrace.agent.processes import is_alive
from headrace.agent.report import ChangeOutcome, DriftKind
from headrace.airflow.topics import read_loads
from headrace.process.neighbours import neighbours
from headrace.process.page import HEADERS

READY_S = 60.0


def ask(agent: RunningAgent, method: str, path: str, **options: Any) -> httpx.Response:
    """Sends a request without headrace's client."""
    token = (agent.home / "agent" / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
    url = f"http://{agent.address}{path}"
    return httpx.request(method, url, headers=headers, trust_env=False, verify=False, timeout=60, **options)


def refusal(agent: RunningAgent, method: str, path: str, **options: Any) -> tuple[int, str, str]:
    response = ask(agent, method, path, **options)
    error = response.json()
    return response.status_code, error["error"], error["message"]


def test_only_the_token_gives_access_and_it_is_never_shown(agent: RunningAgent) -> None:
    token = (agent.home / "agent" / "token").read_text().strip()
    assert (agent.home / "agent" / "token").stat().st_mode & 0o777 == 0o600
    for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": f"Bearer {token}x"}):
        for path in ("/v1/units", "/v1/version", "/nowhere"):
            response = httpx.get(f"http://{agent.address}{path}", headers=headers, trust_env=False)
            assert (response.status_code, response.json()["error"]) == (401, "unauthorized")
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert token not in response.text
    open_to_all = httpx.get(f"http://{agent.address}/v1/health", trust_env=False)
    assert open_to_all.json()["status"] == "ok"
    assert ask(agent, "GET", "/v1/version").json()["home"] == str(agent.home)
    with (
        AgentClient(f"http://{agent.address}", "wrong" * 10) as stranger,
        pytest.raises(AgentRefusedError) as caught,
    ):
        stranger.units()
    assert caught.value.status == 401
    agent.end()
    assert token not in (agent.home / "agent.out").read_text()


def test_the_page_needs_the_token_as_a_password_which_permits_nothing_else(agent: RunningAgent) -> None:
    agent.put_all({"one": agent.stand_in()})
    url = f"http://{agent.address}"
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    locked = httpx.get(url, headers=browser, trust_env=False)
    assert locked.status_code == 401
    assert locked.headers["WWW-Authenticate"].startswith("Basic ")
    assert "agent/token-read" in PageReader(locked.text).text
    assert str(agent.home) not in locked.text
    for name in ("token-read", "token"):
        password = ("anybody", (agent.home / "agent" / name).read_text().strip())
        page = httpx.get(url, headers=browser, auth=password, trust_env=False, timeout=60)
        assert page.status_code == 200
        assert {key: page.headers[key] for key in HEADERS} == dict(HEADERS)
        read = PageReader(page.text)
        assert "1 of 1 units ready" in read.texts
        assert {"one", "stand-in", "ready"} <= set(read.texts)
        for path in ("/v1/units", "/v1/version"):
            assert httpx.get(url + path, headers=browser, auth=password, trust_env=False).status_code == 401
        assert httpx.delete(f"{url}/v1/units/one", auth=password, trust_env=False).status_code == 401
    wrong = httpx.get(url, headers=browser, auth=("anybody", "x" * 43), trust_env=False)
    assert wrong.status_code == 401
    assert refusal(agent, "GET", "/")[:2] == (404, "path_unknown"), "programs get what they got"


def test_the_agent_tells_units_of_each_others_pages(agent: RunningAgent) -> None:
    agent.put_all({"one": agent.stand_in()})
    environment = {"HEADRACE_PAGES": str(agent.home / "agent" / "pages.json"), "HEADRACE_UNIT": "one"}
    assert [(each.name, each.url) for each in neighbours(environment)] == [
        ("agent", f"http://{agent.address}/")
    ], "a stand-in has no page"


def test_bad_requests_are_explained_and_change_nothing(agent: RunningAgent) -> None:
    put = agent.stand_in()
    assert refusal(agent, "PUT", "/v1/units/one", content=b"{")[:2] == (422, "request_invalid")
    assert refusal(agent, "PUT", "/v1/units/one", content=b'{"kind": NaN}')[:2] == (422, "request_invalid")
    assert refusal(agent, "PUT", "/v1/units/one", content=b" " * (300 << 10))[:2] == (413, "body_too_long")
    assert refusal(agent, "PUT", "/v1/units/One", json=put)[:2] == (422, "request_invalid")
    assert refusal(agent, "PUT", "/v1/units/agent", json=put)[:2] == (422, "request_invalid")
    assert refusal(agent, "PUT", "/v1/units/one?wait_s=601", json=put)[:2] == (
        422,
        "request_invalid",
    )
    assert refusal(agent, "GET", "/v1/units/one/log?lines=0")[:2] == (422, "request_invalid")
    status, code, message = refusal(
        agent, "PUT", "/v1/units/one", json={**put, "listen": "x", "user": "root"}
    )
    assert (status, code) == (422, "configuration_invalid")
    assert (
        "unit one: " in message and "listen: 'x': expected HOST:PORT" in message and "user: 'root'" in message
    )
    status, code, message = refusal(agent, "PUT", "/v1/units/one", json={**put, "listen": "192.0.2.1:80"})
    assert (status, code) == (422, "address_not_here")
    assert "192.0.2.1:80" in message
    status, code, message = refusal(agent, "PUT", "/v1/units/one", json={**put, "requires": ["one"]})
    assert (status, code) == (422, "configuration_invalid")
    assert "in a circle: one → one" in message
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/restart"), ("GET", "/log")):
        assert refusal(agent, method, f"/v1/units/one{path}")[:2] == (404, "unit_unknown")
    assert refusal(agent, "GET", "/v2")[:2] == (404, "path_unknown")
    assert refusal(agent, "PATCH", "/v1/units/one")[:2] == (405, "method_not_allowed")
    assert refusal(agent, "POST", "/v1/restart", json={"units": []})[:2] == (422, "request_invalid")
    assert ask(agent, "GET", "/v1/units").json() == {"units": []}
    assert agent.states() == {}, "nothing was started"


def test_a_put_is_idempotent_and_a_change_restarts_that_unit_alone(agent: RunningAgent) -> None:
    configurations = {name: agent.stand_in() for name in ("one", "two")}
    dry = ask(agent, "PUT", "/v1/units/one?dry_run=true", json=configurations["one"])
    assert dry.json() == {"outcome": "created", "dry_run": True}
    assert agent.client.units() == []
    for name in configurations:
        response = ask(agent, "PUT", f"/v1/units/{name}?wait_s={READY_S}", json=configurations[name])
        assert (response.status_code, response.json()["outcome"]) == (201, "created")
        assert response.json()["unit"]["ready"]
    pids = {name: agent.pid(name) for name in configurations}

    response = ask(agent, "PUT", "/v1/units/one", json=configurations["one"])
    assert (response.status_code, response.json()["outcome"]) == (200, "unchanged")
    assert agent.pid("one") == pids["one"]

    changed = {**configurations["two"], "value": "another"}
    assert agent.client.put("two", changed, dry_run=True).outcome is ChangeOutcome.CHANGED
    assert agent.pid("two") == pids["two"]
    put = agent.client.put("two", changed, wait_s=READY_S)
    assert put.outcome is ChangeOutcome.CHANGED
    assert put.unit is not None and put.unit.is_ready and put.unit.configuration["value"] == "another"
    assert agent.pid("two") != pids["two"]
    assert agent.pid("one") == pids["one"]

    assert [unit.name for unit in agent.client.units()] == ["one", "two"]
    assert "stand-in %d%% here" in agent.client.log("one", lines=5)
    assert agent.client.delete("one")
    assert not is_alive(pids["one"])
    assert not agent.client.delete("one")
    assert set(agent.states()) == {"two"}


def test_a_conflict_names_the_holder(agent: RunningAgent) -> None:
    configuration = agent.stand_in()
    agent.client.put("one", configuration)
    with pytest.raises(AgentRefusedError) as caught:
        agent.client.put("two", configuration, dry_run=True)
    assert (caught.value.status, caught.value.code) == (409, "conflict")
    assert f"{configuration['listen']}, for unit two, is taken by unit one of this host" in str(caught.value)
    assert caught.value.details["conflicts"][0]["unit"] == "one"

    data = {"kind": "zookeeper", "datacenter": "east", "data_dir": str(agent.home / "zk")}
    listen = (HOST, free_port(HOST))
    with socket.create_server(listen), pytest.raises(AgentRefusedError) as caught:
        agent.client.put("three", {**data, "listen": f"{HOST}:{listen[1]}"})
    assert f"is taken by process {os.getpid()}" in str(caught.value)
    assert "three" not in agent.states()


def test_drift_is_reported_and_a_put_removes_it(agent: RunningAgent) -> None:
    configuration = agent.stand_in()
    agent.client.put("one", configuration, wait_s=READY_S)
    assert agent.client.unit("one").drift == ()
    agent.supervisor.stop("one", wait=True)
    (agent.home / "one.value").write_text("something else")
    drifted = agent.client.unit("one")
    assert [each.what for each in drifted.drift] == [DriftKind.PROCESS, DriftKind.FILE]
    assert not drifted.is_ready and drifted.problem == "stopped"
    put = agent.client.put("one", configuration, wait_s=READY_S)
    assert put.outcome is ChangeOutcome.CHANGED
    assert put.unit is not None and put.unit.is_ready and put.unit.drift == ()
    assert (agent.home / "one.value").read_text() != "something else"


def test_waiting_for_health_is_bounded_and_names_the_problem(agent: RunningAgent) -> None:
    (agent.home / "one.broken").write_text("no room on this disk")
    response = ask(agent, "PUT", "/v1/units/one?wait_s=1", json=agent.stand_in())
    assert response.status_code == 504
    body = response.json()
    assert (body["error"], body["outcome"], body["unit"]["ready"]) == ("not_ready", "created", False)
    assert "unit one is not ready, not within 1 s" in body["message"]
    assert "no room on this disk" in body["log_tail"]
    (agent.home / "one.broken").unlink()
    assert agent.client.restart("one", wait_s=READY_S).is_ready


def test_a_rolling_restart_waits_for_health_and_stops_at_the_first_that_fails(agent: RunningAgent) -> None:
    names = ["one", "two", "three"]
    agent.put_all({name: agent.stand_in() for name in names})
    before = {name: agent.pid(name) for name in names}
    missing: list[set[str]] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            missing.append({unit.name for unit in agent.client.units(with_drift=False) if not unit.is_ready})

    watcher = threading.Thread(target=look)
    watcher.start()
    rolled = agent.client.roll(["two", "one"], wait_s=READY_S)
    is_over.set()
    watcher.join()
    assert [unit.name for unit in rolled] == ["two", "one"]
    assert all(unit.is_ready for unit in rolled)
    assert max(map(len, missing)) == 1, "never two at once"
    after = {name: agent.pid(name) for name in names}
    assert (
        after["one"] != before["one"] and after["two"] != before["two"] and after["three"] == before["three"]
    )

    (agent.home / "two.broken").write_text("broken")
    with pytest.raises(AgentRefusedError) as caught:
        agent.client.roll(names, wait_s=2.0)
    assert (caught.value.status, caught.value.code) == (504, "not_ready")
    assert (caught.value.details["restarted"], caught.value.details["left_alone"]) == (["one"], ["three"])
    assert agent.pid("three") == after["three"]
    with pytest.raises(
        AgentRefusedError, match=r"unit two is not ready .* so no unit was restarted"
    ) as caught:
        agent.client.roll(["three", "two"])
    assert caught.value.status == 409
    assert agent.pid("three") == after["three"]


def test_a_shutdown_is_refused_while_there_are_units(agent: RunningAgent) -> None:
    agent.client.put("one", agent.stand_in())
    with pytest.raises(AgentRefusedError, match="still has 1 units, such as one;") as caught:
        agent.client.shut_down()
    assert caught.value.code == "units_left"
    agent.client.delete("one")
    agent.client.shut_down()
    assert agent.has_ended() == 0
    assert not agent.supervisor.is_alive()


def test_a_second_agent_of_the_same_home_is_refused(agent: RunningAgent) -> None:
    command = [sys.executable, "-m", "headrace.agent", "--home", str(agent.home)]
    command += ["--listen", f"{HOST}:{free_port(HOST)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert agent.process is not None
    assert f"another agent (process {agent.process.pid}) keeps the units of {agent.home}" in done.stderr
    assert "Traceback" not in done.stderr
    assert agent.client.units() == []


def test_of_concurrent_puts_with_one_address_only_one_succeeds(agent: RunningAgent) -> None:
    configuration = agent.stand_in()
    refused: list[str] = []

    def put(name: str) -> None:
        try:
            agent.client.put(name, configuration)
        except AgentRefusedError as error:
            refused.append(error.code)

    threads = [threading.Thread(target=put, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == ["conflict", "conflict"]
    assert len(agent.states()) == 1


@pytest.mark.zookeeper
def test_the_size_of_a_units_data_is_reported(agent: RunningAgent) -> None:
    listen = f"{HOST}:{free_port(HOST)}"
    agent.client.put("z", {"kind": "zookeeper", "datacenter": "east", "listen": listen})
    folder = agent.home / "data" / "z"
    (folder / "deeper").mkdir()
    before = agent.client.data("z")
    (folder / "deeper" / "more").write_bytes(b"x" * 1000)
    after = agent.client.data("z")
    assert after.directory == str(folder)
    # ZooKeeper may write at the same time.
    assert after.size_bytes >= before.size_bytes + 1000 >= 1000
    put = agent.stand_in()
    agent.client.put("a", put)
    assert agent.client.data("a") == (None, 0)


def test_loads_are_stored_in_the_form_that_the_dags_read(agent: RunningAgent) -> None:
    client, path = agent.client, agent.home / "loads" / "page-view.json"
    load = {"owner": "web", "schedule": None, "grace": "1h"}
    assert client.put_load("page-view", load, dry_run=True) is ChangeOutcome.CREATED
    assert not path.exists()
    assert client.put_load("page-view", load) is ChangeOutcome.CREATED
    assert client.put_load("page-view", load) is ChangeOutcome.UNCHANGED
    assert client.put_load("page-view", {**load, "retries": 0}) is ChangeOutcome.CHANGED
    whole = client.load("page-view")
    assert whole["retries"] == 0 and whole["schedule"] is None and whole["audit_wait"] == "30m"
    (plan,) = read_loads({"HEADRACE_HOME": str(agent.home)}).schedules
    assert (plan.topic, plan.owner, plan.retries) == ("page-view", "web", 0)
    assert plan.grace == datetime.timedelta(hours=1)
    assert ask(agent, "GET", "/v1/loads").json() == {"loads": {"page-view": whole}}
    for body, message in (
        ({"owner": "web", "grace": "soon"}, "load page-view: grace: 'soon'"),
        ({}, "owner is missing"),
        (["web"], "expected an object"),
        ({"owner": "web", "color": "red"}, "unknown field 'color'"),
    ):
        status, code, text = refusal(agent, "PUT", "/v1/loads/page-view", json=body)
        assert (status, code) == (422, "configuration_invalid") and message in text
    wrong = ask(agent, "PUT", "/v1/loads/page-view", json={"grace": "soon", "retries": -1, "color": "red"})
    fields = [(each["field"], each["value"]) for each in wrong.json()["fields"]]
    assert fields == [("color", "'red'"), ("owner", "None"), ("grace", "'soon'"), ("retries", "-1")]
    assert refusal(agent, "PUT", "/v1/loads/a%20b", json={"owner": "web"})[:2] == (
        422,
        "configuration_invalid",
    )
    assert client.load("page-view") == whole
    assert client.delete_load("page-view") and not client.delete_load("page-view")
    assert refusal(agent, "GET", "/v1/loads/page-view")[:2] == (404, "load_unknown")
    assert refusal(agent, "GET", "/v1/loads/..%2Fagent%2Ftoken")[0] == 404
