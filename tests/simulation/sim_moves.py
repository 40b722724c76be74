"""What moves without any failure: brokers that are shut down, reassignments, preferred leaders, settings.

What administrators do goes through the real `LeadershipAdmin` of a broker, and takes effect among the faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from headrace.broker.leadership.administration import LeadershipAdmin
from headrace.coordination import documents, znodes
from headrace.coordination.partition_state import parse_topic
from simulation.sim_broker import raise_unexpected
from simulation.sim_clients import BROKERS, TOPIC

if TYPE_CHECKING:
    from simulation.sim_broker import SimBroker
    from simulation.sim_faults import Faults
    from simulation.sim_world import World

DOWN_MS: Final = (100.0, 4_000.0)
REASSIGNED_MS: Final = (1_000.0, 6_000.0)
RETRY_MS: Final = 300.0
REASSIGNED: Final = "the partition is reassigned"
FEWER: Final = 0.6
"""How often a reassignment takes a replica away; else it changes their order, and so who is preferred."""
REPLICAS_MIN: Final = 2
MIN_IN_SYNC: Final = "min.insync.replicas"
MIN_RAISED_MS: Final = (500.0, 5_000.0)
MIN_RAISED: Final = "min.insync.replicas is 3"


class Moves:
    """Those of one world. While a broker is sick no other one stops: its bytes must come from the others.
    They may be reassigned meanwhile: no replica with the bytes goes before the others have them.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self._clock = world.clock
        self._is_restoring = False

    def _free(self, number: int | None = None, *, is_harmless: bool = False) -> SimBroker | None:
        """A broker, or that one, if it does what it is told. `is_harmless`: also while a broker is sick."""
        broker = self._faults.living(number)
        is_free = broker is not None and not broker.life.is_stopped and not broker.is_leaving
        return broker if is_free and (is_harmless or self._faults.sick is None) else None

    def shut_down(self, number: int | None = None) -> None:
        """SIGTERM: a broker gives its partitions away, stops in order, and is started again."""
        broker = self._free(number)
        if broker is None or not broker.is_registered:
            return
        number = broker.number
        self._faults.count("shut-down")
        self._world.note(f"broker {number} is told to stop")
        self._faults.hurry()

        def stopped() -> None:
            self._world.note(f"broker {number} has stopped")
            self._world.later(self._clock.between(*DOWN_MS), lambda: self._world.start(number))

        broker.leave(stopped)

    def shut_down_all(self) -> None:
        """All are told to stop at once: no one of them has another one that stays."""
        if self._faults.sick is None and self._clock.chance(0.5):
            self._faults.count("all-shut-down")
            for number in list(self._world.brokers):
                self.shut_down(number)

    def reassign(self) -> None:
        """The partition gets other replicas for a while, or the same in another order; then all again."""
        broker = self._free(is_harmless=True)
        if broker is None:
            return
        numbers = list(self._world.brokers)
        self._clock.draw.shuffle(numbers)
        targets = numbers[: REPLICAS_MIN if self._clock.chance(FEWER) else BROKERS]
        if REASSIGNED not in self._faults.active:
            self._world.note(f"replicas are to be {targets}")
            self.ask(broker, TOPIC, {0: targets})
            self._faults.inject("reassignment", REASSIGNED, self._begin, self._clock.between(*REASSIGNED_MS))

    def reassign_to(self, number: int, targets: list[int]) -> None:
        """A broker is asked for these replicas for a while."""
        broker = self._world.brokers[number]
        if not broker.life.is_dead and REASSIGNED not in self._faults.active and not self._faults.is_over:
            self._world.note(f"replicas are to be {targets}")
            self.ask(broker, TOPIC, {0: targets})
            self._faults.inject("reassignment", REASSIGNED, self._begin, self._clock.between(*REASSIGNED_MS))

    def _begin(self) -> None:
        if not self._is_restoring:
            self._is_restoring = True
            self._restore()

    def _restore(self) -> None:
        """Asks for all replicas while some are missing: a stopped broker does late what it was asked for."""
        self._world.later(RETRY_MS, self._restore)
        if REASSIGNED in self._faults.active:
            return
        path = znodes.topic(TOPIC)
        _, partitions = parse_topic(path, self._world.zookeeper.nodes[path].data)
        if len(partitions[0].replicas) < BROKERS or partitions[0].removing:
            living = [each for each in self._world.brokers.values() if not each.life.is_dead]
            if living:
                self.ask(self._clock.draw.choice(living), TOPIC, {0: sorted(self._world.brokers)})

    @classmethod
    def ask(cls, broker: SimBroker, topic: str, targets: Mapping[int, Sequence[int]]) -> None:
        """Asks a broker for these replicas, by partition."""
        admin = cls._admin_of(broker)
        broker.control.submit(lambda: admin.reassign(topic, targets), _answered)

    def prefer(self) -> None:
        """The preferred leader is to lead."""
        broker = self._free()
        if broker is not None:
            self._faults.count("preferred-election")
            admin = self._admin_of(broker)
            broker.control.submit(lambda: admin.elect_preferred(TOPIC, [0]), _answered)

    # --- min.insync.replicas ---

    def raise_min(self) -> None:
        """Asks for all three replicas for a while, then for two again."""
        self.raise_min_for(self._clock.between(*MIN_RAISED_MS))

    def raise_min_for(self, duration_ms: float) -> None:
        if self._faults.sick is None and MIN_RAISED not in self._faults.active:
            self._set_min(BROKERS)
            self._faults.inject("min-raised", MIN_RAISED, self._lower_min, duration_ms)

    def _lower_min(self) -> None:
        """Until it is lower: a broker that is asked may be gone, or without ZooKeeper."""
        path = znodes.topic_config(TOPIC)
        config = documents.decode(path, self._world.zookeeper.nodes[path].data)["config"]
        if MIN_RAISED not in self._faults.active and config[MIN_IN_SYNC] != str(REPLICAS_MIN):
            self._set_min(REPLICAS_MIN)
            self._world.later(RETRY_MS, self._lower_min)

    def _set_min(self, number: int) -> None:
        living = [each for each in self._world.brokers.values() if not each.life.is_dead]
        if living:
            broker = self._clock.draw.choice(living)
            change = {MIN_IN_SYNC: str(number)}
            broker.control.submit(
                lambda: broker.registry.change_config(TOPIC, lambda known: known | change), _answered
            )

    @staticmethod
    def _admin_of(broker: SimBroker) -> LeadershipAdmin:
        return LeadershipAdmin(
            broker.registry, lambda: broker.state.view, broker.state.offline_logs, broker.state.topic_config
        )


def _answered(_: object, error: Exception | None) -> None:
    raise_unexpected(error)
