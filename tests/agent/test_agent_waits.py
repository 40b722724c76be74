"""Many requests to a real agent that wait for a unit, beside one that does not."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from fix_agent import RunningAgent, eventually


def test_requests_that_wait_for_a_unit_delay_no_other_one(agent: RunningAgent) -> None:
    (agent.home / "one.broken").write_text("no room on this disk")
    agent.client.put("one", agent.stand_in())
    wait_s, count = 3.0, 45
    token = (agent.home / "agent" / "token").read_text().strip()

    def wait() -> int:
        url = f"http://{agent.address}/v1/units/one?wait_s={wait_s}"
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(url, headers=headers, trust_env=False, timeout=60).status_code

    with ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(wait) for _ in range(count)]
        time.sleep(wait_s / 3)  # so that all of them wait; if some do not yet, this finds less
        began_s = time.monotonic()
        assert httpx.get(f"http://{agent.address}/v1/health", trust_env=False).status_code == 200
        assert time.monotonic() - began_s < wait_s / 3
        assert {each.result() for each in waiting} == {504}


def test_a_unit_at_a_name_that_no_host_can_have_hides_no_other_one(agent: RunningAgent) -> None:
    """Before, each report of all units failed, and at the host's next start units behind it stayed down."""
    program = agent.home / "sleep"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    scheduler = {
        "kind": "airflow",
        "component": "scheduler",
        "datacenter": "east",
        "listen": "east..example.com:8080",
        "python": str(program),
    }
    agent.client.put("one", scheduler)
    agent.client.put("two", agent.stand_in(), wait_s=30)
    eventually(lambda: agent.states()["one"].is_running)
    found = {report.name: report.problem for report in agent.client.units()}
    assert found["two"] is None
    problem = found["one"] or ""
    assert "east..example.com" in problem and "can't be the name of a host" in problem
    agent.end()
    agent.supervisor.shut_down()
    agent.start()
    eventually(lambda: "two" in agent.states() and agent.client.unit("two").is_ready)
