"""A world: three brokers, ZooKeeper, clients; faults by its seed; and in the end the judgement.

First faults come, alone and many at once, and are healed in another order. Then everything is healed, must be
live again within a bound, and what the clients saw is compared with what every replica's disk holds.
"""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from headrace.broker.replicas import fetcher
from headrace.coordination import znodes
from headrace.coordination.topics import TopicRegistry
from headrace.log import appending
from simulation import sim_overtures
from simulation.sim_ages import CHECK_MS, WRONG_CLOCKS, Ages
from simulation.sim_audit import SimAudit
from simulation.sim_broker import SETTINGS, UNCLEAN, SimBroker
from simulation.sim_clients import BROKERS, TOPIC, TOPIC_ID, SimProducer, SimReader
from simulation.sim_clock import WALL_MS, Clock, Life
from simulation.sim_disk import Disks
from simulation.sim_faults import Faults
from simulation.sim_group import SimGroup
from simulation.sim_judge import Judge
from simulation.sim_liveness import Liveness
from simulation.sim_many import MOVES_TIMES as MOVES_OF_MANY
from simulation.sim_many import SHARE as MANY
from simulation.sim_many import SimMany
from simulation.sim_members import SimMembers
from simulation.sim_mirror import SimMirror
from simulation.sim_network import Network
from simulation.sim_product_clients import (
    BATCH_BYTES,
    PATIENT,
    Habits,
    ProductClient,
    ProductConsumer,
    ProductProducer,
)
from simulation.sim_remade import SimRemade
from simulation.sim_session import SESSION_MS, SimSession, reserve_producer_ids
from simulation.sim_stopping import Departures
from simulation.sim_zookeeper import ZooKeeper

CALM_MS: Final = 1_000.0
TROUBLES_MS: Final = (6_000.0, 12_000.0, 25_000.0)
DRAIN_MS: Final = 1_500.0
SEGMENT_BYTES: Final = "16384"
PRODUCERS: Final = 2
WITNESS_IDS: Final = PRODUCERS + 1
"""Producer ids that brokers do not give to others."""
PAUSES_MS: Final = (300.0, 1_000.0, 2_000.0, 2_000.0, 3_000.0)
"""Of a producer after each batch, at most, unless something happens: then all hurry."""
IDLE_FETCHES_MS: Final = (100, 500, 500, 500)
"""How long leaders hold fetches that bring nothing: with few partitions, and with many."""
APPENDS_BY_THREADS: Final = 0.5
"""In how many worlds followers append whatever comes as they append what is long."""
OF_THE_PRODUCT: Final = 0.3
"""How many producers and readers are the product's own; the others are witnesses that do less."""
MIRRORED: Final = 0.4
GROUPED: Final = 0.4
REMADE: Final = 0.2
"""How many worlds have a second topic, which is deleted and made again."""
AMONG_MEMBERS: Final = 0.5
"""Of the groups: how many have several members at once."""
AUDITED: Final = 0.06
AUDITED_IF_UNCLEAN: Final = 0.9
"""Where something may be lost the audit has more to say."""
NAMES_EPOCHS: Final = "names epochs"
RACK: Final = "names a rack"
READERS: Final = ("", NAMES_EPOCHS, NAMES_EPOCHS, RACK)
UNCLEAN_WORLDS: Final = 0.15
FOLDER: Final = Path("/dev/shm")


class Verdict(NamedTuple):
    """What a world came to. `problems`: each breaks a promise; `trace`: what happened, in order."""

    seed: int
    problems: list[str]
    trace: list[str]
    simulated_ms: float
    acknowledged: int
    faults: dict[str, int]


class World:
    """One world. `run` returns its verdict, and leaves nothing behind. `troubled_ms`: how long faults come;
    the world draws it otherwise.
    """

    def __init__(self, seed: int, troubled_ms: float | None = None) -> None:
        self.seed = seed
        self._troubled_ms = troubled_ms
        self.clock = Clock(seed)
        self.network = Network(self.clock)
        self.zookeeper = ZooKeeper(self.clock)
        self.disks = Disks(self.clock.draw)
        self.ages = Ages.of(self)
        self.folder = Path(
            tempfile.mkdtemp(prefix="headrace-simulation-", dir=FOLDER if FOLDER.is_dir() else None)
        )
        self.brokers: dict[int, SimBroker] = {}
        self.trace: list[str] = []
        self.problems: list[str] = []
        self._judge = Life("judge")
        self.is_unclean = False
        """Whether the topic allows unclean elections."""
        self._high_watermarks: dict[tuple[Life, int], int] = {}
        self.departures = Departures(self.zookeeper)
        self.faults = Faults(self)
        self._liveness = Liveness(self)
        self.producers: list[SimProducer | ProductProducer] = []
        self._batch_bytes = 1
        """Of a producer of the product."""
        self.reader: SimReader | ProductConsumer | None = None
        self.mirror: SimMirror | None = None
        self.group: SimGroup | SimMembers | None = None
        self.audit: SimAudit | None = None
        self.remade: SimRemade | None = None
        self.many: SimMany | None = None

    # --- the run ---

    def run(self) -> Verdict:
        wait_ms, direct_min_bytes = fetcher.WAIT_MIN_MS, appending.DIRECT_MIN_BYTES
        try:
            if Random(f"{self.seed} appends").random() < APPENDS_BY_THREADS:
                setattr(appending, "DIRECT_MIN_BYTES", 1)  # noqa: B010
            setattr(fetcher, "WAIT_MIN_MS", self.clock.draw.choice(IDLE_FETCHES_MS))  # noqa: B010
            with self.disks.in_place():
                self._run()
        finally:
            setattr(fetcher, "WAIT_MIN_MS", wait_ms)  # noqa: B010
            setattr(appending, "DIRECT_MIN_BYTES", direct_min_bytes)  # noqa: B010
            for client in (*self.producers, self.reader):
                if isinstance(client, ProductClient):
                    client.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        acknowledged = sum(len(producer.acknowledged) for producer in self.producers)
        return Verdict(
            self.seed,
            self.problems,
            self.trace,
            self.clock.now_ms,
            acknowledged,
            dict(sorted(self.faults.counts.items())),
        )

    def prepare(self) -> None:
        """Starts the brokers of a new topic."""
        self._create_topic()
        if self.is_unclean:
            self.faults.favour_unclean_elections()
        if self.ages is not None:
            self.faults.favour(self.ages.set_wrong, WRONG_CLOCKS)
            self.clock.has_true_events = True
        for number in range(1, BROKERS + 1):
            self.start(number)
        self.later(100.0, self._watch)
        self.clock.run_until(CALM_MS)

    def _run(self) -> None:
        self.prepare()
        ends = self.clock, self.network, self.zookeeper
        is_audited = self.clock.chance(AUDITED_IF_UNCLEAN if self.is_unclean else AUDITED) and not self.ages
        # An audit's report names single sequence numbers here.
        batch_bytes = 1 if is_audited else self.clock.draw.choice(BATCH_BYTES)
        pause_ms = PAUSES_MS[0] if self.is_unclean else self.clock.draw.choice(PAUSES_MS)
        if self.ages is not None:
            pause_ms = self.ages.pause_ms
        self._batch_bytes = batch_bytes
        for number in range(1, PRODUCERS + 1):
            self._add(self._producer(number, pause_ms))
        self.reader = self._make_reader()
        self.reader.may_lose = self.is_unclean
        self.reader.start_address = self.start_address
        if self.clock.chance(GROUPED) and not self.is_unclean:
            self.group = (SimMembers if self.clock.chance(AMONG_MEMBERS) else SimGroup)(*ends)
            self.group.start_address = self.start_address
        if self.clock.chance(MIRRORED) and not self.is_unclean:
            self.mirror = SimMirror(self.folder / "mirror", *ends)
            self.mirror.start_address = self.start_address
        if self.clock.chance(REMADE) and not (self.is_unclean or self.ages):
            self.remade = SimRemade(*ends)
        if not self.is_unclean and Random(f"many {self.seed}").random() < MANY:
            self.many = SimMany(self)
            self.faults.favour(self.many.move, MOVES_OF_MANY)
        if is_audited:
            self.audit = SimAudit(*ends)
        self.clock.run_until(2 * CALM_MS)
        drawn_ms = self.clock.draw.choice(TROUBLES_MS)
        if self.ages is not None:
            self.ages.live(self._troubled_ms)
        else:
            sim_overtures.play(self)
            self.faults.begin()
            self.clock.run_until(self.clock.now_ms + (self._troubled_ms or drawn_ms))
        self.heal()
        for producer in self.producers:
            producer.is_ending = True
        if self.remade is not None:
            self.remade.end()
        if self.many is not None:
            self.many.end()
        self.clock.run_until(self.clock.now_ms + DRAIN_MS)
        self._liveness.wait_until_in_sync()
        if self.audit is not None:
            self.problems.extend(self.audit.finish())
        self.problems.extend(Judge(self).judge())

    def heal(self) -> None:
        """Ends all faults, and waits until all is live again."""
        self.faults.heal_all()
        self.note("all is healed")
        if self.mirror is not None:
            self.mirror.recheck()
        if self.remade is not None:
            self.remade.settle()
        self._liveness.wait_until_live()

    def start_address(self) -> int:
        """The greatest start of any log of the topic."""
        return 0 if self.ages is None else self.ages.start_address()

    def _producer(self, number: int, pause_ms: float) -> SimProducer | ProductProducer:
        if self.clock.chance(OF_THE_PRODUCT):
            return self._product_producer(number, Habits(pause_ms))
        return SimProducer(number, self.clock, self.network, self.zookeeper, pause_ms)

    def begin_producer(self) -> ProductProducer:
        """Another producer of the product begins now, and waits long for an answer."""
        producer = self._product_producer(len(self.producers) + 1, PATIENT)
        self._add(producer)
        return producer

    def _product_producer(self, number: int, habits: Habits) -> ProductProducer:
        return ProductProducer(number, self.clock, self.network, habits, batch_bytes=self._batch_bytes)

    def _add(self, producer: SimProducer | ProductProducer) -> None:
        producer.on_acknowledged = self.faults.acknowledged
        producer.may_lose = self.is_unclean
        self.producers.append(producer)

    def _make_reader(self) -> SimReader | ProductConsumer:
        if self.clock.chance(OF_THE_PRODUCT):
            return ProductConsumer(self.clock, self.network)
        ends = self.clock, self.network, self.zookeeper
        kind = self.clock.draw.choice(READERS)
        return SimReader(*ends, names_epochs=kind == NAMES_EPOCHS, rack="r" if kind == RACK else "")

    def _create_topic(self) -> None:
        session = SimSession(self.zookeeper, self.clock, Life("creator"), "creator")
        reserve_producer_ids(session, WITNESS_IDS)
        registry = TopicRegistry(session)
        replicas = list(range(1, BROKERS + 1))
        self.clock.draw.shuffle(replicas)
        config = {"min.insync.replicas": "2"}
        if self.clock.chance(0.25):
            config["segment.bytes"] = SEGMENT_BYTES
        self.is_unclean = self.clock.chance(UNCLEAN_WORLDS) and not self.ages
        if self.ages is not None:
            config |= self.ages.config
            self.is_unclean = self.ages.is_unclean
        if self.is_unclean:
            config[UNCLEAN] = "true"
        registry.create(TOPIC, TOPIC_ID, {0: tuple(replicas)}, config)

    def start(self, number: int) -> None:
        """Starts a broker, unless it runs: somebody gave it a new disk meanwhile."""
        before = self.brokers.get(number)
        if before is not None and not before.life.is_dead:
            return
        folder, settings = self.folder_of(number), SETTINGS
        if self.ages is not None:
            settings = SETTINGS | {"log.retention.check.interval.ms": str(CHECK_MS)}
            self.disks.wall_ms[f"{folder}/"] = partial(self.ages.wall_ms, number)
        broker = SimBroker(
            number,
            folder,
            self.clock,
            self.network,
            self.zookeeper,
            self.disks,
            settings,
            partial(self._wall_ms, number),
        )
        self.brokers[number] = broker
        broker.start()

    def _wall_ms(self, number: int) -> int:
        """What the clock of a broker's host shows."""
        return WALL_MS + int(self.clock.now_ms) if self.ages is None else self.ages.wall_ms(number)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.clock.now_ms:9.1f} ms  {text}")

    # --- what faults do ---

    def later(self, delay_ms: float, call: Callable[[], None]) -> None:
        self.clock.after(delay_ms, self._judge, call)

    def folder_of(self, number: int) -> Path:
        return self.folder / str(number)

    def state(self) -> dict[str, Any]:
        """What ZooKeeper holds of the partition."""
        found: dict[str, Any] = json.loads(self.zookeeper.nodes[znodes.partition_state(TOPIC, 0)].data)
        return found

    def high_watermark(self) -> int:
        """The greatest that any broker knows."""
        return max(self.high_watermarks(TOPIC))

    def high_watermarks(self, topic: str) -> set[int]:
        """What the brokers know."""
        return {broker.high_watermark(topic) for broker in self.brokers.values()}

    @property
    def highest(self) -> int:
        """The greatest high watermark that any leader has had."""
        return max(self._high_watermarks.values(), default=0)

    def reread(self) -> None:
        """The reader begins again."""
        if self.reader is not None:
            self.reader.position = 0

    def crash(self, broker: SimBroker, *, is_reset: bool) -> None:
        broker.crash(is_reset=is_reset)
        lost_bytes = self.disks.crash(broker.folder)
        how = "crashes" if is_reset else "is gone with its host"
        self.note(f"broker {broker.number} {how}, {lost_bytes} bytes were not durable")

    def _watch(self) -> None:
        self._watch_high_watermarks()
        if self.ages is not None:
            self.problems.extend(self.ages.watch())
        self._watch_sessions()

    def _watch_sessions(self) -> None:
        """Ends sessions of which ZooKeeper has heard nothing for their timeout."""
        for number, session in list(self.zookeeper.sessions.items()):
            if session.name == "creator" or not self.zookeeper.is_up or session.is_connected:
                session.silent_since_ms = self.clock.now_ms
            elif self.clock.now_ms - session.silent_since_ms >= SESSION_MS:
                self.note(f"the session of {session.name} expires")
                self.zookeeper.expire(number)
        self.later(100.0, self._watch)

    def _watch_high_watermarks(self) -> None:
        """While one broker leads in one epoch its high watermark never falls."""
        for broker in self.brokers.values():
            led = None if broker.life.is_dead else broker.state.partitions.get(TOPIC, 0)
            if led is None:
                continue
            key, address = (broker.life, led.leader_epoch), led.visible_address
            before = self._high_watermarks.get(key, 0)
            if address == before:
                continue
            if address < before:
                self.problems.append(
                    f"the high watermark of broker {broker.number} fell from {before} to {address} in epoch"
                    f" {led.leader_epoch} ({self.clock.now_ms:.0f} ms)"
                )
            self._high_watermarks[key] = max(before, address)


def simulate(seed: int, troubled_ms: float | None = None) -> Verdict:
    """Runs a world. An error of the product's own code is a problem of that world, too.

    Python's collector of cycles looks at what one world leaves behind, once, and at nothing else.
    """
    gc.disable()
    gc.freeze()
    try:
        return _simulated(seed, troubled_ms)
    finally:
        gc.enable()
        gc.collect()
        gc.unfreeze()


def _simulated(seed: int, troubled_ms: float | None) -> Verdict:
    world = World(seed, troubled_ms)
    try:
        return world.run()
    except Exception as error:
        world.problems.append(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        return Verdict(seed, world.problems, world.trace, world.clock.now_ms, 0, world.faults.counts)
