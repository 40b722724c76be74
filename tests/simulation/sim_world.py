"""A world: three brokers, ZooKeeper, clients; faults by its seed; and in the end the judgement.

First faults come, alone and many at once, and are healed in another order. Then everything is healed, must be
live again within a bound, and what the clients saw is compared with what every replica's disk holds.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from headrace.coordination import znodes
from headrace.coordination.errors import CoordinationError
from headrace.coordination.topics import TopicRegistry
from headrace.wire.batch import hop
from simulation.sim_broker import SETTINGS, SimBroker
from simulation.sim_clients import BROKERS, TOPIC, TOPIC_ID, SimProducer, SimReader
from simulation.sim_clock import Clock, Life
from simulation.sim_disk import Disks
from simulation.sim_network import Network
from simulation.sim_zookeeper import SESSION_MS, SimSession, ZooKeeper

CALM_MS: Final = 2_000.0
TROUBLED_MS: Final = 25_000.0
LIVE_MAX_MS: Final = 40_000.0
DRAIN_MS: Final = 3_000.0
FAULT_GAP_MS: Final = 1_800.0
PRODUCERS: Final = 2
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
    """One world. `run` returns its verdict, and leaves nothing behind."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.clock = Clock(seed)
        self.network = Network(self.clock)
        self.zookeeper = ZooKeeper(self.clock)
        self.disks = Disks()
        self.folder = Path(
            tempfile.mkdtemp(prefix="headrace-simulation-", dir=FOLDER if FOLDER.is_dir() else None)
        )
        self.brokers: dict[int, SimBroker] = {}
        self.trace: list[str] = []
        self.faults: dict[str, int] = {}
        self.problems: list[str] = []
        self._healing: dict[str, Callable[[], None]] = {}
        self._judge = Life("judge")
        self.producers: list[SimProducer] = []
        self.reader: SimReader | None = None

    # --- the run ---

    def run(self) -> Verdict:
        try:
            with self.disks.in_place():
                self._run()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        acknowledged = sum(len(producer.acknowledged) for producer in self.producers)
        return Verdict(
            self.seed,
            self.problems,
            self.trace,
            self.clock.now_ms,
            acknowledged,
            dict(sorted(self.faults.items())),
        )

    def _run(self) -> None:
        self._create_topic()
        for number in range(1, BROKERS + 1):
            self._start(number)
        self.clock.after(100.0, self._judge, self._watch_sessions)
        self.clock.run_until(CALM_MS)
        self.producers = [
            SimProducer(number, self.clock, self.network, self.zookeeper)
            for number in range(1, PRODUCERS + 1)
        ]
        self.reader = SimReader(self.clock, self.network, self.zookeeper)
        self.clock.run_until(2 * CALM_MS)
        self.clock.after(0.0, self._judge, self._next_fault)
        self.clock.run_until(2 * CALM_MS + TROUBLED_MS)
        self._judge.is_dead = True
        self._judge = Life("judge")
        self.clock.after(0.0, self._judge, self._watch_sessions)
        self._heal_all()
        self._wait_until_live()
        for producer in self.producers:
            producer.is_ending = True
        self.clock.run_until(self.clock.now_ms + DRAIN_MS)
        self._judge_all()

    def _create_topic(self) -> None:
        session = SimSession(self.zookeeper, self.clock, Life("creator"), "creator")
        registry = TopicRegistry(session)
        replicas = list(range(1, BROKERS + 1))
        self.clock.draw.shuffle(replicas)
        registry.create(TOPIC, TOPIC_ID, {0: tuple(replicas)}, {"min.insync.replicas": "2"})

    def _start(self, number: int) -> None:
        broker = SimBroker(
            number, self.folder / str(number), self.clock, self.network, self.zookeeper, SETTINGS
        )
        self.brokers[number] = broker
        broker.start()

    def note(self, text: str) -> None:
        self.trace.append(f"{self.clock.now_ms:9.1f} ms  {text}")

    # --- faults ---

    def _next_fault(self) -> None:
        draw = self.clock.draw
        kinds = [
            self._crash,
            self._crash,
            self._stop,
            self._cut,
            self._cut_zookeeper,
            self._fail_disk,
            self._slow_disk,
            self._slow_network,
            self._silence_zookeeper,
            self._crash_all,
        ]
        for _ in range(1 if draw.random() < 0.7 else 3):
            draw.choice(kinds)()
        self.clock.after(draw.expovariate(1 / FAULT_GAP_MS), self._judge, self._next_fault)

    def _inject(self, kind: str, what: str, heal: Callable[[], None], duration_ms: float) -> None:
        if what in self._healing:
            return
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.note(what)

        def healed() -> None:
            if self._healing.pop(what, None) is not None:
                self.note(f"healed: {what}")
                heal()

        self._healing[what] = healed
        self.clock.after(duration_ms, self._judge, healed)

    def _heal_all(self) -> None:
        for heal in list(self._healing.values()):
            heal()
        self.note("all is healed")

    def _pick(self) -> int:
        """Any broker; more often the one that leads."""
        node = self.zookeeper.nodes[znodes.partition_state(TOPIC, 0)]
        leader = int(json.loads(node.data)["leader"])
        if leader in self.brokers and self.clock.chance(0.5):
            return leader
        return self.clock.draw.randint(1, BROKERS)

    def _crash(self, number: int | None = None) -> None:
        number = self._pick() if number is None else number
        broker = self.brokers[number]
        if broker.life.is_dead:
            return
        broker.crash()
        lost_bytes = self.disks.crash(broker.folder, self.clock.draw)
        what = f"broker {number} is down"
        self.note(f"broker {number} crashes, {lost_bytes} bytes were not durable")
        self._inject("crash", what, lambda: self._start(number), self.clock.between(100, 6_000))

    def _crash_all(self) -> None:
        if self.clock.chance(0.5):
            for number in list(self.brokers):
                self._crash(number)

    def _stop(self) -> None:
        broker = self.brokers[self._pick()]
        if broker.life.is_dead:
            return
        duration_ms = self.clock.between(200, 8_000)
        broker.stop_for(duration_ms)
        # Its kernel sends no heartbeat for it, either.
        broker.session.disconnect()
        self._inject(
            "stop", f"broker {broker.number} is stopped", lambda: self._continue(broker), duration_ms
        )

    def _continue(self, broker: SimBroker) -> None:
        broker.life.stopped_until_ms = 0.0
        self._reconnect(broker)

    def _reconnect(self, broker: SimBroker) -> None:
        is_cut = f"broker {broker.number} is cut off from ZooKeeper" in self._healing
        if not broker.life.is_dead and not is_cut and self.zookeeper.is_up:
            broker.session.reconnect()

    def _cut(self) -> None:
        names = [str(number) for number in self.brokers]
        source = self.clock.draw.choice([*names, "producer-1", "reader"])
        target = self.clock.draw.choice([name for name in names if name != source])
        pairs = {(source, target)} | ({(target, source)} if self.clock.chance(0.5) else set())
        self.network.cuts |= pairs
        way = "both ways" if len(pairs) > 1 else "one way"
        what = f"{source} is cut off from {target}, {way}"
        self._inject(
            "cut", what, lambda: self.network.cuts.difference_update(pairs), self.clock.between(200, 8_000)
        )

    def _cut_zookeeper(self) -> None:
        broker = self.brokers[self._pick()]
        if broker.life.is_dead:
            return
        broker.session.disconnect()
        number = broker.number
        what = f"broker {number} is cut off from ZooKeeper"
        self._inject(
            "zookeeper-cut",
            what,
            lambda: self._reconnect(self.brokers[number]),
            self.clock.between(200, 9_000),
        )

    def _silence_zookeeper(self) -> None:
        if self.clock.chance(0.5):
            return
        self.zookeeper.is_up = False
        for broker in self.brokers.values():
            broker.session.disconnect()

        def heal() -> None:
            self.zookeeper.is_up = True
            for broker in self.brokers.values():
                if broker.life.stopped_until_ms <= self.clock.now_ms:
                    self._reconnect(broker)

        self._inject("zookeeper-silent", "ZooKeeper is silent", heal, self.clock.between(200, 5_000))

    def _fail_disk(self) -> None:
        number = self._pick()
        folder = str(self.folder / str(number))
        self.disks.failing.add(folder)
        what = f"each fsync of broker {number} fails"
        self._inject("fsync", what, lambda: self.disks.failing.discard(folder), self.clock.between(50, 2_000))

    def _slow_disk(self) -> None:
        broker = self.brokers[self._pick()]
        broker.files.slow = self.clock.between(5, 60)
        what = f"the disk of broker {broker.number} is slow"
        self._inject(
            "slow-disk", what, lambda: setattr(broker.files, "slow", 1.0), self.clock.between(200, 4_000)
        )

    def _slow_network(self) -> None:
        self.network.slow = self.clock.between(5, 80)
        what = "the network is slow"
        self._inject(
            "slow-network", what, lambda: setattr(self.network, "slow", 1.0), self.clock.between(200, 3_000)
        )

    def _watch_sessions(self) -> None:
        """Ends sessions of which ZooKeeper has heard nothing for their timeout."""
        for number, session in list(self.zookeeper.sessions.items()):
            if session.name == "creator" or not self.zookeeper.is_up or session.is_connected:
                session.silent_since_ms = self.clock.now_ms
            elif self.clock.now_ms - session.silent_since_ms >= SESSION_MS:
                self.note(f"the session of {session.name} expires")
                self.zookeeper.expire(number)
        self.clock.after(100.0, self._judge, self._watch_sessions)

    # --- the judgement ---

    def _wait_until_live(self) -> None:
        since_ms = self.clock.now_ms
        while self.clock.now_ms - since_ms < LIVE_MAX_MS:
            self.clock.run_until(self.clock.now_ms + 200.0)
            late = self._late(since_ms)
            if not late:
                self.note(f"live again {self.clock.now_ms - since_ms:.0f} ms after all was healed")
                return
        self.problems.append(
            f"not live {LIVE_MAX_MS:.0f} ms after all was healed: {'; '.join(self._late(since_ms))}"
        )

    def _late(self, since_ms: float) -> list[str]:
        late = [f"{each.name} got {each.last_answer}" for each in self.producers if each.last_ms <= since_ms]
        if self.reader is not None and self.reader.last_ms <= since_ms:
            late.append("the reader reads nothing new")
        state = json.loads(self.zookeeper.nodes[znodes.partition_state(TOPIC, 0)].data)
        if len(state["isr"]) < BROKERS or state["leader"] < 0:
            late.append(f"the state is {state}")
        return late

    def _judge_all(self) -> None:
        assert self.reader is not None
        for client in (*self.producers, self.reader):
            self.problems.extend(client.problems)
        self.problems.extend(self._leaders())
        high_watermark = max(broker.high_watermark(TOPIC) for broker in self.brokers.values())
        for broker in self.brokers.values():
            broker.close(self.clock.draw)
        logs = {number: _content(self.folder / str(number) / f"{TOPIC}-0") for number in self.brokers}
        for number, content in logs.items():
            self._judge_log(number, content[:high_watermark], high_watermark)
        if len({content[:high_watermark] for content in logs.values()}) > 1:
            self.problems.append(f"the replicas differ below the high watermark {high_watermark}")

    def _judge_log(self, number: int, content: bytes, high_watermark: int) -> None:
        assert self.reader is not None
        if len(content) < high_watermark:
            self.problems.append(f"broker {number} ends at {len(content)}, below {high_watermark}")
        held: dict[tuple[int, int], list[int]] = {}
        last: dict[int, int] = {}
        for at, header in hop(content):
            held.setdefault((header.producer_id, header.base_sequence), []).append(at + header.size_bytes - 1)
            if header.base_sequence <= last.get(header.producer_id, -1):
                self.problems.append(
                    f"broker {number}: producer {header.producer_id} has sequence"
                    f" {header.base_sequence} after {last[header.producer_id]}"
                )
            last[header.producer_id] = header.base_sequence
        for producer in self.producers:
            for each in producer.acknowledged:
                offsets = held.get((each.producer, each.sequence), [])
                if offsets != [each.offset]:
                    self.problems.append(
                        f"broker {number}: sequence {each.sequence} of producer {each.producer} was"
                        f" acknowledged at offset {each.offset} at {each.at_ms:.0f} ms; the log holds it"
                        f" at {offsets}"
                    )
        for address, batch in self.reader.seen.items():
            if content[address : address + len(batch)] != batch:
                self.problems.append(f"broker {number}: what the reader saw at address {address} is gone")

    def _leaders(self) -> list[str]:
        """At most one leader an epoch, and each one out of the in-sync set, by all that was ever written."""
        found: list[str] = []
        leaders: dict[int, int] = {}
        path = znodes.partition_state(TOPIC, 0)
        for at_ms, written, data in self.zookeeper.history:
            if written != path or not data:
                continue
            state = json.loads(data)
            if state["leader"] >= 0:
                known = leaders.setdefault(state["leader_epoch"], state["leader"])
                if known != state["leader"]:
                    found.append(
                        f"brokers {known} and {state['leader']} both lead in epoch {state['leader_epoch']}"
                        f" ({at_ms:.0f} ms)"
                    )
        return found


def _content(folder: Path) -> bytes:
    """Returns all bytes of a partition's segments."""
    paths = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
    return b"".join(path.read_bytes() for path in paths)


def simulate(seed: int) -> Verdict:
    """Runs a world. An error of the product's own code is a problem of that world, too."""
    world = World(seed)
    try:
        return world.run()
    except (
        AssertionError,
        CoordinationError,
        OSError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
    ) as error:
        import traceback

        world.problems.append(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        return Verdict(seed, world.problems, world.trace, world.clock.now_ms, 0, world.faults)
