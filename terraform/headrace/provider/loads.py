"""Loads as resources: how the Airflow of a host loads a topic into HDFS.

The agent of the host that runs Airflow stores a load. `warehouse.schedule` defines its fields and their
bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tf.types import Unknown

from headrace.agent.errors import AgentRefusedError, AgentUnreachableError
from headrace.provider.agents import NotYetKnownError
from headrace.provider.attributes import Attribute, BlockSchema
from headrace.provider.planning import ResourceChange, ResourcePlan, replaces_of
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.resource import Resource, ResourceCall
from headrace.provider.unit_resource import MOVES
from headrace.provider.values import Values, is_known, to_json
from headrace.warehouse.schedule import DEFAULTS, FIELDS, LoadScheduleError, parse_schedule

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient

# Fields for which null is a value: no schedule (loads by hand only), hours kept for ever.
_NULLABLE: Final = ("schedule", "retention")


def _defaulted(name: str, description: str, type_: str = "string") -> Attribute:
    return Attribute(name=name, type=type_, default=DEFAULTS[name], description=description)


SCHEMA: Final = BlockSchema(
    (
        Attribute(name="host", replaces=True, description="The host that runs Airflow: a key of `agents`."),
        Attribute(name="topic", replaces=True, description="The topic."),
        Attribute(name="owner", description="The team or person responsible for the topic's data."),
        Attribute(
            name="schedule",
            optional=True,
            description="Cron expression, in UTC. Default: loads by hand only.",
        ),
        _defaulted(
            "output",
            "The warehouse's root in HDFS; an hour is stored in OUTPUT/TOPIC/hourly/dt=YYYY-MM-DD/hour=HH.",
        ),
        _defaulted(
            "completeness",
            "The share of an hour's events that must have arrived before the hour is sealed.",
            "number",
        ),
        _defaulted("grace", "How long after its end an hour is closed."),
        _defaulted(
            "audit_delay", "How long the audit counts missing events as late, before it counts them lost."
        ),
        _defaulted("audit_wait", "How long a seal waits for the audit's verdict."),
        Attribute(
            name="retention",
            optional=True,
            description="The age at which hours are deleted, such as 90d. Default: never.",
        ),
        _defaulted("retries", "How often a failed load is retried.", "number"),
        _defaulted("retry_delay", "The delay before each retry."),
        Attribute(name="id", computed=True, description="`host/topic`: also the import id."),
    ),
    description="A topic's load into HDFS, run by a host's Airflow. Deleting it keeps the loaded data.",
)


class LoadResource(Resource):
    """The load of one topic."""

    type_name = "load"
    schema = SCHEMA
    import_id = "`HOST/TOPIC`, such as `local/page-view`"

    def validate(self, config: Values) -> list[Problem]:
        known = {name: value for name, value in _fields_of(config).items() if is_known(value)}
        if not is_known(config.get("owner")):
            known["owner"] = "not known yet"
        topic = config.get("topic")
        try:
            parse_schedule(topic if isinstance(topic, str) else "topic", known)
        except LoadScheduleError as error:
            found = [(each.field or "topic", each.message) for each in error.problems]
            return [Problem(f"Invalid {name}", f"Invalid load: {text}.", (name,)) for name, text in found]
        return []

    def plan(self, call: ResourceCall, change: ResourceChange) -> ResourcePlan:
        planned = dict(change.planned)
        if problems := self.validate(planned):
            raise ResourceError(*problems)
        host, topic = planned["host"], planned["topic"]
        if is_known(host):
            self.context.agents.check_host(host)
        planned["id"] = f"{host}/{topic}" if is_known([host, topic]) else Unknown
        problems = []
        if change.is_creation and is_known(planned) and _identity(planned) not in self.context.known:
            problems = self._dry_run(planned)
        replaces = replaces_of(SCHEMA, change)
        if replaces:
            call.private[MOVES] = "host" in replaces
        return ResourcePlan(planned, replaces, tuple(problems))

    def _dry_run(self, planned: Values) -> list[Problem]:
        """Returns what the agent objects to; nothing if it cannot be reached yet."""
        try:
            client = self.context.agents.client(planned["host"])
            outcome = client.put_load(planned["topic"], _fields_of(planned), dry_run=True)
        except (NotYetKnownError, AgentUnreachableError):
            return []
        except AgentRefusedError as error:
            return [Problem(f"The agent of host {planned['host']} refuses the load", str(error))]
        return [] if outcome == "created" else [_exists(planned, is_same=outcome == "unchanged")]

    def read(self, call: ResourceCall, state: Values) -> Values | None:
        self.context.known.add(_identity(state))
        if not self.context.agents.has(state["host"]):
            return state
        try:
            return {**state, **self._client(state).load(state["topic"])}
        except AgentUnreachableError as error:
            call.warn_unreachable(f"Load {state['id']}", error)
            return state
        except AgentRefusedError as error:
            if error.code == "load_unknown":
                return None
            raise

    def create(self, call: ResourceCall, planned: Values) -> Values:
        client, topic = self._client(planned), planned["topic"]
        outcome = client.put_load(topic, _fields_of(planned), dry_run=True)
        if outcome != "created":
            problem = _exists(planned, is_same=outcome == "unchanged")
            if not problem.is_warning:
                raise ResourceError(problem)
            call.problems.append(problem)
        client.put_load(topic, _fields_of(planned))
        return planned

    def update(self, call: ResourceCall, prior: Values, planned: Values) -> Values:
        self._client(planned).put_load(planned["topic"], _fields_of(planned))
        return planned

    def delete(self, call: ResourceCall, prior: Values) -> None:
        """Deletes the load. As with units, a host that does not answer keeps it if the load moves to another
        one, or if the provider's configuration has given the host up."""
        try:
            if self.context.agents.has(prior["host"]):
                self._client(prior).delete_load(prior["topic"])
                return
        except AgentUnreachableError:
            if not call.private.get(MOVES):
                raise
        call.problems.append(_left_behind(prior))

    def import_(self, call: ResourceCall, identity: str) -> Values:
        host, topic = self.split_import_id(identity)
        fields = self._client({"host": host}).load(topic)
        return {"host": host, "topic": topic, "id": identity, **fields}

    def _client(self, values: Values) -> AgentClient:
        return self.context.agents.client_now(values["host"])


def _identity(values: Values) -> str:
    return f"load {values['host']} {values['topic']}"


def _fields_of(values: Values) -> dict[str, Any]:
    """Returns the load's fields as its agent takes them."""
    fields = {name: to_json(values.get(name)) for name in FIELDS}
    return {name: value for name, value in fields.items() if value is not None or name in _NULLABLE}


def _left_behind(prior: Values) -> Problem:
    host, topic = prior["host"], prior["topic"]
    return Problem(
        f"Load {topic} was not deleted from host {host}",
        f"The agent there does not answer, or the provider's `agents` no longer has it. If {host} comes "
        f"back, its Airflow loads {topic}, too: stop it, or delete the load there.",
        is_warning=True,
    )


def _exists(planned: Values, *, is_same: bool) -> Problem:
    host, topic = planned["host"], planned["topic"]
    if is_same:
        text = "It is as planned: it was created by an interrupted apply or by someone else."
        return Problem(f"Host {host} already loads {topic}; Terraform adopts the load", text, is_warning=True)
    text = f"Someone else created its load. Import it with `terraform import`, as {host}/{topic}."
    return Problem(f"Host {host} already loads {topic}, with other fields", text, ("topic",))
