"""Is an address free, and if not, who has it?

Owns looking at the machine's listening sockets (`/proc/net/tcp`, proc(5)). Binds for a moment; changes
nothing.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import NamedTuple

from headrace.fleet.processes import all_pids, command_of, environment_of
from headrace.fleet.site import HOME_VARIABLE, UNIT_VARIABLE, Address

_LISTEN_STATE = "0A"


class Holder(NamedTuple):
    """The process that listens on an address."""

    pid: int
    command: str
    unit: str | None
    home: str | None

    def __str__(self) -> str:
        who = f"process {self.pid} ({self.command})"
        return f"{who}, unit {self.unit} of the site in {self.home}" if self.unit else who


def is_taken(address: Address) -> bool:
    """Whether somebody listens there. Raises OSError for an address that this machine does not have."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            # Linux lets two sockets with SO_REUSEADDR bind the same port until one of them listens.
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


def holder_of(address: Address) -> Holder | None:
    """Who listens on the address, or None when that cannot be found (a process of another user)."""
    inodes = _listening_inodes(address)
    if not inodes:
        return None
    for pid in all_pids():
        try:
            for link in Path(f"/proc/{pid}/fd").iterdir():
                if str(link.readlink()) in inodes:
                    return _describe(pid)
        except OSError:
            continue
    return None


def _describe(pid: int) -> Holder:
    environment = environment_of(pid)
    return Holder(pid, command_of(pid), environment.get(UNIT_VARIABLE), environment.get(HOME_VARIABLE))


def _listening_inodes(address: Address) -> set[str]:
    # /proc/net/tcp prints an address as an integer in the machine's own byte order.
    quad = socket.inet_aton(address.host)
    hosts = {quad[::-1].hex().upper(), quad.hex().upper(), "0" * 8}
    port = f"{address.port:04X}"
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            host, _, local_port = fields[1].rpartition(":")
            if fields[3] != _LISTEN_STATE or local_port != port:
                continue
            # An IPv6 socket may hold the address as ::ffff:a.b.c.d, or all of them as ::.
            if host in hosts or host[-8:] in hosts:
                found.add(f"socket:[{fields[9]}]")
    return found
