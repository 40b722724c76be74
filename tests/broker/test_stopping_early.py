"""A broker that is told to stop while it waits for ZooKeeper."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from fix_ports import free_port
from fix_zookeeper import die_with_parent

STOP_WAIT_MAX_S: Final = 20.0
"""Less than the broker waits for ZooKeeper."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_does_not_wait_for_zookeeper_any_more(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60.0)
        command = [sys.executable, "-m", "headrace.broker", "--broker-id", "1", "--datacenter", "east"]
        command += ["--listen", f"127.0.0.1:{free_port()}", "--data-dir", str(tmp_path / "data")]
        command += ["--zookeeper", f"127.0.0.1:{silent.getsockname()[1]}"]
        broker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        try:
            connection, _ = silent.accept()
            with connection:  # and no answer
                broker.send_signal(number)
                _, said = broker.communicate(timeout=STOP_WAIT_MAX_S)
        finally:
            broker.kill()
            broker.communicate()
    assert (broker.returncode, said) == (0, "")
