"""Topics as resources, created by a datacenter's brokers.

Owns what a plan of a topic refuses: fewer partitions, settings that the brokers reject, and the deletion of a
topic that holds data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tf.types import Unknown

from headrace.coordination import declared
from headrace.provider import holdings, topic_replicas
from headrace.provider.attributes import Attribute, BlockSchema
from headrace.provider.clusters import (
    APPLY_TIMEOUT_S,
    PLAN_TIMEOUT_S,
    admin_client,
    is_address,
    refused,
)
from headrace.provider.planning import ResourceChange, ResourcePlan, replaces_of
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.resource import Resource, ResourceCall
from headrace.provider.topic_problems import (
    COMPARED,
    MIN_INSYNC,
    NAME,
    exists,
    fewer_partitions,
    made_again,
    problems_of,
    producers_problems,
)
from headrace.provider.values import Values, is_known, without_nulls
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.client.group_admin import GroupAdmin

# Mirrors keep internal settings in the topic's configuration, under this prefix.
_INTERNAL_SETTINGS: Final = "headrace."
_CHOSEN_BY_BROKERS: Final = ("topic_id", "replication_factor")

BOOTSTRAP_SERVERS: Final = Attribute(
    name="bootstrap_servers",
    type=["list", "string"],
    description="The datacenter's brokers, HOST:PORT each; one live broker is enough.",
)

SCHEMA: Final = BlockSchema(
    (
        BOOTSTRAP_SERVERS,
        Attribute(name="name", replaces=True, description="The topic's name."),
        Attribute(
            name="partitions",
            type="number",
            description="The number of partitions, which may grow later but never shrink.",
        ),
        Attribute(
            name="replication_factor",
            type="number",
            optional=True,
            computed=True,
            description="The number of replicas of each partition. Default: what the brokers choose for a "
            "new topic, 3, or one on each broker if they are fewer. It changes in place.",
        ),
        topic_replicas.THROTTLE,
        topic_replicas.TIMEOUT_S,
        Attribute(
            name="min_insync_replicas",
            type="number",
            optional=True,
            description="With fewer in-sync replicas acks=all is refused. Default: the brokers' own, 2 for "
            "three replicas or more, else 1.",
        ),
        Attribute(
            name="config",
            type=["map", "string"],
            default={},
            description="The topic's own settings by Kafka's names, such as retention.ms. Others, and "
            "those that are null, have the brokers' defaults.",
        ),
        Attribute(
            name="producers",
            default=declared.REPORTING,
            description="`reporting`: every producer reports its counts to the audit. `any`: producers need "
            "not report, and the audit counts from the log on. A change applies to the hours that begin "
            "afterwards.",
        ),
        Attribute(
            name="audit_store",
            optional=True,
            sensitive=True,
            description="The audit store's SQLAlchemy URL. With it, a refused deletion also reports how many "
            "events are not in HDFS yet.",
        ),
        holdings.ALLOW_DATA_LOSS,
        Attribute(name="id", computed=True, description="The topic's name."),
        Attribute(
            name="topic_id",
            computed=True,
            description="The topic's id in Kafka. A topic that is deleted and recreated gets a new id.",
        ),
    ),
    description="A topic of one datacenter.",
)


class TopicResource(Resource):
    """One topic."""

    type_name = "topic"
    schema = SCHEMA
    import_id = "`BROKER,…/NAME`, such as `127.1.0.11:9092,127.1.0.12:9092/page-view`"

    def validate(self, config: Values) -> list[Problem]:
        return problems_of(config)

    # --- planning ---

    def plan(self, call: ResourceCall, change: ResourceChange) -> ResourcePlan:
        planned = dict(change.planned)
        if problems := problems_of(planned) + producers_problems(planned):
            raise ResourceError(*problems)
        prior, partitions = change.prior, planned["partitions"]
        if prior is not None and is_known(partitions) and partitions < prior["partitions"]:
            raise ResourceError(fewer_partitions(prior, planned))
        planned["id"] = planned["name"]
        planned["topic_id"] = Unknown if prior is None else prior["topic_id"]
        replaces = replaces_of(SCHEMA, change)
        if prior is not None and not replaces and "bootstrap_servers" in change.changed:
            replaces = _replacements_for_new_cluster(prior, planned)
        problems = []
        checked = change.changed & {*COMPARED, "name", "min_insync_replicas"}
        is_complete = all(
            is_known(planned[name]) for name in SCHEMA.names() if name not in _CHOSEN_BY_BROKERS
        )
        if checked and not replaces and is_complete:
            problems = self._dry_run(change)
        return ResourcePlan(planned, replaces, tuple(problems))

    def _dry_run(self, change: ResourceChange) -> list[Problem]:
        """Returns what the brokers object to; nothing if they cannot be reached yet."""
        # Imported here and below because the client's import is slow, and only topics need it.
        from headrace.client.errors import BrokerError, ClientError

        planned, prior = change.planned, change.prior
        try:
            with admin_client(planned["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
                if prior is not None:
                    if settings := _changed_settings(_settings_of(prior), _settings_of(planned)):
                        admin.alter_configs(planned["name"], settings, validate_only=True)
                    return topic_replicas.factor_problems(planned) if _has_new_factor(prior, planned) else []
                if (topic := read_topic(admin, planned["name"])) is not None:
                    is_ours = _identity(planned) in self.context.known
                    return [] if is_ours else [exists(planned, topic)]
                _create(admin, planned, validate_only=True)
        except BrokerError as error:
            return [refused(error)]
        except ClientError:
            # The brokers may be created by this same apply.
            return []
        return []

    def plan_deletion(self, call: ResourceCall, prior: Values) -> None:
        if not prior.get("allow_data_loss"):
            self._refuse_if_it_holds_data(prior)
        self.context.deleted_topics.add(prior["topic_id"])

    def _refuse_if_it_holds_data(self, prior: Values) -> None:
        """Raises `ResourceError` if the topic holds data, or its brokers do not answer."""
        from headrace.client.errors import ClientError, UnknownTopicError

        what = f"Topic {prior['name']}"
        try:
            with admin_client(prior["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
                held = holdings.of_topic(admin, prior["name"], prior.get("audit_store"))
        except UnknownTopicError:
            return
        except ClientError as error:
            raise holdings.unknown(what, f"Its brokers do not answer: {error}.") from error
        holdings.refuse_if_any(what, held)

    # --- reading and applying ---

    def read(self, call: ResourceCall, state: Values) -> Values | None:
        from headrace.client.errors import NetworkError

        self.context.known.add(_identity(state))
        try:
            with admin_client(state["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
                topic = read_topic(admin, state["name"], state)
        except NetworkError as error:
            call.warn_unreachable(f"Topic {state['name']}", error)
            return state
        return None if topic is None else {**state, **topic}

    def create(self, call: ResourceCall, planned: Values) -> Values:
        from headrace.client.errors import BrokerError

        with admin_client(planned["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            try:
                _create(admin, planned)
            except BrokerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise ResourceError(refused(error)) from error
                problem = exists(planned, read_topic(admin, planned["name"]) or {})
                if not problem.is_warning:
                    raise ResourceError(problem) from error
                call.problems.append(problem)
            found = read_topic(admin, planned["name"]) or {}
            return {**planned, **{name: found[name] for name in _CHOSEN_BY_BROKERS}}

    def update(self, call: ResourceCall, prior: Values, planned: Values) -> Values:
        from headrace.client.errors import BrokerError

        name = planned["name"]
        with admin_client(planned["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            try:
                self._change(call, admin, prior, planned)
            except (BrokerError, ResourceError) as error:
                topic = read_topic(admin, name, planned) or {}
                problems = error.problems if isinstance(error, ResourceError) else [refused(error)]
                raise ResourceError(*problems, state={**prior, **topic}) from error
        return planned

    def _change(self, call: ResourceCall, admin: GroupAdmin, prior: Values, planned: Values) -> None:
        """Makes the topic as planned. Settings come last if it gets more replicas, and else first: a
        `min.insync.replicas` that its replicas cannot meet would hold its producers up."""
        name = planned["name"]
        settings = _changed_settings(_settings_of(prior), _settings_of(planned))
        if settings and not _gets_more_replicas(prior, planned):
            admin.alter_configs(name, settings)
            settings = {}
        if planned["partitions"] > prior["partitions"]:
            admin.create_partitions(name, int(planned["partitions"]))
        if _has_new_factor(prior, planned):
            topic_replicas.change_factor(planned, call.stopping)
        if settings:
            admin.alter_configs(name, settings)

    def delete(self, call: ResourceCall, prior: Values) -> None:
        from headrace.client.errors import BrokerError, UnknownTopicError

        self.plan_deletion(call, prior)
        with admin_client(prior["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            try:
                topic_id = str(admin.topic(prior["name"]).topic_id)
                if prior["topic_id"] not in (None, topic_id):
                    call.problems.append(made_again(prior, topic_id))
                    return
                admin.delete_topic(prior["name"])
            except UnknownTopicError:
                return
            except BrokerError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise ResourceError(refused(error)) from error

    def import_(self, call: ResourceCall, identity: str) -> Values:
        servers, name = self.split_import_id(identity)
        bootstrap = servers.split(",")
        if not NAME.fullmatch(name) or not all(map(is_address, bootstrap)):
            raise self.invalid_import_id(identity)
        with admin_client(bootstrap, timeout_s=APPLY_TIMEOUT_S) as admin:
            topic = read_topic(admin, name)
        if topic is None:
            text = f"The brokers at {servers} have no topic of this name."
            raise ResourceError(Problem(f"There is no topic {name!r}", text))
        inputs = {"bootstrap_servers": bootstrap, "name": name, "id": name, "allow_data_loss": False}
        inputs["replication_timeout_s"] = topic_replicas.TIMEOUT_DEFAULT_S
        return {**inputs, **topic}


def read_topic(admin: GroupAdmin, name: str, state: Values | None = None) -> Values | None:
    """Returns the topic's attributes as the brokers report them; None if there is no such topic.

    `state`: what Terraform has. `config` leaves out internal settings, except those that it has there.
    """
    from headrace.client.errors import UnknownTopicError

    try:
        topic = admin.topic(name)
    except UnknownTopicError:
        return None
    managed = (state or {}).get("config") or {}
    entries = admin.describe_configs(name)
    declaration = entries.get(declared.PRODUCERS)
    least = entries.get(MIN_INSYNC)
    config: dict[str, str | None] = {
        entry.name: entry.value
        for entry in entries.values()
        if entry.is_own and (not _is_left_out(entry.name) or entry.name in managed)
    }
    for setting, value in managed.items():
        if value is None:
            config.setdefault(setting, None)  # as the HCL spells it
    factor = _given_number((state or {}).get("replication_factor"))
    return {
        "partitions": len(topic.partitions),
        "replication_factor": topic_replicas.factor_of(admin, name, topic, factor),
        "min_insync_replicas": int(least.value or 1)
        if least and least.is_own and MIN_INSYNC not in managed
        else None,
        "config": config,
        "producers": (declaration.value if declaration else None) or declared.REPORTING,
        "topic_id": str(topic.topic_id),
    }


def _create(admin: GroupAdmin, planned: Values, *, validate_only: bool = False) -> None:
    admin.create_topic(
        planned["name"],
        int(planned["partitions"]),
        _given_number(planned["replication_factor"]),
        _settings_of(planned),
        validate_only=validate_only,
    )


def _settings_of(values: Values) -> dict[str, str]:
    """Returns the topic's settings. State of older versions of this provider has no `producers`."""
    config: dict[str, str] = without_nulls(values["config"])
    if (least := _given_number(values.get("min_insync_replicas"))) is not None:
        config[MIN_INSYNC] = str(least)
    if values.get("producers") in (None, declared.REPORTING):
        return config  # the default, which no topic needs to store
    return {**config, declared.PRODUCERS: values["producers"]}


def _has_new_factor(prior: Values, planned: Values) -> bool:
    factor = planned["replication_factor"]
    return is_known(factor) and factor != prior["replication_factor"]


def _gets_more_replicas(prior: Values, planned: Values) -> bool:
    """State of older versions of this provider has no `replication_factor` until it is refreshed."""
    before, factor = (_given_number(values.get("replication_factor")) for values in (prior, planned))
    return factor is not None and factor > (before or 0)


def _given_number(value: Any) -> int | None:
    return int(value) if value is not None and is_known(value) else None


def _is_left_out(setting: str) -> bool:
    """Whether `config` does not show a setting: an internal one, or one with an attribute of its own."""
    return setting.startswith(_INTERNAL_SETTINGS) or setting == MIN_INSYNC


def _identity(values: Values) -> str:
    return f"topic {','.join(values['bootstrap_servers'])} {values['name']}"


def _changed_settings(before: dict[str, str], planned: dict[str, str]) -> dict[str, str | None]:
    """Returns the settings to change; None for those that return to their default."""
    changes: dict[str, str | None] = {
        name: value for name, value in planned.items() if before.get(name) != value
    }
    return changes | {name: None for name in before if name not in planned}


def _replacements_for_new_cluster(prior: Values, planned: Values) -> list[str]:
    """Returns `bootstrap_servers` if the new brokers belong to another cluster, without this topic."""
    from headrace.client.errors import ClientError

    if not is_known(planned["bootstrap_servers"]):
        return []
    try:
        with admin_client(planned["bootstrap_servers"], timeout_s=PLAN_TIMEOUT_S) as admin:
            topic = read_topic(admin, prior["name"])
    except ClientError:
        return []
    return [] if topic is not None and topic["topic_id"] == prior["topic_id"] else ["bootstrap_servers"]
