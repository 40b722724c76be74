"""Units of hosts as resources: put, read and deleted by the host's agent.

Owns what a plan of a unit looks at and how an apply waits. What a kind is told is `unit_kinds`', what it
holds `holdings`'.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, ClassVar, Final

from tf.types import Unknown

from headrace.agent.errors import AgentRefusedError, AgentUnreachableError
from headrace.provider import holdings, unit_kinds
from headrace.provider.agents import NotYetKnownError
from headrace.provider.attributes import Schema
from headrace.provider.clusters import PLAN_TIMEOUT_S, administered
from headrace.provider.holdings import Holdings
from headrace.provider.planning import Change, Plan, replaces_of
from headrace.provider.resource import Call, Resource
from headrace.provider.unit_kinds import UnitKind
from headrace.provider.values import (
    INTERRUPTED,
    ResourceError,
    Trouble,
    Values,
    is_known,
)
from headrace.site.errors import SiteError

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient
    from headrace.agent.report import UnitReport

logger = logging.getLogger(__name__)

# A wait is asked for in slices, so that Ctrl-C is heard between two.
WAIT_SLICE_S: Final = 1.0
LOG_LINES: Final = 15
# ZooKeeper's `preAllocSize` as the agent sets it.
TRANSACTION_LOG_MIN_BYTES: Final = 1 << 20


class UnitResource(Resource):
    """One kind of unit."""

    kind: ClassVar[UnitKind]

    @classmethod
    def get_schema(cls) -> Schema:
        return cls.kind.schema

    def validate(self, config: Values) -> list[Trouble]:
        return self.kind.problems(config)

    # plan

    def plan(self, call: Call, change: Change) -> Plan:
        planned = dict(change.planned)
        troubles = self.kind.problems(planned)
        if any(not each.is_warning for each in troubles):
            raise ResourceError(*troubles)
        if is_known(planned["host"]):
            self.provider.agents.check_host(planned["host"])
        replaces = replaces_of(self.get_schema(), change)
        planned |= _computed(change)
        is_noop = change.prior is not None and planned == change.prior
        if not replaces and not is_noop:
            troubles += self._foreseen(change)
        return Plan(planned, replaces, tuple(troubles))

    def _foreseen(self, change: Change) -> list[Trouble]:
        """What the agent would say to it, if it can be asked already."""
        values = change.planned
        if not (is_known(values["host"]) and is_known(values["name"]) and self.kind.knows_all(values)):
            return []
        try:
            client = self.provider.agents.client(values["host"])
            put = client.put(values["name"], self.kind.told(values), dry_run=True)
        except NotYetKnownError:
            return []
        except AgentUnreachableError as error:
            # The host may be made by this very apply.
            logger.info("not foreseen: %s", error)
            return []
        except AgentRefusedError as error:
            return self._refused(error, values, is_plan=True)
        if change.is_creation and put.outcome != "created" and not self._is_ours(values):
            return [_taken_over(values)] if put.outcome == "unchanged" else [self._taken(values)]
        return []

    def plan_deletion(self, call: Call, prior: Values) -> None:
        if self.kind.holds_data and not prior.get("allow_data_loss"):
            self.check_holds_nothing(prior)

    def check_holds_nothing(self, state: Values) -> None:
        """Raises `ResourceError` when data would be lost, or nobody can tell."""

    # apply

    def create(self, call: Call, planned: Values) -> Values:
        client, name = self._client(planned), planned["name"]
        try:
            foreseen = client.put(name, self.kind.told(planned), dry_run=True).outcome
            if foreseen == "changed" and not self._has_same_configuration(client, planned):
                raise ResourceError(self._taken(planned))
            if foreseen != "created":
                call.troubles.append(_taken_over(planned))
        except AgentRefusedError as error:
            raise ResourceError(*self._refused(error, planned)) from error
        return self._put(call, client, planned, None)

    def update(self, call: Call, prior: Values, planned: Values) -> Values:
        client = self._client(planned)
        if self.kind.told(prior) == self.kind.told(planned) and prior["ready"] and not prior["drift"]:
            return {**planned, **_settled(planned, client.unit(planned["name"]))}
        if not self.kind.stands_in:
            return self._put(call, client, planned, prior)
        # One at a time in a datacenter, each once the one before is ready: nobody loses all brokers at once.
        with self.provider.turns.of(f"{planned['datacenter']} {self.kind.kind}") as turn:
            turn.check(planned["name"])
            if call.stopping.is_set():
                raise ResourceError(INTERRUPTED, state=prior)
            state = self._put(call, client, planned, prior)
            turn.went_well()
            return state

    def delete(self, call: Call, prior: Values) -> None:
        self.plan_deletion(call, prior)
        self._client(prior).delete(prior["name"])

    def _put(self, call: Call, client: AgentClient, planned: Values, prior: Values | None) -> Values:
        name = planned["name"]
        try:
            report = client.put(name, self.kind.told(planned)).unit
        except AgentRefusedError as error:
            raise ResourceError(*self._refused(error, planned), state=prior) from error
        assert report is not None
        deadline = time.monotonic() + self.provider.ready_timeout_s
        while not report.is_ready:
            state = {**planned, **_settled(planned, report), "ready": False}
            if report.has_failed or time.monotonic() >= deadline:
                raise ResourceError(self._not_ready(client, report), state=state)
            if call.stopping.is_set():
                text = (
                    f"Unit {name} is put, and not ready yet: {report.problem}. The next apply waits for it."
                )
                if prior is None:
                    # An error would make Terraform replace it.
                    call.warn("Interrupted", text)
                    return state
                raise ResourceError(Trouble("Interrupted", text), state=state)
            report = _waited(client, name, report)
        return {**planned, **_settled(planned, report)}

    def _not_ready(self, client: AgentClient, report: UnitReport) -> Trouble:
        ended = (
            f"supervisord has given up: {report.note}"
            if report.has_failed
            else f"not within {self.provider.ready_timeout_s:g} s"
        )
        tail = client.log(report.name, lines=LOG_LINES).rstrip() or "(it is empty)"
        return Trouble(
            f"Unit {report.name} is not ready, {ended}",
            f"{report.problem}\n\nThe end of its log, {report.log} on its host:\n\n{tail}",
        )

    # read

    def read(self, call: Call, state: Values) -> Values | None:
        client = self._client(state)
        try:
            report = client.unit(state["name"])
        except AgentRefusedError as error:
            if error.code == "unit_unknown":
                return None
            raise
        if report.kind != self.kind.kind:
            text = f"Host {state['host']} has a {report.kind} of that name now. It is left alone."
            call.warn(f"{self.type_name} {state['id']} is gone", text)
            return None
        self.provider.note_ours(state["id"])
        return {**state, **self.kind.values_of(report.configuration, state), **_reported(report)}

    def import_(self, call: Call, identity: str) -> Values:
        host, slash, name = identity.rpartition("/")
        if not slash or not host or not name:
            raise ResourceError(
                Trouble(
                    f"{identity!r} names no unit",
                    "The import id of a unit is HOST/NAME, such as local/east-broker-1.",
                )
            )
        report = self._client({"host": host}).unit(name)
        if report.kind != self.kind.kind:
            right = f"headrace_{'warehouse' if report.kind == 'hdfs' else report.kind}"
            raise ResourceError(
                Trouble(
                    f"Unit {identity} is no {self.kind.kind}", f"It is a {report.kind}: import it as {right}."
                )
            )
        values = {"host": host, "name": name, "id": identity, **_reported(report)}
        if self.kind.holds_data:
            values["allow_data_loss"] = False
        return {**values, **self.kind.values_of(report.configuration, {})}

    # hands

    def _on_disk(self, state: Values, what: str, reason: str) -> Holdings:
        """What its folder holds, for one that does not answer."""
        try:
            found = self._client(state).data(state["name"])
        except SiteError as error:
            if isinstance(error, AgentRefusedError) and error.code == "unit_unknown":
                return Holdings(0, "")
            raise holdings.refuse_unknown(what, f"{reason} Nor does its host's agent: {error}.") from error
        return Holdings(
            found.size_bytes, f"on disk, in {found.directory} of host {state['host']} (it does not answer)"
        )

    def _client(self, values: Values) -> AgentClient:
        return self.provider.agents.client_now(values["host"])

    def _is_ours(self, values: Values) -> bool:
        return self.provider.is_ours(f"{values['host']}/{values['name']}")

    def _has_same_configuration(self, client: AgentClient, planned: Values) -> bool:
        report = client.unit(planned["name"])
        return report.kind == self.kind.kind and report.configuration == self.kind.canonical(planned)

    def _taken(self, values: Values) -> Trouble:
        identity = f"{values['host']}/{values['name']}"
        return Trouble(
            f"Host {values['host']} has another unit {values['name']}",
            "It was put by somebody else, with another configuration. Take it over by "
            f"`terraform import`, as {identity}; or give this one another name.",
            ("name",),
        )

    def _refused(self, error: AgentRefusedError, values: Values, *, is_plan: bool = False) -> list[Trouble]:
        """What an agent's no means, each part at its attribute."""
        if error.code == "configuration_invalid":
            return [
                self.kind.cannot_be(each["field"], each["value"], each["message"])
                for each in error.details["fields"]
            ]
        if error.code == "conflict":
            return [
                Trouble(
                    f"{each['what']} is taken",
                    f"On host {values['host']} it is taken by {each['held_by']}. "
                    + (
                        "Unless this plan takes it away there, the apply will fail."
                        if is_plan and each["unit"]
                        else "Give this unit another, or end that one."
                    ),
                    self._path_of_value(values, each["what"]),
                    is_warning=is_plan and each["unit"] is not None,
                )
                for each in error.details["conflicts"]
            ]
        return [Trouble(f"The agent of host {values['host']} refuses it", str(error))]

    def _path_of_value(self, values: Values, value: str) -> tuple[str, ...]:
        canonical = self.kind.canonical(values) or {}
        for field, name in self.kind.attribute_names.items():
            if canonical.get(field) == value:
                return (name,)
        return ()


def _taken_over(values: Values) -> Trouble:
    return Trouble(
        f"Unit {values['name']} is there already, and is taken over",
        f"Host {values['host']} has it with this very configuration: an apply that was cut short has made "
        "it, or somebody else.",
        is_warning=True,
    )


def _waited(client: AgentClient, name: str, report: UnitReport) -> UnitReport:
    """The unit a slice later, or once it is ready."""
    try:
        return client.unit(name, wait_s=WAIT_SLICE_S)
    except AgentRefusedError as error:
        if error.code != "not_ready":
            raise
        return type(report).from_json(error.details["unit"])


# The attributes that say where a unit listens.
_WHERE: Final = {
    *("listen", "front_listen", "status", "statistics", "component", "listen_host"),
    *("rpc_port", "http_port", "data_port", "data_ipc_port", "data_http_port"),
}


def _computed(change: Change) -> Values:
    """What is planned for what nobody says: a ready unit without drift."""
    planned, prior = change.planned, change.prior
    known = is_known(planned["host"]) and is_known(planned["name"])
    identity = f"{planned['host']}/{planned['name']}" if known else Unknown
    if prior is None:
        return {"id": identity, "listens": Unknown, "version": Unknown, "ready": Unknown, "drift": []}
    return {
        "id": identity,
        "listens": Unknown if change.changed & _WHERE else prior.get("listens"),
        "version": prior.get("version"),
        "ready": True,
        "drift": [],
    }


def _reported(report: UnitReport) -> Values:
    return {
        "listens": list(report.listens),
        "version": report.version,
        "ready": report.is_ready,
        "drift": [each.message for each in report.drift],
    }


def _settled(planned: Values, report: UnitReport) -> Values:
    """The computed attributes after an apply: as planned where the plan has promised them."""
    said = {**_reported(report), "drift": []}
    return {
        name: planned[name] if planned.get(name) is not None and is_known(planned[name]) else value
        for name, value in said.items()
    }


class ZooKeeper(UnitResource):
    type_name = "zookeeper"
    kind = unit_kinds.ZOOKEEPER

    def check_holds_nothing(self, state: Values) -> None:
        from headrace.coordination.errors import CoordinationError

        what = f"ZooKeeper {state['name']}"
        try:
            topics = holdings.topics_known_to(state["listen"], self.provider.going)
        except CoordinationError as error:
            held = self._on_disk(state, what, f"It does not tell: {error}.")
            # Before its first transaction there are a configuration and an empty snapshot.
            if held.size_bytes >= TRANSACTION_LOG_MIN_BYTES:
                holdings.refuse(what, held)
            return
        if topics:
            raise ResourceError(holdings.registry_of(what, topics))


class Broker(UnitResource):
    type_name = "broker"
    kind = unit_kinds.BROKER

    def check_holds_nothing(self, state: Values) -> None:
        from headrace.client.errors import ClientError

        what = f"Broker {state['name']}"
        try:
            with administered([state["advertise"] or state["listen"]], timeout_s=PLAN_TIMEOUT_S) as admin:
                held = holdings.of_broker(admin, int(state["broker_id"]), self.provider.going)
        except ClientError as error:
            held = self._on_disk(state, what, f"It does not tell: {error}.")
        holdings.refuse(what, held)


class Balancer(UnitResource):
    type_name = "balancer"
    kind = unit_kinds.BALANCER


class Registry(UnitResource):
    type_name = "registry"
    kind = unit_kinds.REGISTRY


class Mirror(UnitResource):
    type_name = "mirror"
    kind = unit_kinds.MIRROR


class Auditor(UnitResource):
    type_name = "auditor"
    kind = unit_kinds.AUDITOR


class Warehouse(UnitResource):
    type_name = "warehouse"
    kind = unit_kinds.WAREHOUSE

    def check_holds_nothing(self, state: Values) -> None:
        from headrace.warehouse.hdfs.errors import HdfsError

        what = f"Warehouse {state['name']}"
        try:
            held = holdings.of_warehouse(f"http://{state['listen_host']}:{int(state['http_port'])}")
        except HdfsError as error:
            held = self._on_disk(state, what, f"It does not tell: {error}.")
        holdings.refuse(what, held)


class Airflow(UnitResource):
    type_name = "airflow"
    kind = unit_kinds.AIRFLOW


UNIT_RESOURCES: Final[tuple[type[UnitResource], ...]] = (
    *(ZooKeeper, Broker, Balancer, Registry),
    *(Mirror, Auditor, Warehouse, Airflow),
)
