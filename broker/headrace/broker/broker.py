"""A whole broker put together: directory, session with ZooKeeper, event loop, partitions, listeners.

Owns the order of starting and stopping. The parts know nothing of one another beyond what they get here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.broker.cluster_watch import ClusterWatch, seen_controller
from headrace.broker.cold_reads import ColdReads
from headrace.broker.disk_age import DiskAgeing
from headrace.broker.disk_guard import CHECK_INTERVAL_MS, DiskGuard
from headrace.broker.disk_guard import SETTING as DISK_SETTING
from headrace.broker.fair_workers import UPKEEP, FairWorkers, OwnJobs
from headrace.broker.front import FrontService
from headrace.broker.groups.expiry import OffsetExpiry
from headrace.broker.groups.fencing import registered
from headrace.broker.groups.room import GroupRoom
from headrace.broker.groups.store import GroupStore
from headrace.broker.handlers.groups import GroupService
from headrace.broker.handlers.init_producer_id import ProducerIds
from headrace.broker.handlers.leadership import LeadershipService
from headrace.broker.handlers.offsets import OffsetService
from headrace.broker.leadership.config_of import config_of
from headrace.broker.leadership.controller import Controller
from headrace.broker.leadership.departure import LED_WAIT_MAX_S, depart, departing
from headrace.broker.lookups import Lookups
from headrace.broker.loop import EventLoop
from headrace.broker.membership import LEAVE_WAIT_MAX_S, Membership
from headrace.broker.network.connection_limits import ConnectionLimits, leave_descriptors
from headrace.broker.network.listening import Listener
from headrace.broker.network.peers import Peers
from headrace.broker.network.server import Server
from headrace.broker.on_demand import TopicsOnDemand
from headrace.broker.options import Address, BrokerOptions
from headrace.broker.partitions import Partitions
from headrace.broker.promise import Promise
from headrace.broker.pulse import Pulse
from headrace.broker.replicas.offline_news import OfflineNews
from headrace.broker.replicas.replication import Replication
from headrace.broker.scrubber import Scrubber
from headrace.broker.service import BrokerService
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.settings.dynamic import BrokerSettings
from headrace.broker.settings.groups import BYTES_MAX, NODES_MAX
from headrace.broker.state import BrokerState
from headrace.broker.topics import TopicAdmin
from headrace.broker.workers import Jobs, Workers
from headrace.coordination.broker_configs import BrokerConfigRegistry
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.disk_ages import DiskAges
from headrace.coordination.errors import NodeHeldError
from headrace.coordination.fronts import Front
from headrace.coordination.offline_logs import OfflineLogRegistry
from headrace.coordination.producer_ids import allocate_block
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry, TopicState
from headrace.log.directory import LogDirectory
from headrace.process.command_line import descriptor_limit

logger = logging.getLogger(__name__)

CONTROL_THREADS: Final = 8
CODEC_THREADS: Final = 1  # more would only take CPU from the loop
DEREGISTER_WAIT_MAX_S: Final = 3.0
# How long a broker that stops waits: for other brokers' responses to what it passed on, for clients to take
# their last responses.
PASSED_WAIT_MAX_S: Final = 5.0
FAREWELL_WAIT_MAX_S: Final = 4.0
PRODUCER_ID_BLOCK: Final = 1000


class Broker:
    """`run` serves until `stop` is called; `on_ready` gets the address that clients see."""

    def __init__(self, options: BrokerOptions, on_ready: Callable[[Address], None]) -> None:
        self._options = options
        self._on_ready = on_ready
        self._config = BrokerConfig(options.settings)
        self._failure: Exception | None = None
        self._loop, self._pulse = EventLoop(), Pulse()
        self._directory = LogDirectory(options.data_dir)
        self._directory.claim(options.broker_id)
        self._server = Server(
            self._loop, leave_descriptors(ConnectionLimits.of(self._config.__getitem__), descriptor_limit())
        )
        self._session = ZooKeeperSession(
            options.zookeeper,
            timeout_s=self._config["zookeeper.session.timeout.ms"] / 1000,
            name=f"broker-{options.broker_id}",
        )
        self._leaving = self._is_ready = False
        self._scrubber = self._make_scrubber()
        self._files = Workers("files", self._loop.post)
        self._control = FairWorkers(Workers("control", self._loop.post, CONTROL_THREADS), CONTROL_THREADS)
        self._own_work = OwnJobs(self._control)
        self._brokers = BrokerRegistry(self._session)
        self._topics = TopicRegistry(self._session)
        admin = self._topic_admin()
        self._state = BrokerState(
            broker_id=options.broker_id,
            datacenter=options.datacenter,
            cluster_id=f"headrace-{options.datacenter}",
            config=self._config,
            loop=self._loop,
            partitions=Partitions(self._files, self._loop.call_later),
            control=self._control,
            codec=FairWorkers(Workers("codec", self._loop.post, CODEC_THREADS), CODEC_THREADS),
            topics=admin,
            on_demand=TopicsOnDemand(admin, self._control, self._count_topics, self._when),
            lookups=Lookups(self._files, self._loop.call_later),
            cold_reads=ColdReads(self._files),
            data_dir=options.data_dir.absolute(),
            damage=self._scrubber.damage,
        )
        self._serve_settings()
        self._disk = self._guard_disk()
        self._controller = self._stand_for_controller()
        self._offline_news = self._announce_offline()
        self._membership = self._join()
        ages, own_id = DiskAges(self._session), options.broker_id
        self._ageing = DiskAgeing(self._directory, ages, own_id, self._state.expiry_clock)
        self._replication = self._replicate()
        producer_ids = ProducerIds(self._own_work, lambda: allocate_block(self._session, PRODUCER_ID_BLOCK))
        self._service = BrokerService(self._state, producer_ids)
        LeadershipService(self._state, self._topics).serve(self._service)
        upkeep = OwnJobs(self._control, UPKEEP)
        store = self._store_groups(upkeep)
        self._watch = self._watch_cluster(store, self._serve_groups(store, upkeep))
        self._listener = self._server.bind(*options.listen, self._service)
        self._peers = Peers(self._loop, bound=self._server.connections.bound, descriptors=descriptor_limit())
        self._front = self._bind_front(producer_ids)

    def run(self) -> None:
        """Serves until stopped. Raises the error that made starting impossible."""
        if not self._session.start_unless(lambda: self._loop.is_stopping):
            return
        # Writes come before responses, and responses before the next wait.
        self._loop.put_hook_first(self._state.partitions.commit)
        self._watch.open_logs()
        self._replication.manager.warn_of_strays()
        self._replication.manager.when_idle(lambda: self._own_work.submit(self._register, self._registered))
        self._disk.check()
        self._loop.every(CHECK_INTERVAL_MS, self._disk.check)
        self._pulse.begin(self._loop.every)
        self._scrubber.start()
        try:
            self._loop.run()
        finally:
            self._shut_down()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ends `run` cleanly, from any thread or a signal handler: gives its partitions away and leaves the
        balancer, unless it is called again; finishes what was requested."""
        if self._leaving or not self._is_ready:
            self._loop.stop()
        else:
            self._leaving = True
            self._loop.post(self._leave)

    def status(self) -> dict[str, Any]:
        """Returns figures for the status page. Any thread."""
        return {
            "broker": self._options.broker_id,
            "datacenter": self._options.datacenter,
            "partitions": len(self._state.partitions),
            "followed": len(self._replication.followed),
            "offline": self._state.offline_report(),
            **self._state.view.lacking(self._options.broker_id),
            "connections": self._server.status(),
            "disk": self._disk.status(),
            "clock": self._state.expiry_clock.status(),
            "loop": self._pulse.status(),
        }

    def _bind_front(self, producer_ids: ProducerIds) -> Listener | None:
        options = self._options
        if options.front_listen is None:
            return None
        advertised = options.front_advertise or options.front_listen
        front = FrontService(self._state, producer_ids, advertised, self._peers)
        return self._server.bind(*options.front_listen, front)

    def _serve_settings(self) -> None:
        registry = BrokerConfigRegistry(self._session)
        self._state.broker_settings = BrokerSettings(registry, lambda: self._state.view.known_brokers())

    def _make_scrubber(self) -> Scrubber:
        config = self._config
        rate_bytes_per_s, interval_ms = config["log.scrub.bytes.per.second"], config["log.scrub.interval.ms"]
        return Scrubber(self._options.data_dir, rate_bytes_per_s, interval_ms)

    def _guard_disk(self) -> DiskGuard:
        reserve_bytes = self._config[DISK_SETTING]
        return DiskGuard(self._options.data_dir, reserve_bytes, self._files, self._state.refuse_appends)

    def _join(self) -> Membership:
        return Membership(self._options.data_dir, self._session, self._controller, self._offline_news.begin)

    def _replicate(self) -> Replication:
        made = Replication(self._state, self._directory, self._files, self._own_work, self._topics)
        self._state.followed = made.stored
        return made

    def _stand_for_controller(self) -> Controller:
        interval_s: int = self._config["leader.imbalance.check.interval.seconds"]
        return Controller(
            self._session,
            self._options.broker_id,
            seen_controller(self._state),
            config_of(self._config),
            rebalance_interval_s=interval_s if self._config["auto.leader.rebalance.enable"] else None,
            topics=self._topics,
        )

    def _announce_offline(self) -> OfflineNews:
        news = OfflineNews(
            OfflineLogRegistry(self._session), self._own_work, self._loop.call_later, self._state.own_offline
        )
        self._state.offline_changed = news.changed
        return news

    def _store_groups(self, upkeep: Jobs) -> GroupStore:
        room = GroupRoom(self._session, self._config[NODES_MAX], self._config[BYTES_MAX])
        return GroupStore(self._session, self._control, lambda: registered(self._state), upkeep, room)

    def _serve_groups(self, store: GroupStore, upkeep: Jobs) -> GroupService:
        self._state.keep = self._server.connections.bound.keep  # for what waits for ZooKeeper
        groups = GroupService(self._state, store)
        groups.serve(self._service, OffsetService(groups.coordinator, store, groups.when_known))
        OffsetExpiry(self._session, self._state, groups.coordinator, upkeep).begin()
        return groups

    def _watch_cluster(self, store: GroupStore, groups: GroupService) -> ClusterWatch:
        return ClusterWatch(
            self._session,
            self._topics,
            self._state,
            self._controller,
            self._replication,
            groups=groups,
            store=store,
            registered=self._open_listeners,
            is_own=self._is_own,
            displaced=self._end_displaced,
        )

    def _topic_admin(self) -> TopicAdmin:
        def bounds_ms() -> tuple[int, int]:
            return self._state.expiry_clock.bounds_ms()

        return TopicAdmin(self._topics, self._config, lambda: self._state.view, self._serves, bounds_ms)

    def _serves(self, topic: str, index: int) -> bool:
        return self._state.partitions.get(topic, index) is not None

    def _count_topics(self) -> int:
        return len(self._state.view.topics)

    def _when(self, reached: Callable[[], bool], deadline_s: float) -> Promise[None]:
        return self._state.when(reached, deadline_s)

    # --- starting ---

    @property
    def _advertised(self) -> Address:
        host, port = self._options.advertise or self._listener.address
        return host, port or self._listener.address[1]

    @property
    def _registration(self) -> BrokerRegistration:
        host, port = self._advertised
        return BrokerRegistration(
            self._options.broker_id,
            host,
            port,
            self._options.datacenter,
            self._config["broker.rack"],
            directory_id=self._directory.directory_id,
        )

    def _is_own(self, found: BrokerRegistration) -> bool:
        """Whether a registration under this broker's id is of this process, or of one before it."""
        return found.is_of_same_process(self._registration)

    def _end_displaced(self, other: BrokerRegistration) -> None:
        """Ends this broker, whose session was lost: another process has its id since, and what it led."""
        self._failure = NodeHeldError(
            f"the broker at {other.host}:{other.port} has been registered under this id since this one's "
            "session ended; two brokers cannot have one id: delete one of them, or give it another id"
        )
        self._loop.stop()

    def _register(self) -> Mapping[str, TopicState]:
        """Registers this broker in ZooKeeper; returns the topics of just before. Called on a control thread.

        Until then others may have made the process before this one a leader, whose registration they saw.
        """
        self._ageing.check()
        registration = self._registration
        own = self._front and self._options.front_address(self._front.address)
        front = Front(self._options.broker_id, *own) if own else None
        self._membership.remove_predecessor(registration)
        topics = self._topics.list()
        self._membership.register(registration, front)
        return topics

    def _registered(self, topics: Mapping[str, TopicState] | None, error: Exception | None) -> None:
        if topics is None:
            self._failure = error
            self._loop.stop()
            return
        self._replication.manager.begin(topics)
        self._ageing.begin(self._loop.every, self._own_work)
        self._watch.start()
        self._offline_news.start()

    def _open_listeners(self) -> None:
        """Serves clients from now on: this broker sees its own registration."""
        if self._is_ready:
            return
        self._is_ready = True
        self._listener.start()
        if self._front is not None:
            self._front.start()
        logger.info(
            "broker %d serves %s:%d, %d partitions",
            self._state.broker_id,
            *self._advertised,
            len(self._state.partitions),
        )
        self._on_ready(self._advertised)

    # --- stopping ---

    def _leave(self) -> None:
        """Gives partitions to other leaders and withdraws the front, and serves until both are done: then
        `run` ends."""
        broker_id, view, served = self._state.broker_id, self._state.view, self._state.topics.served_by_leader
        config = config_of(self._config)
        gives_away = self._config["controlled.shutdown.enable"]
        lasting = view.brokers.keys() - view.stopping
        has_some = gives_away and bool(
            departing(broker_id, view.topics.values(), lasting, config, view.offline)
        )
        if not has_some and self._membership.held_front is None:
            self._loop.stop()
            return
        logger.info("broker %d leaves", broker_id)
        self._loop.call_later((LEAVE_WAIT_MAX_S + LED_WAIT_MAX_S) * 1000, self._loop.stop)

        def leave() -> list[str]:
            self._membership.withdraw_front()
            if gives_away:
                depart(self._topics, self._brokers, broker_id, config, view.offline, served)
            return self._membership.leave_balancers(broker_id)

        self._own_work.submit(leave, self._left)

    def _left(self, balancers: list[str] | None, error: Exception | None) -> None:
        if error is not None:
            logger.warning("leaving: %s", error)
        elif balancers:
            logger.warning("balancer %s still sends connections; stopping nevertheless", ", ".join(balancers))
        self._loop.stop()

    def _shut_down(self) -> None:
        logger.info("broker %d stops", self._state.broker_id)
        self._scrubber.stop()
        self._server.stop_accepting()
        self._server.stop_serving()
        deregistering = threading.Thread(target=self._membership.leave, daemon=True)
        deregistering.start()
        checks = self._state.checks
        self._turn_while(lambda: bool(checks.unfinished) or not self._peers.is_idle, PASSED_WAIT_MAX_S)
        checks.stop()
        self._peers.close()
        self._replication.stop_following()
        self._state.partitions.commit()
        self._files.stop()
        self._loop.turn(0)
        self._replication.close()
        self._server.send_all()
        self._server.end_connections()
        self._turn_while(lambda: not self._server.is_empty, FAREWELL_WAIT_MAX_S)
        self._server.close()
        deregistering.join(DEREGISTER_WAIT_MAX_S)
        self._directory.close()

    def _turn_while(self, condition: Callable[[], bool], wait_max_s: float) -> None:
        deadline_s = time.monotonic() + wait_max_s
        while condition() and (left_s := deadline_s - time.monotonic()) > 0:
            self._loop.turn(left_s)
