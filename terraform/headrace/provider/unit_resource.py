"""Units as resources: the base class of all kinds.

Owns how a unit is read, imported and deleted. `unit_planning` plans it, `unit_applying` applies it; the kinds
are in `units`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from headrace.agent.errors import AgentRefusedError
from headrace.provider import holdings
from headrace.provider.attributes import BlockSchema
from headrace.provider.holdings import Holdings
from headrace.provider.planning import ResourceChange, ResourcePlan
from headrace.provider.problems import INTERRUPTED, Problem, ResourceError
from headrace.provider.resource import Resource, ResourceCall
from headrace.provider.unit_applying import applied, check_name_free, put_unit, reported
from headrace.provider.unit_kind import UnitKind
from headrace.provider.unit_planning import plan_unit
from headrace.provider.values import Values
from headrace.site.errors import SiteError

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient


class UnitResource(Resource):
    """One kind of unit."""

    kind: ClassVar[UnitKind]
    import_id = "`HOST/NAME`, such as `local/east-zookeeper`"

    @classmethod
    def get_schema(cls) -> BlockSchema:
        return cls.kind.schema

    def validate(self, config: Values) -> list[Problem]:
        return self.kind.problems(config)

    def plan(self, call: ResourceCall, change: ResourceChange) -> ResourcePlan:
        return plan_unit(self.kind, self.context, change)

    def plan_deletion(self, call: ResourceCall, prior: Values) -> None:
        if self.kind.holds_data and not prior.get("allow_data_loss"):
            self.refuse_if_it_holds_data(prior)

    def refuse_if_it_holds_data(self, state: Values) -> None:
        """Raises `ResourceError` if the unit holds data, or if its data cannot be measured."""

    # --- applying ---

    def create(self, call: ResourceCall, planned: Values) -> Values:
        client = self._client(planned)
        check_name_free(self.kind, call, client, planned)
        return self._put(call, client, planned, None)

    def update(self, call: ResourceCall, prior: Values, planned: Values) -> Values:
        client, kind = self._client(planned), self.kind
        is_same = kind.configuration(prior) == kind.configuration(planned)
        if is_same and prior["ready"] and not prior["drift"]:
            return applied(planned, client.unit(planned["name"]))
        if not kind.one_at_a_time:
            return self._put(call, client, planned, prior)
        with self.context.slots.hold(f"{planned['datacenter']} {kind.name}", planned["name"]):
            if call.stopping.is_set():
                raise ResourceError(INTERRUPTED, state=prior)
            return self._put(call, client, planned, prior)

    def delete(self, call: ResourceCall, prior: Values) -> None:
        self.plan_deletion(call, prior)
        self._client(prior).delete(prior["name"])

    def _put(self, call: ResourceCall, client: AgentClient, planned: Values, prior: Values | None) -> Values:
        return put_unit(self.kind, call, client, planned, prior, timeout_s=self.context.ready_timeout_s)

    # --- reading ---

    def read(self, call: ResourceCall, state: Values) -> Values | None:
        client = self._client(state)
        try:
            report = client.unit(state["name"])
        except AgentRefusedError as error:
            if error.code == "unit_unknown":
                return None
            raise
        if report.kind != self.kind.name:
            text = f"Host {state['host']} now has a {report.kind} of that name, which Terraform leaves alone."
            call.warn(f"{self.type_name} {state['id']} no longer exists", text)
            return None
        self.context.known.add(state["id"])
        return {**state, **self.kind.values_of(report.configuration, state), **reported(report)}

    def import_(self, call: ResourceCall, identity: str) -> Values:
        host, name = self.split_import_id(identity)
        report = self._client({"host": host}).unit(name)
        if report.kind != self.kind.name:
            types = {unit.kind.name: unit.type_name for unit in UnitResource.__subclasses__()}
            text = f"It is a {report.kind}: import it as headrace_{types.get(report.kind, report.kind)}."
            raise ResourceError(Problem(f"Unit {identity} is not a {self.type_name}", text))
        values = {"host": host, "name": name, "id": identity, **reported(report)}
        if self.kind.holds_data:
            values["allow_data_loss"] = False
        values |= {attribute.name: attribute.default for attribute in self.kind.own}
        return {**values, **self.kind.values_of(report.configuration, {})}

    def data_on_disk(self, state: Values, what: str, cause: Exception) -> Holdings:
        """Returns the size of the unit's data folder, for a unit that does not answer because of `cause`.

        Raises `ResourceError` if the agent does not answer either.
        """
        try:
            found = self._client(state).data(state["name"])
        except SiteError as error:
            if isinstance(error, AgentRefusedError) and error.code == "unit_unknown":
                return Holdings(0, "")
            text = f"It does not answer: {cause}. Its host's agent does not answer either: {error}."
            raise holdings.unknown(what, text) from error
        where = f"on disk, in {found.directory} of host {state['host']} (it does not answer)"
        return Holdings(found.size_bytes, where)

    def _client(self, values: Values) -> AgentClient:
        return self.context.agents.client_now(values["host"])
