"""The agent's process: where it listens, whom it serves with TLS, and what is left of a killed one."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_agent import HOST, RunningAgent, eventually, self_signed
from fix_ports import free_port
from headrace.agent import local
from headrace.agent.client import AgentClient
from headrace.agent.errors import AgentRefusedError, AgentUnreachableError
from headrace.agent.home import AgentHome, AgentRecord, lock
from headrace.agent.local import end_agent, find_agent
from headrace.agent.processes import is_alive

READY_S = 60.0


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


def test_without_tls_the_agent_listens_only_on_loopback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.agent", "--home", str(tmp_path), "--listen", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    way_out = "give --tls-certificate and --tls-key, listen on loopback, or allow it by --allow-plain"
    assert way_out in done.stderr


def test_with_tls_only_the_agents_certificate_is_trusted_and_plain_requests_fail(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, HOST)
    home = tmp_path / "home"
    home.mkdir()
    agent = RunningAgent(home, "--tls-certificate", str(certificate), "--tls-key", str(key))
    try:
        agent.start()
        # The commands of this machine trust the certificate that they find in the home.
        assert agent.client.url == f"https://{agent.address}"
        assert agent.client.units() == []
        token = (home / "agent" / "token").read_text().strip()
        url = agent.client.url
        untrusting = pytest.raises(AgentUnreachableError, match="CERTIFICATE_VERIFY_FAILED")
        with AgentClient(url, token) as stranger, untrusting:
            stranger.units()
        with AgentClient(url.replace("https", "http"), token) as plain, pytest.raises(AgentUnreachableError):
            plain.units()
        # So does every client that is given the certificate and uses the name in it.
        trusted = ssl.create_default_context(cafile=str(certificate))
        with AgentClient(url, token, tls=trusted) as friend:
            assert friend.version()["home"] == str(home)
    finally:
        agent.close()


def test_a_certificate_that_was_renewed_is_served_without_a_restart(tmp_path: Path) -> None:
    home, renewed = tmp_path / "home", tmp_path / "renewed"
    home.mkdir()
    renewed.mkdir()
    certificate, key = self_signed(tmp_path, HOST)
    agent = RunningAgent(home, "--tls-certificate", str(certificate), "--tls-key", str(key))
    try:
        agent.start()
        new_certificate, new_key = self_signed(renewed, HOST)
        new_certificate.replace(certificate)
        # The two files are not a pair now. Who still trusts the certificate of before is served.
        before = ssl.create_default_context(cadata=served(agent))
        with AgentClient(agent.client.url, "none", tls=before) as client:
            assert client.health()["status"] == "ok"
        new_key.replace(key)
        # Commands of this machine trust the certificate that is in the file.
        found = find_agent(home)
        assert found is not None
        with found:
            assert found.units() == []
        assert served(agent) == certificate.read_text()
        assert (home / "agent.out").read_text().count("cannot be used") == 1
    finally:
        agent.close()


def served(agent: RunningAgent) -> str:
    """The certificate that the agent serves now, PEM."""
    return ssl.get_server_certificate((agent.address.host, agent.address.port))


def test_a_token_that_was_replaced_counts_at_once_and_the_one_of_before_no_more(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    agent = RunningAgent(home)
    try:
        agent.start()
        token, fresh = home / "agent" / "token", home / "agent" / "token.new"
        before = token.read_text().strip()
        fresh.write_text("n" * 40)
        fresh.chmod(0o644)
        fresh.replace(token)
        # Others may read it: it is not believed, and nobody is locked out.
        with AgentClient(agent.client.url, before) as client:
            assert client.units() == []
            token.chmod(0o600)
            refused = pytest.raises(AgentRefusedError, match="agent/token of the agent's home")
            with refused:
                client.units()
        # The commands of this machine read the file.
        found = find_agent(home)
        assert found is not None
        with found:
            assert found.units() == []
        assert "others may read the token" in (home / "agent.out").read_text()
    finally:
        agent.close()


@pytest.mark.zookeeper
def test_a_real_zookeeper_outlives_the_agent_and_does_not_hold_its_output(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    agent = RunningAgent(home)
    command = [
        sys.executable,
        "-m",
        "headrace.agent",
        "--home",
        str(home),
        "--listen",
        str(agent.address),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    agent.process = process
    try:
        agent.wait_found()
        configuration = {"kind": "zookeeper", "datacenter": "east", "listen": f"{HOST}:{free_port(HOST)}"}
        put = agent.client.put("east-zookeeper", configuration, wait_s=READY_S)
        assert put.unit is not None and put.unit.is_ready and put.unit.version.startswith("3.")
        assert (home / "data" / "east-zookeeper" / "data").is_dir()
        pid = agent.pid("east-zookeeper")
        process.send_signal(signal.SIGKILL)
        # The pipe closes with the agent: supervisord and the unit keep running, and do not hold it open.
        output, _ = process.communicate(timeout=60)
        assert b"listens on" in output
        assert agent.has_ended() == -signal.SIGKILL
        assert agent.pid("east-zookeeper") == pid
        assert is_alive(pid)
        for descriptor in ("0", "1", "2"):
            assert not str(Path(f"/proc/{pid}/fd/{descriptor}").readlink()).startswith("/dev/pts")
    finally:
        agent.close()
    eventually(lambda: not is_alive(pid))
