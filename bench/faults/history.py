"""Who led, by ZooKeeper's own transaction log: every write that it ever accepted, in order.

The format is that of `org.apache.zookeeper.server.persistence.FileTxnLog`: a head of 16 bytes; then for each
transaction a checksum (8 bytes), a length (4), so many bytes, and 0x42. The bytes begin with the client's
session (8), its number (4), the zxid (8), the time (8) and the type (4).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

HEAD_BYTES: Final = 16
END_OF_RECORD: Final = 0x42
CREATE_TYPES: Final = frozenset({1, 15, 19, 21})  # create, create2, createContainer, createTTL
SET_DATA: Final = 5
MULTI: Final = 14
_RECORD: Final = struct.Struct(">qi")
_HEAD: Final = struct.Struct(">qiqqi")
_STATE: Final = re.compile(r".*/brokers/topics/([^/]+)/partitions/(\d+)/state")
NO_LEADER: Final = -1


class Write(NamedTuple):
    """A node's new content. `session`: who wrote it."""

    zxid: int
    session: int
    path: str
    data: bytes


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def number(self) -> int:
        self.at += 4
        return int.from_bytes(self.data[self.at - 4 : self.at], "big", signed=True)

    def buffer(self) -> bytes:
        length = max(0, self.number())
        self.at += length
        return self.data[self.at - length : self.at]


def writes(folder: Path) -> Iterator[Write]:
    """Returns every creation and change of a node, in order. `folder`: ZooKeeper's data directory."""
    for path in sorted(folder.glob("version-2/log.*"), key=lambda each: int(each.suffix[1:], 16)):
        yield from _writes_of(path.read_bytes())


def _writes_of(log: bytes) -> Iterator[Write]:
    at = HEAD_BYTES
    while at + _RECORD.size <= len(log):
        _, length = _RECORD.unpack_from(log, at)
        at += _RECORD.size
        # The file is filled with zeros ahead of its end.
        if length <= 0 or at + length >= len(log) or log[at + length] != END_OF_RECORD:
            return
        session, _, zxid, _, kind = _HEAD.unpack_from(log, at)
        for path, data in _changes(kind, log[at + _HEAD.size : at + length]):
            yield Write(zxid, session, path, data)
        at += length + 1


def _changes(kind: int, body: bytes) -> Iterator[tuple[str, bytes]]:
    reader = _Reader(body)
    if kind in CREATE_TYPES or kind == SET_DATA:
        yield reader.buffer().decode(), reader.buffer()
    elif kind == MULTI:
        for _ in range(reader.number()):
            inner = reader.number()
            yield from _changes(inner, reader.buffer())


class Led(NamedTuple):
    """A partition's state as it was written once. `able`: the replicas that are in sync, or eligible."""

    zxid: int
    leader: int
    leader_epoch: int
    able: tuple[int, ...]


def leaders(history: Iterator[Write], topic: str) -> dict[int, list[Led]]:
    """Returns the states of each partition of a topic, in order."""
    found: dict[int, list[Led]] = {}
    for write in history:
        matched = _STATE.fullmatch(write.path)
        if matched is None or matched[1] != topic or not write.data:
            continue
        state = json.loads(write.data)
        able = (*state["isr"], *state.get("elr", ()))
        led = Led(write.zxid, int(state["leader"]), int(state["leader_epoch"]), able)
        found.setdefault(int(matched[2]), []).append(led)
    return found


def problems(states: Mapping[int, list[Led]]) -> list[str]:
    """Returns what must never be: two leaders in an epoch, an epoch that fell, a leader out of sync
    that is not eligible either."""
    found: list[str] = []
    for index, history in states.items():
        of_epoch: dict[int, int] = {}
        for before, after in zip([None, *history[:-1]], history, strict=True):
            if after.leader != NO_LEADER:
                known = of_epoch.setdefault(after.leader_epoch, after.leader)
                if known != after.leader:
                    found.append(
                        f"partition {index}: brokers {known} and {after.leader} both led in epoch"
                        f" {after.leader_epoch} (zxid {after.zxid:#x})"
                    )
            if before is None:
                continue
            if after.leader_epoch < before.leader_epoch:
                found.append(
                    f"partition {index}: epoch {before.leader_epoch} was followed by {after.leader_epoch}"
                )
            if after.leader not in (NO_LEADER, before.leader) and after.leader not in before.able:
                found.append(
                    f"partition {index}: broker {after.leader} leads from epoch {after.leader_epoch}, and was"
                    f" neither in sync nor eligible: {before.able}"
                )
    return found
