"""Many requests to a real agent that wait for a unit, beside one that does not."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from fix_agent import RunningAgent


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
