"""A real agent whose disk is full: what strangers send does not take the room that its state needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fix_agent import RunningAgent, eventually, running_agent
from fix_mounts import small_file_system
from headrace.agent.home import AgentHome
from headrace.agent.reserve import REFILL_FACTOR, RESERVE_BYTES
from headrace.process.disk import space_of

DISK_BYTES = (REFILL_FACTOR + 2) * RESERVE_BYTES


@pytest.fixture
def agent_on_a_small_disk(tmp_path: Path) -> Iterator[RunningAgent]:
    home = tmp_path / "home"
    with small_file_system(home, DISK_BYTES), running_agent(home) as made:
        yield made


def test_requests_without_a_token_take_no_room_from_the_operator(agent_on_a_small_disk: RunningAgent) -> None:
    """Before, the line about the first one took the whole reserve, and the next change was refused."""
    agent = agent_on_a_small_disk
    reserve = AgentHome(agent.home).reserve
    eventually(reserve.exists)
    with (agent.home / "filler").open("ab", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4096))
    reader = (agent.home / "agent" / "token-read").read_text().strip()
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {reader}"}):
        for _ in range(60):  # what is left of the log's last page takes some
            answer = httpx.delete(f"http://{agent.address}/v1/units/one", headers=headers, trust_env=False)
            assert answer.status_code in (401, 403)
    assert reserve.stat().st_size == RESERVE_BYTES
    assert space_of(agent.home).free_bytes == 0
    agent.client.put("one", agent.stand_in())
    assert not reserve.exists(), "the change took it"
