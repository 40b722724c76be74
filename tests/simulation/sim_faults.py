"""The faults of a world: what is hit, for how long, and how it is healed; all by the world's own chance.

Each world draws which kinds it has, and how often they come. Kinds that take bytes from a disk for good
(`rot`, `new disk`) hit one broker alone, and no other is hurt before it has copied everything again: with
fewer whole copies than that no system keeps its promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from simulation.sim_disk_faults import DiskFaults
from simulation.sim_emptied import Emptied
from simulation.sim_laggards import Laggards
from simulation.sim_moves import Moves
from simulation.sim_network import Way
from simulation.sim_newcomers import Newcomers

if TYPE_CHECKING:
    from simulation.sim_broker import SimBroker
    from simulation.sim_world import World

Heal = Callable[[], None]
GAP_MIN_MS: Final = 600.0
GAP_MAX_MS: Final = 3_000.0
KINDS_MIN: Final = 4
MANY: Final = 3
"""How many faults come at once, if not one alone."""
DOWN_MS: Final = (100.0, 6_000.0)
STOPPED_MS: Final = (200.0, 8_000.0)
CUT_MS: Final = (200.0, 8_000.0)
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
        disks, moves = DiskFaults(world, self), Moves(world, self)
        self._laggards = laggards = Laggards(world, self, moves)
        kinds: list[Callable[[], None]] = [
            self.crash,
            self.crash,
            self.stop,
            self._cut,
            self._swizzle,
            self._cut_zookeeper,
            self._silence_zookeeper,
            self._lag_zookeeper,
            self._delay_watches,
            disks.fail,
            disks.slow,
            disks.fill,
            self._slow_network,
            self._crash_all,
            self._cut_power,
            disks.rot,
            disks.new_disk,
            disks.older_disk,
            laggards.leave_behind,
            laggards.leave_behind_eligible,
            laggards.interrupt_joining,
            Newcomers(world, self, moves).begin,
            Emptied(world, self, moves, disks).leader,
            moves.shut_down,
            moves.shut_down_all,
            moves.reassign,
            moves.prefer,
            moves.raise_min,
        ]
        draw = self._clock.draw
        self._kinds = draw.sample(kinds, draw.randint(KINDS_MIN, len(kinds)))
        self._gap_ms = self._clock.between(GAP_MIN_MS, GAP_MAX_MS)
        self._is_alone = draw.choice((0.5, 0.7, 1.0))

    def favour(self, kind: Callable[[], None], times: int) -> None:
        """Adds a kind, which comes more often than others."""
        self._kinds += [kind] * times

    def begin(self) -> None:
        """Lets faults come from now on."""
        self.is_over = False
        self._world.later(0.0, self.next)

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

    def count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def inject(self, kind: str, what: str, heal: Heal, duration_ms: float) -> None:
        if what in self.active:
            return
        self.count(kind)
        self._world.note(what)
        self.hurry()

        def healed() -> None:
            if self.active.pop(what, None) is not None:
                self._world.note(f"healed: {what}")
                heal()
                self.hurry()

        self.active[what] = healed
        self._world.later(duration_ms, healed)

    def hurry(self) -> None:
        """Producers send much for a moment: after each fault, and each healing."""
        for producer in self._world.producers:
            producer.hurry(HURRY_MS)

    def pick(self) -> int:
        """Any broker; more often the one that leads. While one is sick, that one."""
        if self.sick is not None:
            return self.sick
        leader = self._world.state()["leader"]
        if leader in self._world.brokers and self._clock.chance(0.5):
            return int(leader)
        return self._clock.draw.choice(list(self._world.brokers))

    def living(self, number: int | None = None) -> SimBroker | None:
        broker = self._world.brokers[self.pick() if number is None else number]
        return None if broker.life.is_dead else broker

    # --- processes ---

    def crash(self, number: int | None = None, down_ms: tuple[float, float] = DOWN_MS) -> None:
        number = self.pick() if number is None else number
        broker = self._world.brokers[number]
        if broker.life.is_dead:
            return
        # A host that is gone says nothing; of a process that is gone the kernel tells.
        is_reset = self._clock.chance(0.5)
        self._world.crash(broker, is_reset=is_reset)
        what = f"broker {number} is down"
        self.inject("crash", what, lambda: self._world.start(number), self._clock.between(*down_ms))

    def _crash_all(self) -> None:
        if self.sick is None and self._clock.chance(0.5):
            for number in list(self._world.brokers):
                self.crash(number)

    def deafen(self) -> None:
        self._laggards.deafen()

    def favour_unclean_elections(self) -> None:
        """The topic allows them: whoever was left behind may lead."""
        self.favour(self._laggards.leave_behind, LEFT_BEHIND_TIMES)

    def _cut_power(self) -> None:
        """All brokers lose their power at the moment when a producer gets its next acknowledgement: what was
        acknowledged must be on a disk by then.
        """
        self._cuts_power = self.sick is None

    def acknowledged(self) -> None:
        """Called when a producer got an acknowledgement."""
        if self._cuts_power and not self.is_over and self.sick is None:
            self.count("power-cut")
            self._world.note("the power is cut")
            for number in list(self._world.brokers):
                self.crash(number)
        self._cuts_power = False

    def stop(self, number: int | None = None, duration_ms: tuple[float, float] = STOPPED_MS) -> None:
        broker = self._world.brokers[self.pick() if number is None else number]
        if broker.life.is_dead:
            return
        what = f"broker {broker.number} is stopped"
        if what in self.active:
            return
        broker.stop()
        # Its kernel sends no heartbeat for it, either.
        broker.session.disconnect()
        self.inject("stop", what, lambda: self._continue(broker), self._clock.between(*duration_ms))

    def _continue(self, broker: SimBroker) -> None:
        broker.go_on()
        self.reconnect(broker)

    # --- the network ---

    def _cut(self) -> None:
        names = [str(number) for number in self._world.brokers]
        draw = self._clock.draw
        target = str(self.pick())
        source = draw.choice([name for name in [*names, "producer-1", "reader"] if name != target])
        if self.sick is None and self._clock.chance(0.5) and source in names:
            source, target = target, source
        ways = {(source, target)} | ({(target, source)} if self._clock.chance(0.5) else set())
        how = "both ways" if len(ways) > 1 else "one way"
        self.cut_ways(f"{source} is cut off from {target}, {how}", ways)

    def cut_ways(self, what: str, ways: set[Way], duration_ms: float | None = None) -> None:
        cuts = self._world.network.cuts
        if what in self.active or self.is_over or self.sick is not None:
            return  # who is sick must not be the last one in sync
        for way in ways:
            cuts[way] += 1
        duration_ms = self._clock.between(*CUT_MS) if duration_ms is None else duration_ms
        self.inject("cut", what, lambda: cuts.subtract(ways), duration_ms)

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
                lambda number=number, ways=ways: self.cut_ways(  # type: ignore[misc]
                    f"broker {number} is cut off from the others", ways
                ),
            )

    def _slow_network(self) -> None:
        if self.sick is not None:
            return
        network = self._world.network
        network.slow = self._clock.between(5, 80)
        duration_ms = self._clock.between(200, 3_000)
        self.inject("slow-network", "the network is slow", lambda: setattr(network, "slow", 1.0), duration_ms)

    # --- ZooKeeper ---

    def reconnect(self, broker: SimBroker) -> None:
        """Unless something keeps the broker off ZooKeeper still."""
        is_cut = f"broker {broker.number} is cut off from ZooKeeper" in self.active
        is_away = is_cut or broker.life.is_dead or broker.life.is_stopped
        if not is_away and self._world.zookeeper.is_up:
            broker.session.reconnect()

    def _cut_zookeeper(self) -> None:
        broker = self.living()
        if broker is None:
            return
        broker.session.disconnect()
        number = broker.number
        self.inject(
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

        self.inject("zookeeper-silent", "ZooKeeper is silent", heal, self._clock.between(200, 5_000))

    def _lag_zookeeper(self) -> None:
        """The server of one session is behind the others; or it is in a minority, and does not know yet."""
        broker = self.living()
        if broker is None or not broker.session.is_connected:
            return
        session, number = broker.session, broker.number
        in_minority = self._clock.chance(0.5)
        what = f"the ZooKeeper of broker {number} is {'in a minority' if in_minority else 'behind'}"
        if what in self.active:
            return  # the broker was started again meanwhile: its new session would never be healed
        session.fall_behind(may_write=not in_minority)

        def heal() -> None:
            session.catch_up()
            if in_minority and session.is_connected:
                session.disconnect()
                self._world.later(
                    self._clock.between(10, 500), lambda: self.reconnect(self._world.brokers[number])
                )

        self.inject(
            f"zookeeper-{'minority' if in_minority else 'lag'}",
            what,
            heal,
            self._clock.between(100, 3_000),
        )

    def _delay_watches(self) -> None:
        zookeeper = self._world.zookeeper
        zookeeper.slow_events = self._clock.between(5, 60)
        self.inject(
            "late-watches",
            "watches are late",
            lambda: setattr(zookeeper, "slow_events", 1.0),
            self._clock.between(300, 5_000),
        )
