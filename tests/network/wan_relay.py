"""The WAN between the datacenters of a test: delays every packet, then passes it on.

    python wan_relay.py --delay-ms 40 hr12x1-east=10.1.0 hr12x1-west=10.2.0

Owns one TUN device (`wan`) in each named network namespace. A packet that the kernel routes into one comes
out of the device of the datacenter whose /24 is its destination, `delay_ms` later, so a round trip takes
twice that. Prints "ready" once the devices exist. Reads orders from standard input at any time: after
`delay MS` it repeats the line once it applies; after `begun` it prints the TCP connections that were begun
across the WAN, each as [from, to, port], as JSON in one line. At the end of standard input the relay ends,
and with it the devices.

The devices accept segments of up to 64 KB together with TCP's own sizes (IFF_VNET_HDR, as virtual machines
do): hosts see a path MTU of 1,500 bytes, and the relay is woken once per forty packets.
https://docs.kernel.org/networking/tuntap.html
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

DEVICE: Final = "wan"
READ_MAX_BYTES: Final = 65_535 + 64
READS_PER_WAKEUP_MAX: Final = 64  # from one device, before the others are read
FIRST_PACKET_MAX_BYTES: Final = 128  # of a TCP connection, with both headers
QUEUE_MAX_BYTES: Final = 64 << 20  # in flight; more is dropped, as in a router

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_VNET_HEADER_BYTES: Final = 10
_SYN, _ACK = 0x02, 0x10
_DESTINATION: Final = slice(
    _VNET_HEADER_BYTES + 16, _VNET_HEADER_BYTES + 19
)  # the /24 of an IPv4 header's destination


def enter(namespace: str) -> None:
    """Moves this thread into the named network namespace (`ip netns`). Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (Path("/run/netns") / namespace).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace}: {os.strerror(ctypes.get_errno())}")


def open_device(namespace: str) -> int:
    """Returns a new TUN device in the namespace; it stays usable if this process leaves the namespace."""
    enter(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return device


def begun(packet: bytes) -> tuple[str, str, int] | None:
    """Returns who begins a TCP connection to which address and port with this packet, if one is begun."""
    ip = packet[_VNET_HEADER_BYTES:]
    tcp = ip[4 * (ip[0] & 15) :]
    if ip[9] != socket.IPPROTO_TCP or len(tcp) < 14 or tcp[13] & (_SYN | _ACK) != _SYN:
        return None
    return socket.inet_ntoa(ip[12:16]), socket.inet_ntoa(ip[16:20]), int.from_bytes(tcp[2:4], "big")


class Relay:
    """Packets in flight, by delivery time. `devices`: the first three bytes of an address → TUN device."""

    def __init__(self, devices: dict[bytes, int], delay_s: float) -> None:
        self.delay_s = delay_s
        self._devices = devices
        self._queue: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()  # keeps packets of the same delivery time in order
        self._queued_bytes = 0
        self.begun: set[tuple[str, str, int]] = set()

    def take(self, device: int) -> None:
        """Reads the packets that the kernel has sent into `device`, and schedules their delivery."""
        deliver_at_s = time.monotonic() + self.delay_s
        for _ in range(READS_PER_WAKEUP_MAX):
            try:
                packet = os.read(device, READ_MAX_BYTES)
            except OSError:
                return  # nothing more, or the link is down
            to = self._devices.get(packet[_DESTINATION])
            is_ipv4 = len(packet) > _VNET_HEADER_BYTES and packet[_VNET_HEADER_BYTES] >> 4 == 4
            if to is None or not is_ipv4 or self._queued_bytes >= QUEUE_MAX_BYTES:
                continue
            if len(packet) < FIRST_PACKET_MAX_BYTES and (connection := begun(packet)):
                self.begun.add(connection)
            self._queued_bytes += len(packet)
            heapq.heappush(self._queue, (deliver_at_s, next(self._numbers), to, packet))

    def deliver(self) -> float | None:
        """Delivers packets whose time has come; returns seconds until the next, None if none is in flight."""
        now_s = time.monotonic()
        while self._queue and self._queue[0][0] <= now_s:
            _, _, device, packet = heapq.heappop(self._queue)
            self._queued_bytes -= len(packet)
            try:
                os.write(device, packet)
            except OSError:
                continue  # that link is down: the packet is lost silently
        return max(0.0, self._queue[0][0] - now_s) if self._queue else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Delays every packet between network namespaces.")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("ends", nargs="+", metavar="NAMESPACE=A.B.C")
    options = parser.parse_args()
    devices = {}
    for end in options.ends:
        namespace, _, network = end.partition("=")
        devices[bytes(int(part) for part in network.split("."))] = open_device(namespace)
    relay = Relay(devices, options.delay_ms / 1000)
    orders = sys.stdin.fileno()
    epoll = select.epoll()
    for descriptor in (orders, *devices.values()):
        epoll.register(descriptor, select.EPOLLIN)
    print("ready", flush=True)
    wait_s = None
    while True:
        for descriptor, _ in epoll.poll(wait_s):
            if descriptor != orders:
                relay.take(descriptor)
                continue
            order = os.read(orders, 4096).decode()
            if not order:
                return 0
            if order.startswith("begun"):
                print(json.dumps(sorted(relay.begun)), flush=True)
                continue
            relay.delay_s = float(order.split()[-1]) / 1000
            print(order, end="", flush=True)
        wait_s = relay.deliver()


if __name__ == "__main__":
    sys.exit(main())
