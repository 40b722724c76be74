"""Loads as resources: that a topic is loaded into HDFS, when, how complete, and who answers for it.

Owns the way to the agent of the host that runs Airflow. What a load may say is `warehouse.schedule`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tf.types import Unknown

from headrace.agent.errors import AgentRefusedError, AgentUnreachableError
from headrace.provider.agents import NotYetKnownError
from headrace.provider.attributes import Attribute, Schema
from headrace.provider.planning import Change, Plan, replaces_of
from headrace.provider.resource import Call, Resource
from headrace.provider.values import (
    ResourceError,
    Trouble,
    Values,
    is_known,
    plain,
)
from headrace.warehouse.schedule import DEFAULTS, FIELDS, LoadScheduleError, parse_schedule

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient

# A schedule and a retention have no default here: what is not said is a load by hand, hours that are kept.
_NULLABLE: Final = ("schedule", "retention")

SCHEMA: Final = Schema(
    (
        Attribute(name="host", replaces=True, description="The host that runs Airflow: a key of `agents`."),
        Attribute(name="topic", replaces=True, description="The topic."),
        Attribute(name="owner", description="Whom to ask about the topic."),
        Attribute(
            name="schedule", optional=True, description="Cron, in UTC; left out, it is loaded by hand only."
        ),
        Attribute(
            name="output",
            default=DEFAULTS["output"],
            description="The warehouse's root in HDFS; hours are OUTPUT/TOPIC/hourly/YYYY/MM/DD/HH.",
        ),
        Attribute(
            name="completeness",
            type="number",
            default=DEFAULTS["completeness"],
            description="The share of an hour's events that must have arrived before it is sealed.",
        ),
        Attribute(
            name="grace", default=DEFAULTS["grace"], description="How long after its end an hour is closed."
        ),
        Attribute(
            name="audit_delay",
            default=DEFAULTS["audit_delay"],
            description="How long what is missing is taken for late.",
        ),
        Attribute(
            name="audit_wait",
            default=DEFAULTS["audit_wait"],
            description="How long a seal waits for the audit to know.",
        ),
        Attribute(
            name="retention",
            optional=True,
            description="The age at which hours are deleted, such as 90d; left out, never.",
        ),
        Attribute(
            name="retries",
            type="number",
            default=DEFAULTS["retries"],
            description="Of a load that has failed.",
        ),
        Attribute(
            name="retry_delay", default=DEFAULTS["retry_delay"], description="How long before each of them."
        ),
        Attribute(name="id", computed=True, description="`host/topic`, which `terraform import` takes, too."),
    ),
    description="A topic's load into HDFS, by the Airflow of a host. Deleting it leaves what is loaded.",
)


class Load(Resource):
    """One topic's load."""

    type_name = "load"

    @classmethod
    def get_schema(cls) -> Schema:
        return SCHEMA

    def validate(self, config: Values) -> list[Trouble]:
        known = {name: value for name, value in _said(config).items() if is_known(value)}
        if not is_known(config.get("owner")):
            known["owner"] = "not known yet"
        topic = config.get("topic")
        try:
            parse_schedule(topic if isinstance(topic, str) else "topic", known)
        except LoadScheduleError as error:
            name = error.field or "topic"
            return [Trouble(f"{name} cannot be so", f"Of a load, {error}.", (name,))]
        return []

    def plan(self, call: Call, change: Change) -> Plan:
        planned = dict(change.planned)
        if troubles := self.validate(planned):
            raise ResourceError(*troubles)
        host, topic = planned["host"], planned["topic"]
        if is_known(host):
            self.provider.agents.check_host(host)
        planned["id"] = f"{host}/{topic}" if is_known([host, topic]) else Unknown
        troubles = []
        if change.is_creation and is_known(planned) and not self.provider.is_ours(_identity(planned)):
            troubles = self._foreseen(planned)
        return Plan(planned, replaces_of(SCHEMA, change), tuple(troubles))

    def _foreseen(self, planned: Values) -> list[Trouble]:
        try:
            client = self.provider.agents.client(planned["host"])
            outcome = client.put_load(planned["topic"], _said(planned), dry_run=True)
        except (NotYetKnownError, AgentUnreachableError):
            return []
        except AgentRefusedError as error:
            return [Trouble(f"The agent of host {planned['host']} refuses it", str(error))]
        return [] if outcome == "created" else [_taken(planned, is_same=outcome == "unchanged")]

    def read(self, call: Call, state: Values) -> Values | None:
        self.provider.note_ours(_identity(state))
        try:
            found = self._client(state).load(state["topic"])
        except AgentRefusedError as error:
            if error.code == "load_unknown":
                return None
            raise
        return {**state, **found}

    def create(self, call: Call, planned: Values) -> Values:
        client, topic = self._client(planned), planned["topic"]
        outcome = client.put_load(topic, _said(planned), dry_run=True)
        if outcome != "created":
            trouble = _taken(planned, is_same=outcome == "unchanged")
            if not trouble.is_warning:
                raise ResourceError(trouble)
            call.troubles.append(trouble)
        client.put_load(topic, _said(planned))
        return planned

    def update(self, call: Call, prior: Values, planned: Values) -> Values:
        self._client(planned).put_load(planned["topic"], _said(planned))
        return planned

    def delete(self, call: Call, prior: Values) -> None:
        self._client(prior).delete_load(prior["topic"])

    def import_(self, call: Call, identity: str) -> Values:
        host, slash, topic = identity.rpartition("/")
        if not slash or not host or not topic:
            text = "The import id of a load is HOST/TOPIC, such as local/page-view."
            raise ResourceError(Trouble(f"{identity!r} names no load", text))
        found = self._client({"host": host}).load(topic)
        return {"host": host, "topic": topic, "id": identity, **found}

    def _client(self, values: Values) -> AgentClient:
        return self.provider.agents.client_now(values["host"])


def _identity(values: Values) -> str:
    return f"load {values['host']} {values['topic']}"


def _said(values: Values) -> dict[str, Any]:
    """The load as the agent is told it."""
    said = {name: plain(values.get(name)) for name in FIELDS}
    return {name: value for name, value in said.items() if value is not None or name in _NULLABLE}


def _taken(planned: Values, *, is_same: bool) -> Trouble:
    host, topic = planned["host"], planned["topic"]
    if is_same:
        text = "It is just so: an apply that was cut short has put it, or somebody else."
        return Trouble(f"Host {host} loads {topic} already, which is taken over", text, is_warning=True)
    text = f"Somebody else has put it. Take it over by `terraform import`, as {host}/{topic}."
    return Trouble(f"Host {host} loads {topic} already, otherwise", text, ("topic",))
