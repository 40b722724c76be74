"""What ZooKeeper says of the cluster, told to the parts of this broker: topics, brokers and their settings,
logs that are offline, who is controller.

The controller's part hears of it on the session's callback thread, which may wait for ZooKeeper; all others
do on the loop's thread. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.broker.cluster import NO_BROKER
from headrace.broker.groups.store import GroupStore
from headrace.broker.handlers.groups import GroupService
from headrace.broker.leadership.controller import Controller
from headrace.broker.replicas.replication import Replication
from headrace.broker.state import BrokerState
from headrace.coordination import znodes
from headrace.coordination.broker_configs import BrokerConfigRegistry, BrokerConfigs
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.offline_logs import OfflineLogRegistry, OfflineNames
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry, TopicState

Topics = Mapping[str, TopicState]

Creation = tuple[int, int]
"""When the topics' own node was created: a transaction, and ZooKeeper's time of day in ms. Another one means
that ZooKeeper lost its data; without the time it could be the same, as transactions are counted from 1."""
NEVER: Final[Creation] = (0, 0)


def seen_controller(state: BrokerState) -> Callable[[int | None], None]:
    """Returns what is called with the id of each new controller, on the session's callback thread."""

    def see(broker_id: int) -> None:
        state.view = state.view.with_controller(broker_id)

    def seen(broker_id: int | None) -> None:
        state.loop.post(lambda: see(NO_BROKER if broker_id is None else broker_id))

    return seen


@dataclass(slots=True)
class ClusterWatch:
    """`topics`: the registry that the parts share, because it caches. `registered` is called on the loop's
    thread, whenever the brokers have changed and this broker is one of them; `displaced` instead, if another
    process is registered under this broker's id, which `is_own` tells: with the other's broker epoch this
    broker would be believed in its name, and would lead what was given to it.
    """

    session: ZooKeeperSession
    topics: TopicRegistry
    state: BrokerState
    controller: Controller
    replication: Replication
    groups: GroupService
    store: GroupStore
    registered: Callable[[], None]
    is_own: Callable[[BrokerRegistration], bool]
    displaced: Callable[[BrokerRegistration], None]
    _created: Creation = NEVER

    def open_logs(self) -> None:
        """Reads the topics for the first time, and opens this broker's logs: before it registers, and before
        the loop turns. Raises `CoordinationError`; then nothing was opened."""
        self.session.ensure_path(znodes.TOPICS)
        topics, created = self.topics.list(), self._read_creation()
        self.replication.start(topics)
        self._see_topics(topics, created)

    def start(self) -> None:
        """Tells of everything that is there now, and of each change, from now on."""
        BrokerConfigRegistry(self.session).watch(self._configs_changed)
        BrokerRegistry(self.session).watch(self._brokers_changed)
        self.topics.watch(self._topics_changed)
        OfflineLogRegistry(self.session).watch(self._offline_changed)

    # --- on the session's callback thread ---

    def _configs_changed(self, configs: BrokerConfigs) -> None:
        self.state.loop.post(lambda: self._see_configs(configs))

    def _brokers_changed(self, brokers: list[BrokerRegistration]) -> None:
        self.controller.brokers_changed(brokers)
        self.state.loop.post(lambda: self._see_brokers(brokers))

    def _offline_changed(self, names: OfflineNames) -> None:
        self.controller.offline_changed(names)
        self.state.loop.post(lambda: self.state.see_offline(names))

    def _topics_changed(self, topics: dict[str, TopicState]) -> None:
        self.controller.topics_changed(topics)
        created = self._read_creation()
        if created == NEVER:
            self.session.ensure_path(znodes.TOPICS)
        self.state.loop.post(lambda: self._see_topics(topics, created))

    def _read_creation(self) -> Creation:
        stat = self.session.exists(znodes.TOPICS)
        return NEVER if stat is None else (stat.created_zxid, stat.created_ms)

    # --- on the loop's thread ---

    def _see_configs(self, configs: BrokerConfigs) -> None:
        state = self.state
        state.view = state.view.with_broker_configs(configs)
        state.throttles.configure(configs.get(state.broker_id, {}), state.monotonic_ms())

    def _see_brokers(self, brokers: list[BrokerRegistration]) -> None:
        here = [each for each in brokers if each.broker_id == self.state.broker_id]
        if here and not self.is_own(here[0]):
            self.displaced(here[0])
            return
        self.state.view = self.state.view.with_brokers(brokers)
        self.groups.brokers_changed()
        self.replication.brokers_changed()
        if self.state.broker_id in self.state.view.brokers:
            self.registered()

    def _see_topics(self, topics: Topics, created: Creation) -> None:
        may_delete = created == self._created
        self._created = created
        state = self.state
        if topics == state.view.topics:
            return
        gone = state.view.topics.keys() - topics.keys()
        state.view = state.view.with_topics(topics)
        if gone and may_delete and state.view.controller_id() == state.broker_id:
            self.store.topics_deleted(sorted(gone))
        self.replication.topics_changed(topics, may_delete=may_delete)
