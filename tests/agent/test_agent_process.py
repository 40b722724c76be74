"""The record by which commands find a home's agent, and what a killed agent leaves of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.agent import local
from headrace.agent.home import AgentHome, AgentRecord, lock
from headrace.agent.local import end_agent, find_agent


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A program that got the process id of an agent that was killed."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_process_that_got_a_killed_agents_id_is_not_taken_for_the_one_that_starts(
    tmp_path: Path, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "END_TIMEOUT_S", 0.0)
    paths = AgentHome(tmp_path)
    paths.make()
    AgentRecord("http://127.0.0.1:1", None, stranger.pid, "another build", is_daemon=True).write(paths.record)
    with lock(paths):
        assert AgentRecord.read(paths.record) is None
        end_agent(tmp_path)
    assert stranger.poll() is None, "it was not ended"
    assert find_agent(tmp_path) is None
