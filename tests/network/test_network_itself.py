"""The network on which the other tests of this folder rely: its delay, its cuts, and its removal."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_network import WAN_DELAY_MS, Network, OpenNetwork, namespaces, sweep

pytestmark = pytest.mark.network

PORT = 7
TRIES = 8
ROUND_TRIP_S = 2 * WAN_DELAY_MS / 1000
LATE_S = 0.06  # what a busy machine may add to the best of several tries
SILENCE_S = 1.0
RESTORED_WAIT_MAX_S = 60.0


@pytest.fixture(scope="module")
def network(open_network: OpenNetwork) -> Iterator[Network]:
    """Two datacenters; east-1 echoes what it receives."""
    made = open_network({"east": {"east-1": (2, 3), "east-2": (4,)}, "west": {"west-1": (2,)}})
    listener = made.call("east-1", socket.create_server, ("", PORT))

    def echo(client: socket.socket) -> None:
        with client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := client.recv(1 << 16):
                client.sendall(data)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(client,), daemon=True).start()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    yield made
    listener.shutdown(socket.SHUT_RDWR)
    server.join()
    listener.close()


def connect(network: Network, host: str, address: str = "10.1.0.2", timeout_s: float = 10.0) -> socket.socket:
    made = network.call(host, lambda: socket.create_connection((address, PORT), timeout_s))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def round_trip_s(connection: socket.socket) -> float:
    """The shortest of a few tries: the time on the wire, without pauses of the machine."""
    best = float("inf")
    for _ in range(TRIES):
        start = time.monotonic()
        connection.sendall(b"?")
        assert connection.recv(1) == b"?"
        best = min(best, time.monotonic() - start)
    return best


def test_only_packets_between_datacenters_are_delayed(network: Network) -> None:
    with connect(network, "east-2", "10.1.0.3") as near, connect(network, "west-1", "10.1.0.3") as far:
        assert round_trip_s(near) < LATE_S
        assert ROUND_TRIP_S <= round_trip_s(far) < ROUND_TRIP_S + LATE_S
        network.set_delay(0)
        assert round_trip_s(far) < LATE_S
        network.set_delay(WAN_DELAY_MS)
        assert round_trip_s(far) >= ROUND_TRIP_S
        assert network.begun() == {("west-1", "10.1.0.3", PORT)}


def test_megabytes_arrive_intact(network: Network) -> None:
    sent = os.urandom(4 << 20)
    with connect(network, "west-1") as connection:
        sender = threading.Thread(target=connection.sendall, args=(sent,))
        sender.start()
        received = bytearray()
        while len(received) < len(sent):
            data = connection.recv(1 << 20)
            assert data
            received += data
        sender.join()
    assert received == sent


def test_a_cut_is_silent_and_a_restored_link_delivers_pending_data(network: Network) -> None:
    with connect(network, "west-1") as far, connect(network, "east-2") as near:
        network.cut("east")
        try:
            far.sendall(b"!")
            far.settimeout(SILENCE_S)
            with pytest.raises(TimeoutError):
                far.recv(1)
            with pytest.raises(TimeoutError):  # no refusal, no "unreachable"
                connect(network, "west-1", timeout_s=SILENCE_S)
            assert round_trip_s(near) < LATE_S
        finally:
            network.restore("east")
        far.settimeout(RESTORED_WAIT_MAX_S)
        assert far.recv(1) == b"!"
        assert round_trip_s(far) >= ROUND_TRIP_S


def test_a_process_of_a_host_sees_that_host_only(network: Network, tmp_path: Path) -> None:
    log = tmp_path / "addresses.log"
    command = ["ip", "-4", "-brief", "address", "show", "dev", "lan"]
    assert network.popen("east-1", command, log).wait() == 0
    assert log.read_text().split()[2:] == ["10.1.0.2/24", "10.1.0.3/24"]
    assert network.host_of("10.1.0.3") == "east-1"


def test_everything_is_removed(namespaces_work: None, tmp_path: Path) -> None:
    """After a network is closed, also after an error, and after a test run was killed."""
    before = namespaces()
    broken = Network({"east": {"east-1": (2,)}, "west": {"west-1": (999,)}})
    try:
        with pytest.raises(Exception, match="999"):
            broken.open()
        assert len(namespaces()) > len(before)
    finally:
        broken.close()
    assert namespaces() == before

    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fix_network import Network; from pathlib import Path\n"
        "network = Network({'east': {'east-1': (2,)}}); network.open()\n"
        "print(network.popen('east-1', ['sleep', '600'], Path(sys.argv[2])).pid, flush=True); input()"
    )
    words = [sys.executable, "-c", program, str(Path(__file__).parents[1]), str(tmp_path / "sleep.log")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        sleeper = int(run.stdout.readline())
        sweep()
        assert len(namespaces()) == len(before) + 2, "the network of a live run was removed"
        run.kill()
    sweep()
    assert namespaces() == before
    deadline = time.monotonic() + RESTORED_WAIT_MAX_S
    while Path(f"/proc/{sleeper}").exists():
        assert time.monotonic() < deadline, "a process outlived the test run that had started it"
        time.sleep(0.05)
