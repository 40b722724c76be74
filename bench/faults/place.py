"""Where the processes run: on loopback, or on hosts of their own whose links can be cut.

With root each broker, and ZooKeeper together with the clients, has a network namespace (`fix_network`). A
cut link gives the other host's address a hardware address that nobody has, so packets in that one direction
vanish as on a broken switch: nobody hears of it, and connections stay half open.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from fix_network import NETWORKS, Network, enter, leave, missing_requirement, sweep
from fix_ports import free_port
from fix_zookeeper import die_with_parent

ZOOKEEPER: Final = "zookeeper"
CLIENTS: Final = "clients"
"""ZooKeeper and the clients share a host, at addresses of their own: a broker may lose only one of them."""
BROKER_PORT: Final = 9092
NOBODY: Final = "02:00:00:00:00:fe"
"""A hardware address that no interface has."""
MOUNT_WAIT_MAX_S: Final = 30.0
FILL_PIECES_BYTES: Final = (1 << 20, 1 << 12)
_DATACENTER: Final = "east"
_SHARED: Final = "shared"
_CLIENTS_NUMBER: Final = 30
_ZOOKEEPER_NUMBER: Final = 31


def broker_host(number: int) -> str:
    return f"broker-{number}"


class Place(Protocol):
    """Hosts are named by `broker_host`, `ZOOKEEPER` and `CLIENTS`."""

    can_cut: bool

    def address(self, host: str) -> tuple[str, int]:
        """Returns where the host's process shall listen."""

    def popen(
        self, host: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Starts a process there; it dies with this process."""

    def cut(self, source: str, target: str) -> None:
        """From now on packets from one host to the other vanish."""

    def heal(self) -> None:
        """Ends all cuts."""

    def close(self) -> None:
        """Removes everything."""


class Loopback:
    """One host for all; nothing can be cut."""

    can_cut = False

    def address(self, host: str) -> tuple[str, int]:
        return "127.0.0.1", free_port()

    def popen(
        self, host: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with log_file.open("ab") as log:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                preexec_fn=die_with_parent,
            )

    def cut(self, source: str, target: str) -> None:
        raise AssertionError("links of loopback cannot be cut")

    def heal(self) -> None:
        pass

    def close(self) -> None:
        pass


class Hosts:
    """A network namespace for each broker, and one for ZooKeeper and the clients; this thread goes there."""

    can_cut = True

    def __init__(self, brokers: int) -> None:
        sweep()
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        plan: dict[str, list[int]] = {broker_host(n): [10 + n] for n in range(1, brokers + 1)}
        plan[_SHARED] = [_CLIENTS_NUMBER, _ZOOKEEPER_NUMBER]
        self._network = Network({_DATACENTER: plan})
        self._cuts: list[tuple[str, str]] = []
        try:
            self._network.open()
            enter(self._network.namespace(_SHARED))
        except BaseException:
            self.close()
            raise

    def address(self, host: str) -> tuple[str, int]:
        return self._address(host), BROKER_PORT

    def _address(self, host: str) -> str:
        if host == ZOOKEEPER:
            return f"{NETWORKS[_DATACENTER]}.{_ZOOKEEPER_NUMBER}"
        return self._network.address(_SHARED if host == CLIENTS else host)

    def popen(
        self, host: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        return self._network.popen(_namespace_of(host), command, log_file, environment)

    def cut(self, source: str, target: str) -> None:
        address = self._address(target)
        if (source, address) in self._cuts:
            return
        self._neighbour(source, "replace", address, "lladdr", NOBODY, "nud", "permanent")
        self._cuts.append((source, address))

    def heal(self) -> None:
        for source, address in self._cuts:
            self._neighbour(source, "del", address)
        self._cuts.clear()

    def _neighbour(self, host: str, *words: str) -> None:
        namespace = self._network.namespace(_namespace_of(host))
        verb, address, *rest = words
        command = ["ip", "-n", namespace, "neighbour", verb, address, "dev", "lan", *rest]
        subprocess.run(command, check=True, capture_output=True, timeout=MOUNT_WAIT_MAX_S)

    def close(self) -> None:
        # What is in a namespace when it is removed is killed.
        leave(self._home)
        os.close(self._home)
        self._network.close()


def _namespace_of(host: str) -> str:
    return _SHARED if host in (ZOOKEEPER, CLIENTS) else host


def best_place(brokers: int, *, loopback: bool) -> Place:
    """Returns hosts of their own where this machine can have them, else loopback."""
    return Loopback() if loopback or missing_requirement() else Hosts(brokers)


# --- small disks ---


class SmallDisk:
    """A disk of its own for a broker, in memory: it can be full. Needs root."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        folder.mkdir(parents=True, exist_ok=True)
        options = f"size={size_bytes},mode=755"
        command = ["mount", "-t", "tmpfs", "-o", options, "headrace-faults", str(folder)]
        subprocess.run(command, check=True, capture_output=True, timeout=MOUNT_WAIT_MAX_S)

    def fill(self) -> None:
        """Takes all of the free space, while others write."""
        filled = 0
        with self._filler.open("wb") as file:
            for piece in FILL_PIECES_BYTES:
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), filled, piece)
                        filled += piece

    def heal(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        command = ["umount", "--lazy", str(self.folder)]
        subprocess.run(command, check=False, capture_output=True, timeout=MOUNT_WAIT_MAX_S)


def can_mount(folder: Path) -> bool:
    """Returns whether this process may have small disks."""
    if os.geteuid():
        return False
    try:
        SmallDisk(folder, 1 << 20).close()
    except (subprocess.SubprocessError, OSError):
        return False
    return True
