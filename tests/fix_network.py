"""Hosts for tests: network namespaces of this machine, a bridge per datacenter, and a WAN with a delay.

Needs Linux, root, iproute2 and /dev/net/tun; where one is missing the tests are skipped and report which.

Fixture: `open_network`, a factory: `network = open_network({"east": {"east-1": (2, 11)}, …})` gives each
datacenter a /24 and each of its hosts the addresses of these numbers. Every datacenter is a namespace that
holds the bridge `lan` of its hosts and the device `wan`, from which `network/wan_relay.py` delivers packets
to other datacenters after a delay. The machine's own network is not touched: interfaces and addresses
(10.n.0.0/24) exist only inside the namespaces.

`Network.popen` starts a process in a host (so may an agent of that host, which is an ordinary process there);
`Network.call` runs a function of the test there. In the end everything is removed, with every process that
is still in a host. The next test run removes what a killed one left, which it finds by the process id in the
namespaces' names.
"""

import ctypes
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from fix_zookeeper import die_with_parent

RELAY: Final = Path(__file__).parent / "network" / "wan_relay.py"
NETWORKS: Final = {"east": "10.1.0", "west": "10.2.0", "analysis": "10.9.0"}
WAN_DELAY_MS: Final = 40.0  # each way
WAN_QUEUE_PACKETS: Final = 2_000
END_WAIT_MAX_S: Final = 60.0
RELAY_WAIT_MAX_S: Final = 60.0

_CLONE_NEWNET: Final = 0x40000000
_libc: Final = ctypes.CDLL(None, use_errno=True)
_numbers: Final = itertools.count(1)
Result = TypeVar("Result")


class NetworkError(Exception):
    """A command of `ip` failed; the message is its own."""


def _ip(*words: object) -> str:
    command = ["ip", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def enter(namespace: str) -> None:
    """Moves this thread into the namespace; threads and processes that it starts then are there, too."""
    with (Path("/run/netns") / namespace).open() as file:
        leave(file.fileno(), namespace)


def leave(fd: int, name: str = "the network of before") -> None:
    """Moves this thread into the namespace of an open file, such as /proc/thread-self/ns/net was before."""
    if _libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns to {name}: {os.strerror(ctypes.get_errno())}")


def namespaces() -> list[str]:
    """The names of the namespaces that tests created."""
    return re.findall(r"^(hr\d+x\S+)", _ip("netns", "list"), re.MULTILINE)


def sweep() -> None:
    """Removes the namespaces of test runs that have ended."""
    for name in namespaces():
        pid = name[2:].partition("x")[0]
        if not Path("/proc", pid).exists():
            _remove(name)


def _remove(namespace: str) -> None:
    """Removes a namespace with all processes in it: an agent's units outlive the agent."""
    deadline = time.monotonic() + END_WAIT_MAX_S
    while pids := _ip("netns", "pids", namespace).split():
        if time.monotonic() > deadline:
            raise NetworkError(f"processes {', '.join(pids)} of {namespace} do not end")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)
    _ip("netns", "delete", namespace)


def missing_requirement() -> str | None:
    """What this machine lacks for such networks; None if nothing."""
    if os.geteuid():
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2 (on Debian: apt-get install iproute2)"
    probe = f"hr{os.getpid()}x{next(_numbers)}-probe"
    try:
        _ip("netns", "add", probe)
    except NetworkError as error:
        return f"this machine cannot create network namespaces: {error}"
    try:
        _ip("-n", probe, "link", "add", "lan", "type", "bridge")
        _ip("-n", probe, "link", "add", "one", "type", "veth", "peer", "name", "two")
        _ip("-n", probe, "tuntap", "add", "wan", "mode", "tun", "vnet_hdr")
    except NetworkError as error:
        return f"this machine's kernel lacks bridges, veth or TUN devices: {error}"
    finally:
        _ip("netns", "delete", probe)
    return None


class Network:
    """Datacenters and their hosts. `plan`: datacenter → host → the last numbers of its addresses."""

    def __init__(self, plan: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        self.plan = plan
        self._prefix = f"hr{os.getpid()}x{next(_numbers)}-"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._relay: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Creates everything. `close` removes it, also after an error."""
        for datacenter, hosts in self.plan.items():
            self._add_datacenter(datacenter, hosts)
        ends = [f"{self.namespace(name)}={NETWORKS[name]}" for name in self.plan]
        self._relay = subprocess.Popen(
            [sys.executable, str(RELAY), *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        self._expect("ready")
        for datacenter in self.plan:
            namespace = self.namespace(datacenter)
            _ip("-n", namespace, "link", "set", "wan", "txqueuelen", WAN_QUEUE_PACKETS)
            # Without a route packets vanish silently, as on a cut WAN.
            _ip("-n", namespace, "route", "add", "blackhole", "10.0.0.0/8", "metric", 1000)
            self.restore(datacenter)
        self.set_delay(WAN_DELAY_MS)

    def _add_datacenter(self, datacenter: str, hosts: Mapping[str, Sequence[int]]) -> None:
        here = self._add_namespace(datacenter)
        network = NETWORKS[datacenter]
        _ip("-n", here, "link", "add", "lan", "type", "bridge")
        _ip("-n", here, "address", "add", f"{network}.1/24", "dev", "lan")
        _ip("-n", here, "link", "set", "lan", "up")
        _ip("netns", "exec", here, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        for index, (host, numbers) in enumerate(hosts.items()):
            there = self._add_namespace(host)
            _ip(*("-n", here, "link", "add", f"to-{index}", "type", "veth"), *("peer", "lan", "netns", there))
            _ip("-n", here, "link", "set", f"to-{index}", "master", "lan", "up")
            for number in numbers:
                _ip("-n", there, "address", "add", f"{network}.{number}/24", "dev", "lan")
            _ip("-n", there, "link", "set", "lan", "up")
            _ip("-n", there, "route", "add", "default", "via", f"{network}.1")

    def _add_namespace(self, place: str) -> str:
        name = self.namespace(place)
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        return name

    def namespace(self, place: str) -> str:
        """Returns the namespace of a host, or of a datacenter's bridge and WAN link."""
        return f"{self._prefix}{place}"

    def address(self, host: str) -> str:
        """Returns a host's first address."""
        for datacenter, hosts in self.plan.items():
            if host in hosts:
                return f"{NETWORKS[datacenter]}.{hosts[host][0]}"
        raise KeyError(host)

    def host_of(self, address: str) -> str:
        """Returns the host that has an address."""
        network, _, number = address.rpartition(".")
        for datacenter, hosts in self.plan.items():
            for host, numbers in hosts.items():
                if NETWORKS[datacenter] == network and int(number) in numbers:
                    return host
        raise KeyError(address)

    # --- the WAN ---

    def set_delay(self, delay_ms: float) -> None:
        """Sets the delay between datacenters, one way, of packets that are sent from now on."""
        assert self._relay is not None and self._relay.stdin is not None
        self._relay.stdin.write(f"delay {delay_ms:g}\n")
        self._relay.stdin.flush()
        self._expect(f"delay {delay_ms:g}")

    def begun(self) -> set[tuple[str, str, int]]:
        """Returns the TCP connections that hosts have begun across the WAN: host, address and port."""
        assert self._relay is not None and self._relay.stdin is not None
        self._relay.stdin.write("begun\n")
        self._relay.stdin.flush()
        return {(self.host_of(source), to, port) for source, to, port in json.loads(self._printed())}

    def _expect(self, line: str) -> None:
        printed = self._printed()
        assert printed == line, f"the relay printed {printed!r} instead of {line!r}"

    def _printed(self) -> str:
        assert self._relay is not None and self._relay.stdout is not None
        readable, _, _ = select.select([self._relay.stdout], [], [], RELAY_WAIT_MAX_S)
        return self._relay.stdout.readline().strip() if readable else "nothing"

    def cut(self, datacenter: str) -> None:
        """Takes a datacenter's WAN link down, silently."""
        _ip("-n", self.namespace(datacenter), "link", "set", "wan", "down")

    def restore(self, datacenter: str) -> None:
        namespace = self.namespace(datacenter)
        _ip("-n", namespace, "link", "set", "wan", "up")
        _ip("-n", namespace, "route", "replace", "10.0.0.0/8", "dev", "wan")

    # --- processes in the hosts ---

    def popen(
        self, host: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a process in a host. It dies with this thread, and with the network."""
        namespace = self.namespace(host)

        def prepare() -> None:
            enter(namespace)
            die_with_parent()

        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                preexec_fn=prepare,
            )
        with self._lock:
            self._processes.append(process)
        return process

    def call(self, host: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Returns `function(*arguments)`, called in a thread inside the host.

        Sockets that it opens, and threads that it starts, stay there.
        """
        with ThreadPoolExecutor(1, initializer=enter, initargs=(self.namespace(host),)) as pool:
            return pool.submit(function, *arguments).result()

    def close(self) -> None:
        """Ends every process that was started here, and removes every namespace. May be called again."""
        _end(self._processes)
        if self._relay is not None:
            assert self._relay.stdin is not None and self._relay.stdout is not None
            self._relay.stdin.close()
            self._relay.wait(END_WAIT_MAX_S)
            self._relay.stdout.close()
            self._relay = None
        for name in namespaces():
            if name.startswith(self._prefix):
                _remove(name)


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait(END_WAIT_MAX_S)


OpenNetwork = Callable[[Mapping[str, Mapping[str, Sequence[int]]]], Network]


@pytest.fixture(scope="session")
def namespaces_work() -> None:
    """Skips the test where such networks cannot be created; otherwise removes what earlier runs left."""
    if missing := missing_requirement():
        pytest.skip(missing)
    sweep()


@pytest.fixture(scope="module")
def open_network(namespaces_work: None) -> Iterator[OpenNetwork]:
    """Networks that last as long as the test file."""
    opened: list[Network] = []

    def open_one(plan: Mapping[str, Mapping[str, Sequence[int]]]) -> Network:
        opened.append(Network(plan))
        opened[-1].open()
        return opened[-1]

    try:
        yield open_one
    finally:
        for network in opened:
            network.close()
