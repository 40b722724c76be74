"""How much room the disks of brokers have for replicas, and what a plan has put there. Pure.

A disk is what one or several brokers share the room of. Of what is free there, its reserve stays free, and
what replicas that are assigned already do not have yet is theirs. What a plan frees does not count: a replica
is deleted only once its successors have everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

GROWTH_PART: Final = 10
"""Of a replica's size: so much more, one tenth, is kept for what arrives while it is copied."""
DISKS_NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Disk:
    """`free_bytes`: for ordinary users. `reserve_bytes`: with less free, brokers refuse appends and do not
    fetch. `owed_bytes`: what replicas that are assigned to `brokers` still lack.
    """

    brokers: tuple[int, ...]
    free_bytes: int
    reserve_bytes: int
    owed_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        return max(0, self.free_bytes - self.reserve_bytes - self.owed_bytes)

    @property
    def is_full(self) -> bool:
        """Whether its brokers refuse appends, or would with the next one."""
        return self.reserve_bytes > 0 and self.free_bytes <= self.reserve_bytes


class Room:
    """What a plan may put on each broker's disk; it changes while the plan grows.

    A broker without a disk in `disks` does not say what is free: it takes empty replicas alone. `disks` None:
    nothing is looked at, everybody takes everything. `refused`: brokers that had no room for some replica.
    """

    def __init__(self, disks: Iterable[Disk] | None = None, *, growth_part: int = GROWTH_PART) -> None:
        self.disks = None if disks is None else tuple(disks)
        self.refused: set[int] = set()
        self._growth_part = growth_part
        self._at = {broker: at for at, disk in enumerate(self.disks or ()) for broker in disk.brokers}
        self._left_bytes = [disk.room_bytes for disk in self.disks or ()]

    def copy(self) -> Room:
        """Returns the room as it was before any plan."""
        return Room(self.disks, growth_part=self._growth_part)

    def needed_bytes(self, size_bytes: int) -> int:
        """Returns what a replica of this size takes."""
        return size_bytes + (-(-size_bytes // self._growth_part) if self._growth_part else 0)

    def left_bytes(self, broker_id: int) -> int:
        """Returns what is left for a plan on a broker's disk; 0 if that is not known."""
        at = self._at.get(broker_id)
        return 0 if at is None else self._left_bytes[at]

    def fits(self, broker_id: int, size_bytes: int, *, beside_bytes: int = 0) -> bool:
        """Whether a broker can take a replica, and its disk another one of `beside_bytes`."""
        if self.disks is None:
            return True
        needed = self.needed_bytes(size_bytes) + self.needed_bytes(beside_bytes)
        at = self._at.get(broker_id)
        able = needed == 0 if at is None else not self.disks[at].is_full and needed <= self._left_bytes[at]
        if not able:
            self.refused.add(broker_id)
        return able

    def put(self, broker_id: int, size_bytes: int) -> None:
        """Notes that a broker gets a replica, also one for which it has no room."""
        if (at := self._at.get(broker_id)) is not None:
            self._left_bytes[at] -= self.needed_bytes(size_bytes)

    def take_back(self, broker_id: int, size_bytes: int) -> None:
        """Undoes `put`."""
        if (at := self._at.get(broker_id)) is not None:
            self._left_bytes[at] += self.needed_bytes(size_bytes)

    def put_all(self, brokers: Iterable[int], size_bytes: int) -> int | None:
        """Notes that each of these brokers gets a replica, or nothing, and returns one that cannot."""
        done: list[int] = []
        for each in brokers:
            if not self.fits(each, size_bytes):
                for other in done:
                    self.take_back(other, size_bytes)
                return each
            self.put(each, size_bytes)
            done.append(each)
        return None

    def is_one_disk(self, broker_id: int, other: int) -> bool:
        at = self._at.get(broker_id)
        return at is not None and at == self._at.get(other)

    def described(self, brokers: Collection[int]) -> str:
        """Returns what is free on the disks of these brokers, before any plan, for people."""
        disks = [disk for disk in self.disks or () if set(disk.brokers) & set(brokers)]
        told = [_described(disk) for disk in sorted(disks, key=lambda disk: (-disk.room_bytes, disk.brokers))]
        silent = sorted(set(brokers) - self._at.keys()) if self.disks is not None else []
        told += [f"broker {each} does not say how much is free on its disk" for each in silent]
        more = [f"and {len(told) - DISKS_NAMED_MAX} more disks"] if len(told) > DISKS_NAMED_MAX else []
        return "; ".join(told[:DISKS_NAMED_MAX] + more)


def _described(disk: Disk) -> str:
    ids = ", ".join(map(str, disk.brokers))
    who = f"broker {ids} has" if len(disk.brokers) == 1 else f"brokers {ids}, on one disk, have"
    less = [f"{disk.reserve_bytes:,} are its reserve"] if disk.reserve_bytes else []
    less += [f"{disk.owed_bytes:,} are for replicas on their way"] if disk.owed_bytes else []
    of_which = f", of which {' and '.join(less)}" if less else ""
    return f"{who} room for {disk.room_bytes:,} bytes ({disk.free_bytes:,} are free{of_which})"


def shortage(room: Room, brokers: Collection[int], sizes: Iterable[int]) -> str:
    """Returns, as one sentence, what replicas of these sizes need, and what is free on the disks of
    `brokers`."""
    listed = list(sizes)
    needed = sum(map(room.needed_bytes, listed))
    return (
        f"The replicas that have to be copied need {needed:,} bytes ({sum(listed):,} that they hold, and a "
        f"tenth for what arrives meanwhile): {room.described(brokers)}"
    )


class DiskUse(NamedTuple):
    """A disk, and what a plan needs there."""

    disk: Disk
    needed_bytes: int


def uses(room: Room, replicas: Iterable[tuple[int, int]]) -> list[DiskUse]:
    """Returns what replicas, by broker and size, need on each disk."""
    needed: Counter[int] = Counter()
    for broker_id, size_bytes in replicas:
        needed[broker_id] += room.needed_bytes(size_bytes)
    return [DiskUse(disk, sum(needed[each] for each in disk.brokers)) for disk in room.disks or ()]
