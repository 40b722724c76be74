"""A simulated broker process: the real parts of a broker, on simulated time, disk, network and ZooKeeper.

Owns the order of a broker's start, which mirrors `broker.broker.Broker` and `Membership.register`: those make
threads and sockets, and wait by sleeping. Whatever else of a broker has to do with replication runs here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

import headrace.broker.produce.checks as checks_room
import headrace.broker.replicas.replication as replication_room
from headrace.broker.cluster_watch import ClusterWatch, seen_controller
from headrace.broker.cold_reads import ColdReads
from headrace.broker.disk_age import DiskAgeing
from headrace.broker.disk_guard import CHECK_INTERVAL_MS, DiskGuard
from headrace.broker.expiry_clock import ExpiryClock
from headrace.broker.groups.fencing import registered
from headrace.broker.groups.store import GroupStore
from headrace.broker.handlers.groups import GroupService
from headrace.broker.handlers.init_producer_id import ProducerIds
from headrace.broker.handlers.offsets import OffsetService
from headrace.broker.leadership import departure
from headrace.broker.leadership.config_of import config_of
from headrace.broker.leadership.controller import Controller
from headrace.broker.lookups import Lookups
from headrace.broker.membership import Membership
from headrace.broker.partitions import Partitions
from headrace.broker.replicas.offline_news import OfflineNews
from headrace.broker.replicas.replication import Replication
from headrace.broker.service import BrokerService
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.state import BrokerState
from headrace.client.calls import Call
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.disk_ages import DiskAges
from headrace.coordination.election import Reign
from headrace.coordination.errors import CoordinationError, SessionClosedError
from headrace.coordination.offline_logs import OfflineLogRegistry
from headrace.coordination.partition_states import GuardError
from headrace.coordination.producer_ids import allocate_block
from headrace.coordination.topics import TopicRegistry, TopicState
from headrace.log.directory import LogDirectory, PartitionName
from headrace.log.errors import LogError
from headrace.wire.checking_fast import make_scanner
from simulation.patching import put
from simulation.sim_clock import Clock, Life, SimLoop, SimWorkers
from simulation.sim_disk import Disks
from simulation.sim_network import Host, Link, Network
from simulation.sim_session import SESSION_MS, SimSession
from simulation.sim_zookeeper import ZooKeeper

DISK_MIN_MS: Final = 0.2
DISK_MAX_MS: Final = 12.0
CONTROL_MIN_MS: Final = 0.5
CONTROL_MAX_MS: Final = 15.0
RETRY_MS: Final = 200.0
LED_MAX_MS: Final = 300.0
"""How long a broker that stops waits for the new leaders."""
FREE_MIN_BYTES: Final = 1 << 20
AGE_INTERVAL_MS: Final = 700.0
"""A minute of a real broker."""
PRODUCER_IDS: Final = 10
"""That a broker takes at once."""
SETTINGS: Final = {
    "replica.lag.time.max.ms": "1500",
    "min.insync.replicas": "2",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "zookeeper.session.timeout.ms": str(int(SESSION_MS)),
}

UNCLEAN: Final = "unclean.leader.election.enable"

_quiet: Final = logging.getLogger("simulation")

_only_scanner: Final = lru_cache(maxsize=1)(make_scanner)
"""One for all brokers: it is for one thread, has no state between calls, and takes a millisecond to make."""


class SimPeers:
    """`broker.network.peers.Peers` on the simulated network."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._links: dict[int, Link] = {}

    def ask(
        self, host: str, port: int, call: Call, done: Callable[[Any], None], *, timeout_s: float = 30.0
    ) -> bool:
        broker = self._broker
        target = int(host.rpartition(".")[2])
        link = self._links.get(target)
        if link is None:
            link = Link(broker.network, str(broker.number), broker.life, target, broker.loop.wake)
            self._links[target] = link
        link.ask(call, done, timeout_s * 1000)
        return True

    def close(self) -> None:
        for link in self._links.values():
            link.close()


def raise_unexpected(error: Exception | None) -> None:
    """Raises what ended a job that was to write ZooKeeper, unless ZooKeeper did."""
    if error is not None and not isinstance(error, CoordinationError):
        raise error


class SimController(Controller):
    """The real controller, whose thread is simulated: `_act`, `decide` and the election are its own."""

    def __init__(self, broker: SimBroker) -> None:
        super().__init__(
            broker.session,
            broker.number,
            seen_controller(broker.state),
            config_of(broker.state.config),
            rebalance_interval_s=None,
            topics=broker.registry,
        )
        self._broker = broker
        self._wake = cast(Any, self)
        self._is_due = False

    def start(self) -> None:
        self._election.start()

    def set(self) -> None:
        """Wakes the thread."""
        if not self._is_due:
            self._is_due = True
            clock = self._broker.clock
            clock.after(clock.between(CONTROL_MIN_MS, CONTROL_MAX_MS), self._broker.life, self._once)

    def _once(self) -> None:
        self._is_due = False
        reign: Reign | None = self._reign
        if reign is None or not reign.is_own:
            return
        try:
            self._act(reign)
        except (GuardError, SessionClosedError):
            return
        except CoordinationError:
            self._broker.clock.after(RETRY_MS, self._broker.life, self.set)


class SimBroker:
    """One life of a broker. `crash` ends it; the next one has the same number and folder."""

    def __init__(
        self,
        number: int,
        folder: Path,
        clock: Clock,
        network: Network,
        server: ZooKeeper,
        disks: Disks,
        settings: Mapping[str, str],
        wall_ms: Callable[[], int],
    ) -> None:
        self.number = number
        self.folder = folder
        self._wall_ms = wall_ms
        self.clock = clock
        self.network = network
        self.life = Life(f"broker {number}")
        self.loop = SimLoop(clock, self.life)
        self.files = SimWorkers(clock, self.life, self.loop, DISK_MIN_MS, DISK_MAX_MS)
        self.control = SimWorkers(clock, self.life, self.loop, CONTROL_MIN_MS, CONTROL_MAX_MS)
        self.session = SimSession(server, clock, self.life, f"broker-{number}")
        self.is_registered = self.is_leaving = False
        self._directory = LogDirectory(folder, wall_ms)
        self._directory.claim(number)
        self.registry = TopicRegistry(self.session)
        self._brokers = BrokerRegistry(self.session)
        self._config = BrokerConfig(dict(settings))
        with put(checks_room, "make_scanner", _only_scanner):
            self.state = self._make_state()
        self._ageing = DiskAgeing(self._directory, DiskAges(self.session), number, self.state.expiry_clock)
        self.replication = self._make_replication()
        guard = DiskGuard(
            folder, FREE_MIN_BYTES, cast(Any, self.files), self.state.refuse_appends, disks.statvfs
        )
        self.loop.every(CHECK_INTERVAL_MS, guard.check)
        self.controller = SimController(self)
        self._offline_news = OfflineNews(
            OfflineLogRegistry(self.session),
            cast(Any, self.control),
            self.loop.call_later,
            self.state.own_offline,
        )
        self.state.offline_changed = self._offline_news.changed
        self._membership = Membership(folder, self.session, self.controller, self._offline_news.begin)
        ids = ProducerIds(cast(Any, self.control), lambda: allocate_block(self.session, PRODUCER_IDS))
        self.service = BrokerService(self.state, ids)
        # Turns of control requests go by the CPU that they took: no world would repeat.
        self.service._turns._clock_s = lambda: 0.0
        store = GroupStore(self.session, cast(Any, self.control), lambda: registered(self.state))
        self.groups = GroupService(self.state, store)
        # Ids of members are of the world's chance, too.
        self.groups.coordinator._new_member_id = lambda name: f"{name}-{clock.draw.getrandbits(64):016x}"
        self.groups.serve(self.service, OffsetService(self.groups.coordinator, store, self.groups.when_known))
        self._watch = ClusterWatch(
            self.session,
            self.registry,
            self.state,
            self.controller,
            self.replication,
            groups=self.groups,
            store=store,
            registered=self._open_listener,
            is_own=lambda _: True,  # no world has two processes of one id
            displaced=lambda _: None,
        )
        self.loop.put_hook_first(self.state.partitions.commit)

    def _make_state(self) -> BrokerState:
        nothing, clock = cast(Any, None), self.clock
        loop, files = cast(Any, self.loop), cast(Any, self.files)

        def now_ms() -> int:
            return int(clock.now_ms)

        return BrokerState(
            broker_id=self.number,
            datacenter="simulated",
            cluster_id="simulated",
            config=self._config,
            loop=loop,
            partitions=Partitions(files, self.loop.call_later, now_ms),
            control=cast(Any, self.control),
            codec=nothing,
            topics=nothing,
            on_demand=nothing,
            lookups=Lookups(files, self.loop.call_later, now_ms),
            cold_reads=ColdReads(files),
            clock_ms=self._wall_ms,
            expiry_clock=ExpiryClock(self._wall_ms, now_ms),
            monotonic_ms=now_ms,
            data_dir=self.folder,
        )

    def _make_replication(self) -> Replication:
        with put(replication_room, "Peers", lambda *_, **__: SimPeers(self)):
            return Replication(
                self.state,
                self._directory,
                cast(Any, self.files),
                cast(Any, self.control),
                self.registry,
            )

    # --- start ---

    def start(self) -> None:
        """Begins as soon as ZooKeeper answers."""
        self.loop.wake(self._begin)

    def _begin(self) -> None:
        try:
            self._watch.open_logs()
        except CoordinationError:
            self.loop.call_later(RETRY_MS, self._begin)
            return
        self.replication.manager.when_idle(lambda: self.control.submit(self._register, self._registered))

    def _register(self) -> dict[str, TopicState]:
        self._ageing.check()
        registration = BrokerRegistration(
            self.number,
            f"10.0.0.{self.number}",
            9092,
            "simulated",
            directory_id=self._directory.directory_id,
        )
        self._membership.remove_predecessor(registration)
        self._offline_news.begin(self.number)
        topics = self.registry.list()
        self._brokers.register(registration, wait_s=0)
        return topics

    def _registered(self, topics: dict[str, TopicState] | None, error: Exception | None) -> None:
        if topics is None:
            self.control.submit(self._register, self._registered)
            return
        self.is_registered = True
        self.replication.manager.begin(topics)
        self._ageing.begin(lambda _, call: self.loop.every(AGE_INTERVAL_MS, call), self.control)
        self._watch.start()
        self._offline_news.start()
        self.controller.start()

    def _open_listener(self) -> None:
        self.network.hosts.setdefault(self.number, Host(self.life, self.service, self.loop.wake))

    # --- what happens to it ---

    def high_watermark(self, topic: str, partition: int = 0) -> int:
        """Returns what this broker knows of it, as leader or as follower; 0 if its log is not open."""
        led = self.state.partitions.get(topic, partition)
        if led is not None:
            return led.visible_address
        followed = self.replication.followed.get(PartitionName(topic, partition))
        return 0 if followed is None else followed.high_watermark

    def stop(self) -> None:
        """SIGSTOP."""
        self.life.is_stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.clock.go_on(self.life)

    def crash(self, *, is_reset: bool = False) -> None:
        """SIGKILL: nothing is flushed. `is_reset`: its kernel lives on, and ends its connections."""
        self.life.is_dead = True
        host = self.network.hosts.pop(self.number, None)
        if host is not None and is_reset:
            host.reset_connections()
        self.session.disconnect()
        for partition in self.state.partitions:
            partition.log.abandon()
        for followed in self.replication.followed:
            followed.log.abandon()
        self._directory.close()

    def leave(self, stopped: Callable[[], None]) -> None:
        """SIGTERM, as `Broker._leave` and `_shut_down`; `stopped` is called in the end."""
        self.is_leaving = True

        def give_away() -> None:
            settings, offline = config_of(self.state.config), self.state.view.offline
            departure.announce_and_give_away(self.registry, self._brokers, self.number, settings, offline)

        def stop() -> None:
            self.state.partitions.commit()
            if self.session.is_connected:
                self.session.close()
            self.close()
            stopped()

        def left(_: object, error: Exception | None) -> None:
            raise_unexpected(error)
            self.loop.call_later(self.clock.between(0.0, LED_MAX_MS), stop)

        self.loop.post(lambda: self.control.submit(give_away, left))

    def close(self) -> None:
        """Ends a life in order: at a shutdown, and in the end of the world, so that the files can be read."""
        if self.life.is_dead:
            return
        try:
            self.replication.close()
        except LogError as error:
            _quiet.info("closing broker %d: %s", self.number, error)
        self.crash(is_reset=True)
