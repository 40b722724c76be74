"""The faults of a world: what is hit, for how long, and how it is healed; all by the world's own chance.

Each world draws which kinds it has, and how often they come. Kinds that take bytes from a disk for good
(`rot`, `new disk`) hit one broker alone, and no other is hurt before it has copied everything again: with
fewer whole copies than that no system keeps its promises.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from simulation.sim_clients import TOPIC
from simulation.sim_network import Way

if TYPE_CHECKING:
    from simulation.sim_broker import SimBroker
    from simulation.sim_world import World

Heal = Callable[[], None]
GAP_MIN_MS: Final = 600.0
GAP_MAX_MS: Final = 3_000.0
KINDS_MIN: Final = 4
MANY: Final = 3
"""How many faults come at once, if not one alone."""
RETRY_MS: Final = 300.0
SICK_MAX_MS: Final = 8_000.0
DOWN_MS: Final = (100.0, 6_000.0)
LONG_DOWN_MS: Final = (4_500.0, 9_000.0)
LAGS_AFTER_MS: Final = (2_000.0, 4_000.0)
LEFT_BEHIND_TIMES: Final = 3
HURRY_MS: Final = 250.0
"""How long producers send much after each fault and healing."""


class Faults:
    """`active`: what is broken now, and how to heal it. `counts`: how many there were, by kind."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        self.active: dict[str, Heal] = {}
        self.counts: dict[str, int] = {}
        self.sick: int | None = None
        """The broker that has lost bytes for good, until it has all of them again."""
        self.is_over = False
        self._cuts_power = False
        kinds: list[Callable[[], None]] = [
            self._crash,
            self._crash,
            self._stop,
            self._cut,
            self._swizzle,
            self._cut_zookeeper,
            self._silence_zookeeper,
            self._lag_zookeeper,
            self._delay_watches,
            self._fail_disk,
            self._slow_disk,
            self._fill_disk,
            self._slow_network,
            self._crash_all,
            self._cut_power,
            self._rot,
            self._new_disk,
            self._leave_behind,
        ]
        draw = self._clock.draw
        self._kinds = draw.sample(kinds, draw.randint(KINDS_MIN, len(kinds)))
        self._gap_ms = self._clock.between(GAP_MIN_MS, GAP_MAX_MS)
        self._is_alone = draw.choice((0.5, 0.7, 1.0))

    def next(self) -> None:
        """Injects one fault, or many at once; then the next ones follow."""
        if self.is_over:
            return
        draw = self._clock.draw
        for _ in range(1 if draw.random() < self._is_alone else MANY):
            draw.choice(self._kinds)()
        self._world.later(draw.expovariate(1 / self._gap_ms), self.next)

    def heal_all(self) -> None:
        """Ends all faults, and heals in an order of its own."""
        self.is_over = True
        left = list(self.active.values())
        self._clock.draw.shuffle(left)
        for heal in left:
            heal()

    def _inject(self, kind: str, what: str, heal: Heal, duration_ms: float) -> None:
        if what in self.active:
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._world.note(what)
        self._hurry()

        def healed() -> None:
            if self.active.pop(what, None) is not None:
                self._world.note(f"healed: {what}")
                heal()
                self._hurry()

        self.active[what] = healed
        self._world.later(duration_ms, healed)

    def _hurry(self) -> None:
        for producer in self._world.producers:
            producer.hurry(HURRY_MS)

    def _pick(self) -> int:
        """Any broker; more often the one that leads. While one is sick, that one."""
        if self.sick is not None:
            return self.sick
        leader = self._world.state()["leader"]
        if leader in self._world.brokers and self._clock.chance(0.5):
            return int(leader)
        return self._clock.draw.choice(list(self._world.brokers))

    def _living(self) -> SimBroker | None:
        broker = self._world.brokers[self._pick()]
        return None if broker.life.is_dead else broker

    # --- processes ---

    def _crash(self, number: int | None = None, down_ms: tuple[float, float] = DOWN_MS) -> None:
        number = self._pick() if number is None else number
        broker = self._world.brokers[number]
        if broker.life.is_dead:
            return
        # A host that is gone says nothing; of a process that is gone the kernel tells.
        is_reset = self._clock.chance(0.5)
        self._world.crash(broker, is_reset=is_reset)
        what = f"broker {number} is down"
        self._inject("crash", what, lambda: self._world.start(number), self._clock.between(*down_ms))

    def _crash_all(self) -> None:
        if self.sick is None and self._clock.chance(0.5):
            for number in list(self._world.brokers):
                self._crash(number)

    def favour_unclean_elections(self) -> None:
        """The topic allows them: whoever was left behind may lead."""
        self._kinds += [self._leave_behind] * LEFT_BEHIND_TIMES

    def _leave_behind(self) -> None:
        """One broker is cut off from the others until it lags; then those lose their power for long."""
        if self.sick is not None:
            return
        number = self._clock.draw.choice(list(self._world.brokers))
        others = [other for other in self._world.brokers if other != number]
        ways = {(str(number), str(other)) for other in others}
        ways |= {(target, source) for source, target in ways}
        self._cut_ways(f"broker {number} is left behind", ways)

        def lose() -> None:
            isr = self._world.state()["isr"]
            if not self.is_over and self.sick is None and number not in isr:
                self.counts["left-behind"] = self.counts.get("left-behind", 0) + 1
                for other in others:
                    self._crash(other, LONG_DOWN_MS)

        self._world.later(self._clock.between(*LAGS_AFTER_MS), lose)

    def _cut_power(self) -> None:
        """All brokers lose their power at the moment when a producer gets its next acknowledgement: what was
        acknowledged must be on a disk by then.
        """
        self._cuts_power = self.sick is None

    def acknowledged(self) -> None:
        """Called when a producer got an acknowledgement."""
        if self._cuts_power and not self.is_over and self.sick is None:
            self.counts["power-cut"] = self.counts.get("power-cut", 0) + 1
            self._world.note("the power is cut")
            for number in list(self._world.brokers):
                self._crash(number)
        self._cuts_power = False

    def _stop(self) -> None:
        broker = self._living()
        if broker is None:
            return
        what = f"broker {broker.number} is stopped"
        if what in self.active:
            return
        broker.stop()
        # Its kernel sends no heartbeat for it, either.
        broker.session.disconnect()
        self._inject("stop", what, lambda: self._continue(broker), self._clock.between(200, 8_000))

    def _continue(self, broker: SimBroker) -> None:
        broker.go_on()
        self.reconnect(broker)

    # --- the network ---

    def _cut(self) -> None:
        names = [str(number) for number in self._world.brokers]
        draw = self._clock.draw
        target = str(self._pick())
        source = draw.choice([name for name in [*names, "producer-1", "reader"] if name != target])
        if self.sick is None and self._clock.chance(0.5) and source in names:
            source, target = target, source
        ways = {(source, target)} | ({(target, source)} if self._clock.chance(0.5) else set())
        how = "both ways" if len(ways) > 1 else "one way"
        self._cut_ways(f"{source} is cut off from {target}, {how}", ways)

    def _cut_ways(self, what: str, ways: set[Way]) -> None:
        cuts = self._world.network.cuts
        if what in self.active or self.is_over or self.sick is not None:
            return  # who is sick must not be the last one in sync
        for way in ways:
            cuts[way] += 1
        self._inject("cut", what, lambda: cuts.subtract(ways), self._clock.between(200, 8_000))

    def _swizzle(self) -> None:
        """Brokers are cut off one after the other, and come back in another order."""
        if self.sick is not None:
            return
        numbers = list(self._world.brokers)
        for number in self._clock.draw.sample(numbers, self._clock.draw.randint(2, len(numbers))):
            ways = {(str(number), str(other)) for other in numbers if other != number}
            ways |= {(target, source) for source, target in ways}
            self._world.later(
                self._clock.between(0, 1_000),
                lambda number=number, ways=ways: self._cut_ways(  # type: ignore[misc]
                    f"broker {number} is cut off from the others", ways
                ),
            )

    def _slow_network(self) -> None:
        if self.sick is not None:
            return
        network = self._world.network
        network.slow = self._clock.between(5, 80)
        duration_ms = self._clock.between(200, 3_000)
        self._inject(
            "slow-network", "the network is slow", lambda: setattr(network, "slow", 1.0), duration_ms
        )

    # --- ZooKeeper ---

    def reconnect(self, broker: SimBroker) -> None:
        """Unless something keeps the broker off ZooKeeper still."""
        is_cut = f"broker {broker.number} is cut off from ZooKeeper" in self.active
        is_away = is_cut or broker.life.is_dead or broker.life.is_stopped
        if not is_away and self._world.zookeeper.is_up:
            broker.session.reconnect()

    def _cut_zookeeper(self) -> None:
        broker = self._living()
        if broker is None:
            return
        broker.session.disconnect()
        number = broker.number
        self._inject(
            "zookeeper-cut",
            f"broker {number} is cut off from ZooKeeper",
            lambda: self.reconnect(self._world.brokers[number]),
            self._clock.between(200, 9_000),
        )

    def _silence_zookeeper(self) -> None:
        """Its servers have no majority."""
        if self._clock.chance(0.5):
            return
        zookeeper = self._world.zookeeper
        zookeeper.is_up = False
        for broker in self._world.brokers.values():
            broker.session.disconnect()

        def heal() -> None:
            zookeeper.is_up = True
            for broker in self._world.brokers.values():
                self.reconnect(broker)

        self._inject("zookeeper-silent", "ZooKeeper is silent", heal, self._clock.between(200, 5_000))

    def _lag_zookeeper(self) -> None:
        """The server of one session is behind the others; or it is in a minority, and does not know yet."""
        broker = self._living()
        if broker is None or not broker.session.is_connected:
            return
        session, number = broker.session, broker.number
        in_minority = self._clock.chance(0.5)
        session.fall_behind(may_write=not in_minority)
        which = "in a minority" if in_minority else "behind"

        def heal() -> None:
            session.catch_up()
            if in_minority and session.is_connected:
                session.disconnect()
                self._world.later(
                    self._clock.between(10, 500), lambda: self.reconnect(self._world.brokers[number])
                )

        self._inject(
            f"zookeeper-{'minority' if in_minority else 'lag'}",
            f"the ZooKeeper of broker {number} is {which}",
            heal,
            self._clock.between(100, 3_000),
        )

    def _delay_watches(self) -> None:
        zookeeper = self._world.zookeeper
        zookeeper.slow_events = self._clock.between(5, 60)
        self._inject(
            "late-watches",
            "watches are late",
            lambda: setattr(zookeeper, "slow_events", 1.0),
            self._clock.between(300, 5_000),
        )

    # --- disks ---

    def _fail_disk(self) -> None:
        number = self._pick()
        failing, folder = self._world.disks.failing, str(self._world.folder_of(number))
        failing.add(folder)
        what = f"each fsync of broker {number} fails"
        self._inject("fsync", what, lambda: failing.discard(folder), self._clock.between(50, 2_000))

    def _slow_disk(self) -> None:
        broker = self._world.brokers[self._pick()]
        broker.files.slow = self._clock.between(5, 60)
        what = f"the disk of broker {broker.number} is slow"
        self._inject(
            "slow-disk", what, lambda: setattr(broker.files, "slow", 1.0), self._clock.between(200, 4_000)
        )

    def _fill_disk(self) -> None:
        """To its last byte, or below the broker's reserve."""
        number = self._pick()
        disks, folder = self._world.disks, str(self._world.folder_of(number))
        is_full = self._clock.chance(0.5)
        where = disks.full if is_full else disks.nearly_full
        where.add(folder)
        what = f"the disk of broker {number} is {'full' if is_full else 'nearly full'}"
        self._inject(
            "full-disk" if is_full else "nearly-full-disk",
            what,
            lambda: where.discard(folder),
            self._clock.between(200, 5_000),
        )

    # --- bytes that are gone for good ---

    def _may_lose(self) -> bool:
        """Whether others have all that was acknowledged, and nothing else is broken."""
        state = self._world.state()
        return self.sick is None and not self.active and len(state["isr"]) == len(self._world.brokers)

    def _rot(self) -> None:
        """A bit flips on one broker's disk; in the end it gets a new disk."""
        number = self._pick()
        if not self._may_lose():
            return
        where = self._world.disks.rot(self._world.folder_of(number))
        if where is None:
            return
        self._world.reread()
        self.sick = number
        what = f"a bit is flipped on broker {number}, {where}"
        self._inject("rot", what, lambda: self._replace(number), self._clock.between(500, SICK_MAX_MS))

    def _new_disk(self) -> None:
        number = self._pick()
        if not self._may_lose():
            return
        self.sick = number
        self.counts["new-disk"] = self.counts.get("new-disk", 0) + 1
        self._replace(number)

    def _replace(self, number: int) -> None:
        """Gives a broker an empty disk, once another one in sync has everything."""
        state = self._world.state()
        what = f"broker {number} waits for its new disk"
        if not set(state["isr"]) - {number}:
            self.active[what] = lambda: None
            self._world.later(RETRY_MS, lambda: self._replace(number))
            return
        self.active.pop(what, None)
        broker = self._world.brokers[number]
        if not broker.life.is_dead:
            self._world.crash(broker, is_reset=True)
        folder = self._world.folder_of(number)
        shutil.rmtree(folder)
        self._world.disks.forget(folder)
        self._world.note(f"broker {number} gets an empty disk")
        self._world.start(number)
        self._recover(number, self._world.high_watermark())

    def _recover(self, number: int, address: int) -> None:
        """Waits until a broker has everything again."""
        has_all = self._world.brokers[number].high_watermark(TOPIC) >= address
        if has_all and number in self._world.state()["isr"]:
            self.sick = None
        else:
            self._world.later(RETRY_MS, lambda: self._recover(number, address))
