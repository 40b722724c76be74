"""Units as resources: the base class of all kinds.

Owns how a unit is read, imported and deleted. `unit_planning` plans it, `unit_applying` applies it; the kinds
are in `units`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from headrace.agent.errors import AgentRefusedError, AgentUnreachableError
from headrace.provider import holdings
from headrace.provider.attributes import BlockSchema
from headrace.provider.holdings import ALLOW_DATA_LOSS, Holdings
from headrace.provider.planning import ResourceChange, ResourcePlan
from headrace.provider.problems import INTERRUPTED, Problem, ResourceError
from headrace.provider.resource import Resource, ResourceCall
from headrace.provider.unit_applying import applied, is_adopted, put_unit, reported
from headrace.provider.unit_kind import UnitKind
from headrace.provider.unit_planning import plan_unit
from headrace.provider.unit_problems import is_unreachable, left_behind, unreachable
from headrace.provider.values import Values
from headrace.site.errors import SiteError

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient

# In the private data of a planned replacement: whether the new unit is on another host.
MOVES: Final = "moves"


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
        plan = plan_unit(self.kind, self.context, change)
        if plan.replaces:
            call.private[MOVES] = "host" in plan.replaces
        return plan

    def plan_deletion(self, call: ResourceCall, prior: Values) -> None:
        if self.kind.holds_data and not prior.get("allow_data_loss"):
            self.refuse_if_it_holds_data(prior)

    def refuse_if_it_holds_data(self, state: Values) -> None:
        """Raises `ResourceError` if the unit holds data, or if its data cannot be measured."""

    # --- applying ---

    def create(self, call: ResourceCall, planned: Values) -> Values:
        client = self._client(planned)
        was_there = is_adopted(self.kind, call, client, planned)
        try:
            return self._put(call, client, planned, None)
        except ResourceError as error:
            if not was_there:
                raise
            # In no state: Terraform would destroy it, and this apply has not made it. The next one adopts it.
            raise ResourceError(*error.problems) from error

    def update(self, call: ResourceCall, prior: Values, planned: Values) -> Values:
        try:
            return self._update(call, prior, planned)
        except AgentUnreachableError as error:
            own = {ALLOW_DATA_LOSS.name, *(attribute.name for attribute in self.kind.own)}
            changed = {name for name, value in planned.items() if value != prior.get(name)}
            if not is_unreachable(prior) or not changed & own or changed - own - {"ready", "drift"}:
                raise
            # Terraform's state alone has these, and a deletion asks them.
            call.warn_unreachable(f"{self.type_name} {prior['id']}", error)
            return unreachable(planned)

    def _update(self, call: ResourceCall, prior: Values, planned: Values) -> Values:
        client, kind = self._client(planned), self.kind
        is_same = kind.configuration(prior) == kind.configuration(planned)
        if is_same and prior["ready"] and not prior["drift"]:
            return applied(planned, client.unit(planned["name"]))
        if not kind.one_at_a_time:
            return self._put(call, client, planned, prior)
        return self.change_one_at_a_time(call, client, planned, prior)

    def change_one_at_a_time(
        self, call: ResourceCall, client: AgentClient, planned: Values, prior: Values
    ) -> Values:
        """Changes one of the units that are changed one after another."""
        with self.context.slots.hold(f"{planned['datacenter']} {self.kind.name}", planned["name"]):
            if call.stopping.is_set():
                raise ResourceError(INTERRUPTED, state=prior)
            return self._put(call, client, planned, prior)

    def delete(self, call: ResourceCall, prior: Values) -> None:
        self.plan_deletion(call, prior)
        self.remove(call, prior)

    def remove(self, call: ResourceCall, prior: Values) -> None:
        """Deletes the unit from its host. A host that does not answer keeps it if the unit moves to another
        one, or if the provider's configuration has given the host up."""
        is_given_up = not self.context.agents.has(prior["host"])
        try:
            if not is_given_up:
                self._client(prior).delete(prior["name"])
                return
        except AgentUnreachableError:
            if not call.private.get(MOVES):
                raise
        self.check_gone(call, prior)
        call.problems.append(left_behind(prior))

    def check_gone(self, call: ResourceCall, prior: Values) -> None:
        """Raises `ResourceError` if a unit whose host does not answer must not be made again elsewhere."""

    def _put(self, call: ResourceCall, client: AgentClient, planned: Values, prior: Values | None) -> Values:
        return put_unit(self.kind, call, client, planned, prior, timeout_s=self.context.ready_timeout_s)

    # --- reading ---

    def read(self, call: ResourceCall, state: Values) -> Values | None:
        self.context.known.add(state["id"])
        if not self.context.agents.has(state["host"]):
            return unreachable(state)
        try:
            report = self._client(state).unit(state["name"])
        except AgentUnreachableError as error:
            call.warn(
                f"{self.type_name} {state['id']} could not be read",
                f"{error}. If the host is lost for ever, give the unit another `host`: an apply makes it "
                "there.",
            )
            return unreachable(state)
        except AgentRefusedError as error:
            self.context.known.discard(state["id"])
            if error.code == "unit_unknown":
                return None
            raise
        if report.kind != self.kind.name:
            text = f"Host {state['host']} now has a {report.kind} of that name, which Terraform leaves alone."
            call.warn(f"{self.type_name} {state['id']} no longer exists", text)
            self.context.known.discard(state["id"])
            return None
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
        if not self.context.agents.has(state["host"]):
            text = f"It does not answer: {cause}. The provider's `agents` does not have its host."
            raise holdings.unknown(what, text) from cause
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
