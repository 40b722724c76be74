"""bench/python_client.py: every library produces to and reads from our broker, and the figures are there."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from clients.outcome import Outcome

from fix_broker import BrokerCluster
from headrace.client import Admin

PROGRAM = Path(__file__).parents[2] / "bench" / "python_client.py"
RUN_MAX_S = 120


def run(mode: str, cluster: BrokerCluster, topic: str, library: str, *more: str) -> Outcome:
    command = [sys.executable, str(PROGRAM), mode, "--bootstrap", cluster.bootstrap, "--topic", topic]
    command += ["--library", library, "--seconds", "0.3", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_MAX_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    begin, outcome = done.stdout.splitlines()
    assert begin == "begin"
    return Outcome.parse(outcome)


@pytest.mark.real_client
@pytest.mark.parametrize("library", ["headrace", "confluent", "kafka-python"])
def test_each_library_produces_and_consumes(one_broker: BrokerCluster, library: str) -> None:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(one_broker.bootstrap) as admin:
        admin.create_topic(topic, 1)
    produced = run("produce", one_broker, topic, library, "--value-bytes", "100")
    # Reads the topic over again: it was written in as long as it is read.
    consumed = run("consume", one_broker, topic, library)
    for result in (produced, consumed):
        assert result.size_bytes == result.records * 100
        assert result.cpu_s > 0
        assert result.memory_bytes > 1 << 20


def test_settings_reach_the_library(one_broker: BrokerCluster) -> None:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(one_broker.bootstrap) as admin:
        admin.create_topic(topic, 1)
    command = [sys.executable, str(PROGRAM), "produce", "--bootstrap", one_broker.bootstrap]
    command += ["--topic", topic, "--set", "compression=rar"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_MAX_S, check=False)
    assert done.returncode != 0
    assert "no compression called 'rar'" in done.stderr
