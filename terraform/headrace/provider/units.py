"""The kinds of units: a resource type for each, with its descriptions and what its deletion would lose.

A new kind is one class here; its attributes and its description come from its model in `agent.configuration`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.agent import configuration
from headrace.coordination.errors import CoordinationError
from headrace.provider import draining, holdings, lacking, replacing, restarting, same_id
from headrace.provider.clusters import PLAN_TIMEOUT_S, admin_client
from headrace.provider.holdings import Holdings
from headrace.provider.planning import ResourceChange, ResourcePlan
from headrace.provider.problems import INTERRUPTED, Problem, ResourceError, seconds_problem
from headrace.provider.replacing import SAME_BROKER
from headrace.provider.resource import Replacement, ResourceCall
from headrace.provider.unit_kind import UnitKind
from headrace.provider.unit_problems import is_unreachable
from headrace.provider.unit_resource import UnitResource
from headrace.provider.values import Values
from headrace.warehouse.hdfs.errors import HdfsError

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient
    from headrace.client.in_sync import Lack

# ZooKeeper's `preAllocSize` as the agent configures it: the size of a transaction log once there is one.
TRANSACTION_LOG_MIN_BYTES: Final = 1 << 20
TURN_POLL_S: Final = 0.5


class ZooKeeperResource(UnitResource):
    type_name = "zookeeper"
    kind = UnitKind(
        model=configuration.ZooKeeperConfiguration,
        descriptions={"heap_mib_max": "The maximum heap of its JVM, in MiB."},
        replaces=("data_dir",),
        holds_data=True,
        one_at_a_time=True,
    )

    def refuse_if_it_holds_data(self, state: Values) -> None:
        what = f"ZooKeeper {state['name']}"
        try:
            topics = holdings.topics_in(state["listen"], self.context.deleted_topics)
            subjects = self._subjects(state)
        except CoordinationError as error:
            held = self.data_on_disk(state, what, error)
            # Before its first transaction there are only a configuration and an empty snapshot.
            if held.size_bytes >= TRANSACTION_LOG_MIN_BYTES:
                holdings.refuse_if_any(what, held)
            return
        if topics:
            raise holdings.holds_registry(what, topics)
        if subjects:
            raise holdings.holds_schemas(what, subjects)

    def _subjects(self, state: Values) -> list[str]:
        """Returns the subjects whose schemas would be lost. A registry with sources, which leaves in the same
        plan, has copies. Raises `CoordinationError`."""
        if state["listen"] in self.context.copied_schemas:
            return []
        return holdings.subjects_in(state["listen"], self.context.deleted_subjects)


class BrokerResource(UnitResource):
    type_name = "broker"
    kind = UnitKind(
        model=configuration.BrokerConfiguration,
        descriptions={
            "broker_id": "The broker's id, unique in its datacenter.",
            "advertise": "HOST:PORT that clients connect to. Default: `listen`.",
            "front_listen": "HOST:PORT where the balancer connects to; requires `front_advertise`.",
            "front_advertise": "The balancer's address, which producers that connect through it receive.",
            "status": "HOST:PORT of its page, and of its status as JSON. Default: none.",
            "rack": "The rack of the broker: replicas are spread over racks. Default: its host is one.",
            "settings": "Settings by Kafka's names, such as num.partitions.",
        },
        replaces=("broker_id", "zookeeper", "data_dir"),
        listens_at=("listen", "front_listen", "status"),
        holds_data=True,
        one_at_a_time=True,
        own=(draining.DRAIN_TIMEOUT_S,),
    )

    def validate(self, config: Values) -> list[Problem]:
        return super().validate(config) + seconds_problem(config, draining.DRAIN_TIMEOUT_S.name)

    def plan(self, call: ResourceCall, change: ResourceChange) -> ResourcePlan:
        plan = super().plan(call, change)
        if plan.replaces and change.prior is not None:
            call.private[SAME_BROKER] = replacing.is_same_broker(change.prior, change.planned)
        elif change.prior is not None and change.prior["ready"] and not is_unreachable(change.prior):
            call.problems += self.context.drained.warnings(change.prior)
        return plan

    def plan_deletion(self, call: ResourceCall, prior: Values) -> None:
        if same_id.other_broker(prior) is not None:
            return
        # Before it is looked at: of brokers that leave at the same time the last one knows all.
        self.context.leaving_brokers[prior["zookeeper"]].add(int(prior["broker_id"]))
        if not self._is_fetched_again(call, prior):
            super().plan_deletion(call, prior)

    def _is_fetched_again(self, call: ResourceCall, prior: Values) -> bool:
        """Whether the plan makes the broker again, and others have all of its replicas in sync."""
        if not call.private.get(SAME_BROKER):
            return False
        leaving = {*self.context.leaving_brokers[prior["zookeeper"]], int(prior["broker_id"])}
        return replacing.sole_replicas(prior, leaving, self.context.deleted_topics) == []

    def create(self, call: ResourceCall, planned: Values) -> Values:
        same_id.check_free(planned)
        key = (planned["zookeeper"], int(planned["broker_id"]))
        self.context.brokers_being_made.add(key)
        try:
            return self._create(call, planned, key)
        finally:
            self.context.brokers_being_made.discard(key)

    def _create(self, call: ResourceCall, planned: Values, key: tuple[str, int]) -> Values:
        replacement = self.context.replaced_brokers.get(key)
        if replacement is None:
            return super().create(call, planned)
        replacement.begun = True
        # No other broker restarts before this one is in sync again.
        with self.context.slots.hold(f"{planned['datacenter']} {self.kind.name}", planned["name"]):
            try:
                state = super().create(call, planned)
                replacing.wait_until_in_sync(call, state)
            except BaseException:
                replacement.failed = True
                raise
            del self.context.replaced_brokers[key]
            return state

    def change_one_at_a_time(
        self, call: ResourceCall, client: AgentClient, planned: Values, prior: Values
    ) -> Values:
        """Returns when the next one may be changed. The waits are outside of the slot: another one of this
        apply may have to be changed before."""
        timeout_s = self.context.ready_timeout_s
        others = restarting.Others(call, prior, self.context.deleted_topics, timeout_s)
        while True:
            holder = ""
            if others.are_in_sync():
                with (
                    self.context.slots.hold(f"{planned['datacenter']} {self.kind.name}", planned["name"]),
                    restarting.turn(prior) as holder,
                ):
                    if call.stopping.is_set():
                        raise ResourceError(INTERRUPTED, state=prior)
                    if not holder and others.are_in_sync():
                        return self._change_in_turn(call, client, planned, prior)
            others.pause(holder)

    def _change_in_turn(
        self, call: ResourceCall, client: AgentClient, planned: Values, prior: Values
    ) -> Values:
        before = restarting.partitions_in_sync(prior)
        state = self._put(call, client, planned, prior)
        restarting.wait_until_back(call, state, before, self.context.ready_timeout_s)
        return state

    def delete(self, call: ResourceCall, prior: Values) -> None:
        if same_id.other_broker(prior) is not None:
            self.remove(call, prior)
            return
        cluster, making = prior["zookeeper"], self.context.brokers_being_made
        patience = lacking.Patience(prior, lambda broker_id: (cluster, broker_id) in making)
        while not self._delete_in_turn(call, prior, patience):
            if call.stopping.wait(TURN_POLL_S):
                raise ResourceError(INTERRUPTED)

    def _delete_in_turn(self, call: ResourceCall, prior: Values, patience: lacking.Patience) -> bool:
        """Deletes the broker; returns False, and does nothing, while another one is empty that is made again,
        by this apply or by one before it: what both hold would be on one disk less, and one less.
        """
        # Before its turn: what fails in a turn keeps all others from theirs, also the one that is waited for.
        if replacing.is_another_empty(self.context.replaced_brokers, prior):
            return False
        if (lack := self._lack(call, prior)) is not None:
            patience.check(lack)
            return False
        with self.context.slots.hold(f"{prior['datacenter']} {self.kind.name}", prior["name"]):
            if call.stopping.is_set():
                raise ResourceError(INTERRUPTED)
            if replacing.others(self.context.replaced_brokers, prior):
                return False
            self.plan_deletion(call, prior)
            if self._lack(call, prior) is not None:
                return False  # since it was looked at before its turn
            is_made_again = bool(call.private.get(SAME_BROKER))
            if prior.get("allow_data_loss") or self._is_fetched_again(call, prior):
                self.remove(call, prior)
            else:
                self._drain_and_remove(call, prior)
            if is_made_again:
                key = (prior["zookeeper"], int(prior["broker_id"]))
                self.context.replaced_brokers[key] = Replacement(time.monotonic())
            return True

    def _lack(self, call: ResourceCall, prior: Values) -> Lack | None:
        """Returns who lacks replicas of what this broker has, if it would be empty when it is made again."""
        if prior.get("allow_data_loss") or not self._is_fetched_again(call, prior):
            return None
        return lacking.others_lack(prior, self.context.deleted_topics)

    def _drain_and_remove(self, call: ResourceCall, prior: Values) -> None:
        problem = draining.drain_broker(prior, call.stopping)
        if problem:
            holdings.refuse_if_any(f"Broker {prior['name']}", self._held(prior), problem)
        self.remove(call, prior)
        if not problem and (runs_on := draining.forget_drained(prior, call.stopping)) is not None:
            call.problems.append(runs_on)

    def check_gone(self, call: ResourceCall, prior: Values) -> None:
        if call.private.get(SAME_BROKER):
            replacing.wait_until_gone(prior, call.stopping)

    def refuse_if_it_holds_data(self, state: Values) -> None:
        what = f"Broker {state['name']}"
        try:
            held = self._held(state)
        except ResourceError:
            held = None  # neither the broker nor its host's agent answers
        if held is not None and held.is_nothing:
            return
        leaving = set(self.context.leaving_brokers[state["zookeeper"]])
        obstacle = None
        if held is None:
            # It may still be registered, and even lead, until its session ends.
            obstacle = replacing.sole_problem(state, leaving, self.context.deleted_topics)
        obstacle = obstacle or draining.obstacle(state, leaving, self.context.deleted_topics)
        if obstacle is None:
            return
        if held is None:
            raise holdings.unknown(
                what, f"Neither it nor the agent of host {state['host']} answers. {obstacle}"
            )
        holdings.refuse_if_any(what, held, obstacle)

    def _held(self, state: Values) -> Holdings:
        """Returns what the broker holds. Raises `ResourceError` if nobody knows."""
        # Imported here because the import is slow, and only a deletion needs it.
        from headrace.client.errors import ClientError

        what = f"Broker {state['name']}"
        bootstrap = [state["advertise"] or state["listen"]]
        try:
            with admin_client(bootstrap, timeout_s=PLAN_TIMEOUT_S) as admin:
                return holdings.of_broker(admin, int(state["broker_id"]), self.context.deleted_topics)
        except ClientError as error:
            return self.data_on_disk(state, what, error)


class BalancerResource(UnitResource):
    type_name = "balancer"
    kind = UnitKind(
        model=configuration.BalancerConfiguration,
        descriptions={
            "listen": "HOST:PORT that producers connect to.",
            "status": "HOST:PORT of its page, and of its status as JSON.",
            "statistics": "HOST:PORT of HAProxy's own page. Default: none.",
            "engine": "auto (HAProxy where it is installed), haproxy or embedded.",
            "connections_max": "The maximum number of concurrent connections.",
        },
        listens_at=("listen", "status", "statistics"),
        one_at_a_time=True,
    )


class RegistryResource(UnitResource):
    type_name = "registry"
    kind = UnitKind(
        model=configuration.RegistryConfiguration,
        descriptions={
            "sources": "The registries of the datacenters that are mirrored here, DATACENTER=URL each. It "
            "copies their subjects, and asks them for ids that it does not know.",
        },
        one_at_a_time=True,
    )

    def plan_deletion(self, call: ResourceCall, prior: Values) -> None:
        if prior["sources"]:
            self.context.copied_schemas.update(str(prior["zookeeper"]).partition("/")[0].split(","))


class MirrorResource(UnitResource):
    type_name = "mirror"
    kind = UnitKind(
        model=configuration.MirrorConfiguration,
        descriptions={
            "datacenter": "The datacenter that the mirror copies into.",
            "source": "The datacenter that the mirror copies from.",
            "source_bootstrap": "Brokers of the source datacenter.",
            "target_bootstrap": "Brokers of the target datacenter.",
            "target_zookeeper": "The ZooKeeper of the target datacenter.",
            "registry_url": "The schema registry of the target datacenter, for records of gaps.",
            "topics": "A regular expression of the topics to copy. Default: all.",
            "exclude": "A regular expression of topics not to copy.",
        },
        listens_at=("status",),
    )


class AuditorResource(UnitResource):
    type_name = "auditor"
    kind = UnitKind(
        model=configuration.AuditorConfiguration,
        descriptions={
            "bootstrap": "The brokers whose logs it counts.",
            "registry_urls": "Schema registries: its own first, then those of mirrored datacenters.",
            "mirrors_zookeeper": "In a datacenter with mirrors: the ZooKeeper that stores which partition "
            "each one is a copy of.",
            "store": "The audit store's SQLAlchemy URL: this auditor folds the reports of all tiers into it.",
            "keep_days": "How many days the store keeps an hour. Default: 30.",
        },
        listens_at=("status",),
    )


class WarehouseResource(UnitResource):
    type_name = "warehouse"
    kind = UnitKind(
        model=configuration.HdfsConfiguration,
        descriptions={
            "host": "The address that NameNode and DataNode listen on.",
            "rpc_port": "The NameNode's port, of hdfs:// URLs.",
            "http_port": "The NameNode's HTTP port, of WebHDFS.",
            "data_port": "The DataNode's port for data.",
            "data_ipc_port": "The DataNode's port for RPC.",
            "data_http_port": "The DataNode's HTTP port.",
            "settings": "Settings by Hadoop's names.",
        },
        renamed={"host": "listen_host"},
        replaces=("data_dir",),
        listens_at=("host", "rpc_port", "http_port", "data_port", "data_ipc_port", "data_http_port"),
        holds_data=True,
    )

    def refuse_if_it_holds_data(self, state: Values) -> None:
        what = f"Warehouse {state['name']}"
        try:
            held = holdings.of_warehouse(f"http://{state['listen_host']}:{int(state['http_port'])}")
        except HdfsError as error:
            held = self.data_on_disk(state, what, error)
        holdings.refuse_if_any(what, held)


class PostgresqlResource(UnitResource):
    type_name = "postgresql"
    kind = UnitKind(
        model=configuration.PostgresqlConfiguration,
        descriptions={
            "python": "The interpreter of Airflow's environment on the host. Default: the host's own.",
        },
        replaces=("data_dir",),
        listens_at=(),
    )


class AirflowResource(UnitResource):
    type_name = "airflow"
    kind = UnitKind(
        model=configuration.AirflowConfiguration,
        descriptions={
            "component": "api-server, scheduler, dag-processor or triggerer: one resource each.",
            "listen": "HOST:PORT of the api-server, the same for all components.",
            "home": "Airflow's home on the host, the same for all components. Default: in the agent's home.",
            "dags": "The folder of DAGs on the host. Default: headrace's own.",
            "python": "The interpreter of Airflow's environment on the host. Default: the host's own.",
            "database_url": "An SQLAlchemy URL of a database. Default: that of `postgresql`.",
            "postgresql": "The name of the headrace_postgresql of this host whose database it uses. Default: "
            "an SQLite file in `home`.",
        },
        replaces=("component", "home"),
        listens_at=("listen", "component"),
    )


UNIT_RESOURCES: Final = tuple(UnitResource.__subclasses__())
