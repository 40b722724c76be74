"""Faults of the brokers' disks, and what takes bytes from one for good: rot, and an empty disk instead."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.coordination import znodes
from headrace.log.directory import OWNER_FILE
from simulation.sim_clients import TOPIC

if TYPE_CHECKING:
    from simulation.sim_faults import Faults
    from simulation.sim_world import World

RETRY_MS: Final = 300.0
SICK_MAX_MS: Final = 8_000.0
OLDER_BY_MS: Final = (2_000.0, 6_000.0)
RETRIES_MAX: Final = 20
FIRST_MS: Final = (50.0, 1_500.0)
OTHERS_MS: Final = (1_000.0, 8_000.0)
"""How long the brokers are down whose disks are the true ones."""


class DiskFaults:
    """Those of one world."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self._clock = world.clock
        self._copies = 0

    def fail(self) -> None:
        number = self._faults.pick()
        failing, folder = self._world.disks.failing, str(self._world.folder_of(number))
        failing.add(folder)
        what = f"each fsync of broker {number} fails"
        self._faults.inject("fsync", what, lambda: failing.discard(folder), self._clock.between(50, 2_000))

    def slow(self) -> None:
        broker = self._world.brokers[self._faults.pick()]
        broker.files.slow = self._clock.between(5, 60)
        what = f"the disk of broker {broker.number} is slow"
        self._faults.inject(
            "slow-disk", what, lambda: setattr(broker.files, "slow", 1.0), self._clock.between(200, 4_000)
        )

    def fill(self) -> None:
        """To its last byte, or below the broker's reserve."""
        number = self._faults.pick()
        disks, folder = self._world.disks, str(self._world.folder_of(number))
        is_full = self._clock.chance(0.5)
        where = disks.full if is_full else disks.nearly_full
        where.add(folder)
        what = f"the disk of broker {number} is {'full' if is_full else 'nearly full'}"
        self._faults.inject(
            "full-disk" if is_full else "nearly-full-disk",
            what,
            lambda: where.discard(folder),
            self._clock.between(200, 5_000),
        )

    # --- bytes that are gone for good ---

    def may_lose(self) -> bool:
        """Whether others have all that was acknowledged, and nothing else is broken."""
        faults, isr = self._faults, self._world.state()["isr"]
        return faults.sick is None and not faults.active and len(isr) == len(self._world.brokers)

    def rot(self) -> None:
        """A bit flips on one broker's disk; in the end it gets a new disk."""
        number = self._faults.pick()
        if not self.may_lose():
            return
        others = [self._world.folder_of(other) for other in self._world.brokers if other != number]
        where = self._world.disks.rot(self._world.folder_of(number), others)
        if where is None:
            return
        self._world.reread()
        self._faults.sick = number
        what = f"a bit is flipped on broker {number}, {where}"
        self._faults.inject("rot", what, lambda: self.replace(number), self._clock.between(500, SICK_MAX_MS))

    def new_disk(self) -> None:
        number = self._faults.pick()
        if not self.may_lose():
            return
        self._faults.sick = number
        self._faults.count("new-disk")
        self.replace(number)

    def older_disk(self) -> None:
        """A copy of a disk takes its place, some seconds later, while all brokers are down; its broker is the
        first to come back. The others have everything.
        """
        number = self._faults.pick()
        folder = self._world.folder_of(number)
        self._copies += 1
        copied = folder.with_name(f"copy-{self._copies}")
        if self._faults.sick is None:
            self._world.disks.copy(folder, copied)
            self._world.later(
                self._clock.between(*OLDER_BY_MS), lambda: self._put_back(number, copied, RETRIES_MAX)
            )

    def _put_back(self, number: int, copied: Path, retries: int) -> None:
        if self._faults.is_over or not retries:
            return
        if not (self.may_lose() and self._is_known_to_be_older(number, copied)):
            self._world.later(RETRY_MS, lambda: self._put_back(number, copied, retries - 1))
            return
        world, high_watermark = self._world, max(1, self._world.high_watermark())
        self._faults.sick = number
        self._faults.count("older-disk")
        for broker in list(world.brokers.values()):
            if not broker.life.is_dead:
                world.crash(broker, is_reset=self._clock.chance(0.5))
        world.disks.put_back(world.folder_of(number), copied)
        world.note(f"all brokers are down, and broker {number} gets an older copy of its disk")
        for other in world.brokers:
            later_ms = self._clock.between(*(FIRST_MS if other == number else OTHERS_MS))
            world.later(later_ms, lambda other=other: world.start(other))  # type: ignore[misc]
        self._recover(number, high_watermark)

    def _is_known_to_be_older(self, number: int, copied: Path) -> bool:
        """Whether the broker has noted in ZooKeeper since that its disk has grown older."""
        node = self._world.zookeeper.nodes.get(znodes.disk(number))
        if node is None or not node.data:
            return False
        noted, owner = json.loads(node.data), json.loads((copied / OWNER_FILE).read_text())
        is_same = bool(noted["directory_id"] == owner["directory_id"])
        return is_same and bool(noted["age"] > owner["age"])

    def replace(self, number: int) -> None:
        """Gives a broker an empty disk, once another one in sync has everything."""
        state = self._world.state()
        what = f"broker {number} waits for its new disk"
        if not set(state["isr"]) - {number}:
            self._faults.active[what] = lambda: None
            self._world.later(RETRY_MS, lambda: self.replace(number))
            return
        self._faults.active.pop(what, None)
        broker = self._world.brokers[number]
        if not broker.life.is_dead:
            self._world.crash(broker, is_reset=True)
        folder = self._world.folder_of(number)
        shutil.rmtree(folder)
        self._world.disks.forget(folder)
        self._world.note(f"broker {number} gets an empty disk")
        self._world.start(number)
        # At address 0 it would have everything at once, and the next broker would lose its disk, too.
        self._recover(number, max(1, self._world.high_watermark()))

    def _recover(self, number: int, address: int) -> None:
        """Waits until a broker has everything again."""
        broker = self._world.brokers[number]
        has_all = not broker.life.is_dead and broker.high_watermark(TOPIC) >= address
        if has_all and number in self._world.state()["isr"]:
            self._faults.sick = None
        else:
            self._world.later(RETRY_MS, lambda: self._recover(number, address))
