"""Topics as resources, made by a datacenter's brokers.

Owns what a plan of a topic refuses: fewer partitions, a setting that the brokers do not take, and the end of
a topic that holds data.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tf.types import Unknown

from headrace.provider import holdings
from headrace.provider.attributes import Attribute, Schema
from headrace.provider.clusters import (
    APPLY_TIMEOUT_S,
    PLAN_TIMEOUT_S,
    administered,
    refused,
)
from headrace.provider.planning import Change, Plan, replaces_of
from headrace.provider.resource import Call, Resource
from headrace.provider.unit_kinds import ALLOW_DATA_LOSS
from headrace.provider.values import (
    ResourceError,
    Trouble,
    Values,
    is_known,
)

if TYPE_CHECKING:
    from headrace.client.group_admin import GroupAdmin

# Kafka's own rule for topic names (org.apache.kafka.common.internals.Topic).
_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_ADDRESS: Final = re.compile(r"[^\s,:/]+:\d{1,5}")
# What the mirrors note in a topic's settings is theirs.
_OWN_SETTINGS: Final = "headrace."

BOOTSTRAP_SERVERS: Final = Attribute(
    name="bootstrap_servers",
    type=["list", "string"],
    description="The datacenter's brokers, HOST:PORT each; one that answers is enough.",
)

SCHEMA: Final = Schema(
    (
        BOOTSTRAP_SERVERS,
        Attribute(name="name", replaces=True, description="The topic's name."),
        Attribute(name="partitions", type="number", description="How many; more later, never fewer."),
        Attribute(
            name="replication_factor",
            type="number",
            default=1,
            replaces=True,
            description="Copies of each partition.",
        ),
        Attribute(
            name="config",
            type=["map", "string"],
            default={},
            description="Settings by Kafka's names, such as retention.ms; others are the brokers'.",
        ),
        Attribute(
            name="audit_store",
            optional=True,
            sensitive=True,
            description="The audit store (an SQLAlchemy URL), for a refusal to tell how many events are not "
            "in HDFS yet.",
        ),
        ALLOW_DATA_LOSS,
        Attribute(name="id", computed=True, description="The name."),
        Attribute(name="topic_id", computed=True, description="Kafka's id: another one is another topic."),
    ),
    description="A topic of one datacenter.",
)


class Topic(Resource):
    """One topic."""

    type_name = "topic"

    @classmethod
    def get_schema(cls) -> Schema:
        return SCHEMA

    def validate(self, config: Values) -> list[Trouble]:
        return _problems(config)

    # plan

    def plan(self, call: Call, change: Change) -> Plan:
        planned = dict(change.planned)
        if troubles := _problems(planned):
            raise ResourceError(*troubles)
        prior = change.prior
        if (
            prior is not None
            and is_known(planned["partitions"])
            and planned["partitions"] < prior["partitions"]
        ):
            raise ResourceError(_shrinks(prior, planned))
        planned["id"] = planned["name"]
        planned["topic_id"] = Unknown if prior is None else prior["topic_id"]
        replaces = replaces_of(SCHEMA, change)
        if prior is not None and not replaces and "bootstrap_servers" in change.changed:
            replaces = _moved(prior, planned)
        troubles = []
        asks = change.changed & {"name", "partitions", "replication_factor", "config"}
        if (
            asks
            and not replaces
            and all(is_known(planned[each]) for each in SCHEMA.names() if each != "topic_id")
        ):
            troubles = self._foreseen(change)
        return Plan(planned, replaces, tuple(troubles))

    def _foreseen(self, change: Change) -> list[Trouble]:
        """What the brokers would say to it, if they can be asked already."""
        from headrace.client.errors import BrokerError, ClientError

        planned, prior = change.planned, change.prior
        try:
            with administered(planned["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
                if prior is not None:
                    settings = _changes(prior["config"], planned["config"])
                    if settings:
                        admin.alter_configs(planned["name"], settings, validate_only=True)
                    return []
                if (found := found_topic(admin, planned["name"])) is not None:
                    ours = self.provider.is_ours(_identity(planned))
                    return [] if ours else [_taken_over(planned, found)]
                _create(admin, planned, validate_only=True)
        except BrokerError as error:
            return [refused(error)]
        except ClientError:
            # They may be made by this very apply.
            return []
        return []

    def plan_deletion(self, call: Call, prior: Values) -> None:
        if not prior.get("allow_data_loss"):
            self._check_holds_nothing(prior)
        self.provider.going.add(prior["topic_id"])

    def _check_holds_nothing(self, prior: Values) -> None:
        """Raises `ResourceError`."""
        from headrace.client.errors import ClientError, UnknownTopicError

        what = f"Topic {prior['name']}"
        try:
            with administered(prior["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
                held = holdings.of_topic(admin, prior["name"], prior.get("audit_store"))
        except UnknownTopicError:
            return
        except ClientError as error:
            raise holdings.refuse_unknown(what, f"Its brokers do not tell: {error}.") from error
        holdings.refuse(what, held)

    # life

    def read(self, call: Call, state: Values) -> Values | None:
        from headrace.client.errors import NetworkError

        self.provider.note_ours(_identity(state))
        try:
            with administered(state["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
                found = found_topic(admin, state["name"], noticed=state["config"])
        except NetworkError as error:
            # Else a broker that stands still could not be mended: no plan without all that it reads.
            text = f"The plan takes it as it was last seen: {error}."
            call.warn(f"Topic {state['name']} could not be looked at", text)
            return state
        return None if found is None else {**state, **found}

    def create(self, call: Call, planned: Values) -> Values:
        from headrace.client.errors import BrokerError
        from headrace.wire.errors import ErrorCode

        with administered(planned["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            try:
                _create(admin, planned)
            except BrokerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise ResourceError(refused(error)) from error
                found = found_topic(admin, planned["name"])
                trouble = _taken_over(planned, found or {})
                if not trouble.is_warning:
                    raise ResourceError(trouble) from error
                call.troubles.append(trouble)
            return {**planned, "topic_id": str(admin.topic(planned["name"]).topic_id)}

    def update(self, call: Call, prior: Values, planned: Values) -> Values:
        from headrace.client.errors import BrokerError

        name = planned["name"]
        with administered(planned["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            try:
                if settings := _changes(prior["config"], planned["config"]):
                    admin.alter_configs(name, settings)
                if planned["partitions"] > prior["partitions"]:
                    admin.create_partitions(name, int(planned["partitions"]))
            except BrokerError as error:
                found = found_topic(admin, name, noticed=planned["config"])
                raise ResourceError(refused(error), state={**prior, **(found or {})}) from error
        return planned

    def delete(self, call: Call, prior: Values) -> None:
        from headrace.client.errors import BrokerError
        from headrace.wire.errors import ErrorCode

        self.plan_deletion(call, prior)
        with administered(prior["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            try:
                admin.delete_topic(prior["name"])
            except BrokerError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise ResourceError(refused(error)) from error

    def import_(self, call: Call, identity: str) -> Values:
        bootstrap, name = _named(identity)
        with administered(bootstrap, timeout_s=APPLY_TIMEOUT_S) as admin:
            found = found_topic(admin, name)
        if found is None:
            raise ResourceError(
                Trouble(f"There is no topic {name!r}", f"The brokers at {bootstrap[0]} say so.")
            )
        said = {"bootstrap_servers": bootstrap, "name": name, "id": name, "allow_data_loss": False}
        return {**said, **found}


def _create(admin: GroupAdmin, planned: Values, *, validate_only: bool = False) -> None:
    admin.create_topic(
        planned["name"],
        int(planned["partitions"]),
        int(planned["replication_factor"]),
        planned["config"],
        validate_only=validate_only,
    )


def found_topic(admin: GroupAdmin, name: str, noticed: dict[str, str] | None = None) -> Values | None:
    """The topic as the brokers know it, None when there is none. `noticed`: settings to tell of whatever
    they are.
    """
    from headrace.client.errors import UnknownTopicError

    try:
        info = admin.topic(name)
    except UnknownTopicError:
        return None
    config = {
        entry.name: entry.value
        for entry in admin.describe_configs(name).values()
        if entry.is_own and (not entry.name.startswith(_OWN_SETTINGS) or entry.name in (noticed or {}))
    }
    return {
        "partitions": len(info.partitions),
        "replication_factor": max((len(part.replicas) for part in info.partitions.values()), default=1),
        "config": config,
        "topic_id": str(info.topic_id),
    }


def _identity(values: Values) -> str:
    return f"topic {','.join(values['bootstrap_servers'])} {values['name']}"


def _named(identity: str) -> tuple[list[str], str]:
    """`HOST:PORT,…/NAME`. Raises `ResourceError`."""
    servers, slash, name = identity.rpartition("/")
    bootstrap = servers.split(",")
    if not slash or not _NAME.fullmatch(name) or not all(map(_ADDRESS.fullmatch, bootstrap)):
        text = "The import id of a topic is BROKER,…/NAME, such as 127.1.0.11:9092/page-view."
        raise ResourceError(Trouble(f"{identity!r} names no topic", text))
    return bootstrap, name


def _changes(before: dict[str, str], wanted: dict[str, str]) -> dict[str, str | None]:
    """What to set, and what to put back to its default."""
    changes: dict[str, str | None] = {k: v for k, v in wanted.items() if before.get(k) != v}
    return changes | {name: None for name in before if name not in wanted}


def _moved(prior: Values, planned: Values) -> list[str]:
    """Whether other brokers mean another cluster, which has another topic of this name, or none."""
    from headrace.client.errors import ClientError

    if not is_known(planned["bootstrap_servers"]):
        return []
    try:
        with administered(planned["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
            found = found_topic(admin, prior["name"])
    except ClientError:
        return []
    return [] if found is not None and found["topic_id"] == prior["topic_id"] else ["bootstrap_servers"]


def _shrinks(prior: Values, planned: Values) -> Trouble:
    return Trouble(
        "A topic's partitions cannot become fewer",
        f"{prior['name']} has {prior['partitions']}, the plan wants {planned['partitions']}: what the others "
        "hold would be lost, and keys would land elsewhere. Let it have as many as it has, or make another "
        "topic and load or mirror into that one.",
        ("partitions",),
    )


def _taken_over(planned: Values, found: Values) -> Trouble:
    same = all(found.get(each) == planned[each] for each in ("partitions", "replication_factor", "config"))
    if same:
        text = "It is just so: an apply that was cut short has made it, or somebody else."
        return Trouble(f"Topic {planned['name']} is there already, and is taken over", text, is_warning=True)
    servers = ",".join(planned["bootstrap_servers"])
    return Trouble(
        f"There is a topic {planned['name']} already",
        f"It has {found.get('partitions')} partitions and the settings {found.get('config')}. Take it over "
        f"by `terraform import`, as {servers}/{planned['name']}; or give this one another name.",
        ("name",),
    )


def _problems(values: Values) -> list[Trouble]:
    """What is wrong with what is known of it."""
    troubles = []
    name = values.get("name")
    if isinstance(name, str) and not _NAME.fullmatch(name):
        text = f"It says {name!r}; expected letters, digits, '.', '_' and '-', up to 249 of them."
        troubles.append(Trouble("This is no name of a topic", text, ("name",)))
    for attribute in ("partitions", "replication_factor"):
        count = values.get(attribute)
        if count is not None and is_known(count) and (int(count) != count or count < 1):
            text = f"It says {count}; expected a whole number, 1 or more."
            troubles.append(Trouble(f"{attribute} cannot be so", text, (attribute,)))
    return troubles + bootstrap_problems(values)


def bootstrap_problems(values: Values) -> list[Trouble]:
    """What is wrong with `bootstrap_servers`."""
    servers = values.get("bootstrap_servers")
    if not isinstance(servers, list):
        return []
    if not servers:
        return [Trouble("No broker is named", "Name one HOST:PORT at least.", ("bootstrap_servers",))]
    return [
        Trouble(
            "This is no address of a broker",
            f"It says {server!r}; expected HOST:PORT, such as 127.1.0.11:9092.",
            ("bootstrap_servers",),
        )
        for server in servers
        if isinstance(server, str) and not _ADDRESS.fullmatch(server)
    ]
