"""Reads what the clients wrote down: while they run, to see that all is live; and afterwards, all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Ack(NamedTuple):
    """A record of which its producer heard that it is stored. `life`: the name that the producer had then."""

    life: str
    partition: int
    number: int
    offset: int
    at_s: float


class Failure(NamedTuple):
    """A record that its producer gave up; it may be stored all the same."""

    life: str
    partition: int
    number: int
    at_s: float
    error: str


class Read(NamedTuple):
    """A record that a reader saw."""

    session: str
    partition: int
    offset: int
    life: str
    number: int
    at_s: float


class LostPlace(NamedTuple):
    """A reader whose position was not in the log any more."""

    session: str
    at_s: float
    error: str


Event = Ack | Failure | Read | LostPlace


def parse(line: str) -> Event:
    """Returns the event of a journal's line; see `faults.clients`."""
    what, first, *rest = line.split(" ")
    if what == "A":
        return Ack(first, int(rest[0]), int(rest[1]), int(rest[2]), float(rest[3]))
    if what == "R":
        return Read(first, int(rest[0]), int(rest[1]), rest[2], int(rest[3]), float(rest[4]))
    if what == "F":
        return Failure(first, int(rest[0]), int(rest[1]), float(rest[2]), " ".join(rest[3:]))
    return LostPlace(first, float(rest[0]), " ".join(rest[1:]))


def events(path: Path) -> Iterator[Event]:
    """Returns all events of a journal whose writer has ended."""
    with path.open() as lines:
        for line in lines:
            yield parse(line.rstrip("\n"))


class Progress:
    """Follows the journals of running clients: where each one is, partition by partition."""

    def __init__(self, producers: list[Path], readers: list[Path], partitions: int) -> None:
        self._read_bytes: dict[Path, int] = dict.fromkeys((*producers, *readers), 0)
        self._producers = producers
        self._readers = readers
        self._partitions = range(partitions)
        self._last: dict[tuple[Path, int], tuple[float, int]] = {}
        self.acknowledged = 0

    def follow(self) -> bool:
        """Takes what is new; returns whether there was anything."""
        moved = False
        for path, begin in self._read_bytes.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(begin)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            moved = moved or bool(whole)
            self._read_bytes[path] = begin + len(whole)
            for line in whole.decode().splitlines():
                event = parse(line)
                if isinstance(event, Ack | Read):
                    self._last[path, event.partition] = (event.at_s, event.offset)
                    self.acknowledged += isinstance(event, Ack)
        return moved

    def waiting_for(self, since_s: float) -> list[str]:
        """Returns who has not got on since then: each producer must have been answered for each partition,
        and each reader must have read on."""
        late = [
            f"{path.stem} has no acknowledgement of partition {index}"
            for path in self._producers
            for index in self._partitions
            if self._last.get((path, index), (0.0, -1))[0] <= since_s
        ]
        if late:
            return late
        return [
            f"{path.stem} does not read on in partition {index}"
            for path in self._readers
            for index in self._partitions
            if self._last.get((path, index), (0.0, -1))[0] <= since_s
        ]
